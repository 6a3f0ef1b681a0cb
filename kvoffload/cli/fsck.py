"""`kvoffload fsck`: whether every chunk that a cache on disk has committed is there, byte for byte.

Reads manifests and slabs as they lie there and takes no lock: a namespace that is in use, or is opened meanwhile, is
not judged. Only a repair locks what it changes.
"""

from __future__ import annotations

import contextlib
import os
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from kvoffload import _C
from kvoffload.cli.ls import size
from kvoffload.cli.namespaces import Namespace, find, user_text
from kvoffload.errors import InvalidInput, KVOffloadError

LOCK_SECONDS, SYNC_SECONDS = 1.0, 60.0
PROBE = "probe"  # made for a moment on opening a slab

# What each state of a committed record means.
LOST = {
    "checksum": "do not verify: the checksum is wrong",
    "identity": "are overwritten by another chunk's record",
    "stale": "are older or younger than their commit",
    "none": "are commits without a record",
    "unreadable": "cannot be read",
}


@dataclass
class Findings:
    """Of one namespace. chunks: that the manifest names; lost: of these, by state. `unchecked`: why it was not judged.

    problems: what makes chunks a miss. notes: what is left over from a crash, harmless.
    """

    namespace: str
    directories: list[str]
    unchecked: str = ""
    chunks: int = 0
    checked_bytes: int = 0
    lost: dict[str, int] = field(default_factory=dict)
    leftover_records: int = 0
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    repaired: bool = False


_Place = tuple[int, int]  # group, slot
_Chunk = tuple[int, bytes, int, int]  # group, key, slot, sequence


def fsck(roots: Sequence[str], *, repair: bool = False) -> list[Findings]:
    """Checks every namespace of these directories (all of a cache's option `disk`). Raises InvalidInput.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     fsck([folder])
    []
    """
    caches: defaultdict[tuple[str, int], list[Namespace]] = defaultdict(list)
    for namespace in find(roots):
        caches[namespace.fingerprint, namespace.dp].append(namespace)
    return [_Check(parts).run(repair) for parts in caches.values()]


def exit_status(all_findings: Sequence[Findings]) -> int:
    """0: all that is committed is there, or was repaired. 1: chunks are lost. 2: something could not be checked."""
    if any(findings.unchecked for findings in all_findings):
        return 2
    return int(any(findings.problems and not findings.repaired for findings in all_findings))


def as_text(findings: Findings) -> str:
    """
    >>> print(as_text(Findings("ab12cd34/dp0", ["/nvme"], chunks=3, checked_bytes=6 << 20)))
    /nvme: ab12cd34/dp0: 3 chunks, 6.00 MiB read: clean
    """
    head = f"{', '.join(findings.directories)}: {findings.namespace}: "
    if findings.unchecked:
        return head + f"not checked: {findings.unchecked}"
    head += f"{findings.chunks:,} chunks, {size(findings.checked_bytes)} read"
    verdict = "repaired" if findings.repaired else "" if findings.problems else "clean"
    lines = [head + (f": {verdict}" if verdict else "")]
    return "\n".join(lines + [f"  {line}" for line in findings.problems] + [f"  note: {n}" for n in findings.notes])


def as_dicts(all_findings: Sequence[Findings]) -> list[dict[str, object]]:
    return [asdict(findings) for findings in all_findings]


class _Check:
    """One cache: its namespace in each of its directories."""

    def __init__(self, parts: list[Namespace]) -> None:
        self._parts = parts
        self.findings = Findings(parts[0].name, [part.root for part in parts])
        # What a repair removes.
        self._lost_commits: list[_Place] = []
        self._bad_records: list[_Place] = []  # on any rank
        self._leftovers: defaultdict[int, list[_Place]] = defaultdict(list)  # by rank
        self._leftover_files: list[str] = []
        self._broken_ranks: list[int] = []
        self._slab_paths: list[str] = []
        self._manifest_fingerprint = ""  # empty: not believed
        self._manifest_path = next(
            (path for part in parts if os.path.lexists(path := str(part.path / "ledger/manifest"))), ""
        )

    def run(self, repair: bool) -> Findings:
        try:
            if repair:
                self._repair()
            else:
                self._look()
        except (KVOffloadError, OSError) as error:
            self.findings.unchecked = str(error)
        return self.findings

    def _look(self) -> None:
        before = self._traces()
        self._check(writable=False)
        if self._traces() != before:
            raise InvalidInput("it was opened or changed meanwhile: stop what uses it")

    def _traces(self) -> list[object]:
        """Of others: they change when somebody opens the namespace, or writes its manifest."""
        for part in self._parts:
            if (users := part.users()) is not None:
                raise InvalidInput(f"it is in use by {user_text(users)}")
        manifest = os.stat(self._manifest_path, follow_symlinks=False) if self._manifest_path else None
        return [part.opened for part in self._parts] + [manifest and (manifest.st_size, manifest.st_mtime_ns)]

    def _repair(self) -> None:
        self._traces()
        locks = [
            _C.NamespaceDir(part.root, part.fingerprint, part.dp, leaf, LOCK_SECONDS)
            for part in self._parts
            for leaf in part.leaves
        ]
        slabs = self._check(writable=True)
        if self.findings.problems or self.findings.notes:
            self._remove(slabs)
            self.findings.repaired = True
        del locks

    def _check(self, *, writable: bool) -> dict[int, _C.SlabReader]:
        slabs = self._open_slabs(writable)
        chunks, epoch, identity = self._read_manifest(slabs)
        strangers = [rank for rank, slab in slabs.items() if slab.identity != identity]
        if chunks and (strangers or self._broken_ranks or not slabs):
            ranks = ", ".join(map(str, sorted([*strangers, *self._broken_ranks]))) or "0"
            self.findings.problems.append(
                f"rank {ranks} has not the files that the manifest speaks of: none of its {len(chunks):,} chunks is "
                "believed"
            )
            self._lost_commits = [(group, slot) for group, _, slot, _ in chunks]
            chunks = []
        self._find_leftovers(slabs, self._check_records(slabs, chunks, epoch))
        return slabs

    def _open_slabs(self, writable: bool) -> dict[int, _C.SlabReader]:
        paths: defaultdict[int, list[str]] = defaultdict(list)
        for part in self._parts:
            for leaf in part.leaves:
                if leaf == "ledger":
                    self._find_file(part.path / leaf / "manifest.new", "a manifest that was not finished")
                    continue
                self._find_file(part.path / leaf / PROBE, "left over from an opening")
                if os.path.lexists(path := part.path / leaf / "slab"):
                    paths[int(leaf[4:])].append(str(path))
        slabs = {}
        for rank in range(max(paths, default=-1) + 1):
            if not paths[rank]:
                self._broken_ranks.append(rank)
                continue
            try:
                slabs[rank] = self._open_slab(rank, paths[rank], writable)
            except InvalidInput as error:
                self._broken_ranks.append(rank)
                self._leftover_files += paths[rank]
                self.findings.problems.append(str(error))
        return slabs

    def _open_slab(self, rank: int, paths: list[str], writable: bool) -> _C.SlabReader:
        slab = _C.SlabReader(paths, writable=writable)
        if (slab.rank, slab.fingerprint) != (rank, self._parts[0].fingerprint):
            raise InvalidInput(f"{paths[0]} is of rank {slab.rank} of {slab.fingerprint}")
        self._slab_paths += paths
        return slab

    def _find_file(self, path: Path, what: str) -> None:
        if os.path.lexists(path):
            self.findings.notes.append(f"{path}: {what}")
            self._leftover_files.append(str(path))

    def _read_manifest(self, slabs: dict[int, _C.SlabReader]) -> tuple[list[_Chunk], int, int]:
        """What it names, its epoch, its identity."""
        if not self._manifest_path:
            self.findings.notes.append("no manifest: nothing here is believed")
            return [], 0, 0
        problems, notes = self.findings.problems, self.findings.notes
        try:
            manifest = _C.read_manifest(self._manifest_path)
            wanted = {f"{self._parts[0].fingerprint} {slab.extent_bytes}" for slab in slabs.values()}
            if wanted not in (set(), {manifest["fingerprint"]}):
                raise InvalidInput(f"{self._manifest_path}: it is of other files: {manifest['fingerprint']}")
        except InvalidInput as error:
            problems.append(f"{error}: nothing that it named is believed")
            return [], 0, 0
        self._manifest_fingerprint = manifest["fingerprint"]
        self.findings.chunks = len(manifest["chunks"])
        if count := manifest["damaged_bytes"]:
            problems.append(f"manifest: damaged, its last {count:,} bytes are not believed")
        if count := manifest["torn_bytes"]:
            notes.append(f"manifest: a torn tail of {count:,} bytes")
        if count := manifest["unsynced_chunks"]:
            notes.append(f"{count:,} chunks were not on the medium when the machine went down: not believed")
        return manifest["chunks"], manifest["epoch"], manifest["identity"]

    def _check_records(self, slabs: dict[int, _C.SlabReader], chunks: list[_Chunk], epoch: int) -> set[_Place]:
        """Every record of every chunk; those that are right on all ranks."""
        lost: dict[_Place, str] = {}
        for slab in slabs.values():
            for group, key, slot, sequence in chunks:
                state = slab.check(group, slot, key, sequence, epoch)
                if state == "valid":
                    self.findings.checked_bytes += slab.slot_bytes[group]
                else:
                    lost.setdefault((group, slot), state)
        self.findings.lost = dict(Counter(lost.values()))
        self.findings.problems += [
            f"{count:,} chunks {LOST[state]}" for state, count in sorted(self.findings.lost.items())
        ]
        self._lost_commits += lost
        self._bad_records = [place for place, state in lost.items() if state != "unreadable"]
        return {(group, slot) for group, _, slot, _ in chunks} - set(lost)

    def _find_leftovers(self, slabs: dict[int, _C.SlabReader], valid: set[_Place]) -> None:
        """Records that no commit names: of keys that were forgotten, of earlier epochs, of writes cut short."""
        named = valid.union(self._bad_records)
        for rank, slab in slabs.items():
            slots_per_extent = [slab.extent_bytes // slot_bytes for slot_bytes in slab.slot_bytes]
            owners: defaultdict[int, set[int]] = defaultdict(set)
            for group, slot in valid:
                owners[slot // slots_per_extent[group]].add(group)
            for group, each in enumerate(slots_per_extent):
                for extent in range(-(-slab.slots[group] // each)):
                    if owners[extent] <= {group}:  # else what looks like one may be inside another group's chunk
                        end = min((extent + 1) * each, slab.slots[group])
                        found = {(group, slot) for slot in slab.records(group, extent * each, end)}
                        self._leftovers[rank] += sorted(found - named)
        self.findings.leftover_records = sum(map(len, self._leftovers.values()))
        if count := self.findings.leftover_records:
            self.findings.notes.append(f"{count:,} records that no commit names")

    def _remove(self, slabs: dict[int, _C.SlabReader]) -> None:
        """First nobody believes them, durably; then they go."""
        if self._manifest_fingerprint:
            slots = [max(counts) for counts in zip(*(slab.slots for slab in slabs.values()), strict=True)]
            manifest = _C.Manifest(  # opening it cuts what it does not believe
                os.path.dirname(self._manifest_path), self._manifest_fingerprint, slots, data_files=self._slab_paths
            )
            for group, places in _by_group(self._lost_commits).items():
                manifest.free(group, places)
            manifest.close(SYNC_SECONDS)
        elif self._manifest_path:
            os.unlink(self._manifest_path)
        for rank, slab in slabs.items():
            for group, places in _by_group([*self._bad_records, *self._leftovers[rank]]).items():
                slab.erase(group, places)
        for path in self._leftover_files:
            with contextlib.suppress(FileNotFoundError):  # the manifest's own opening removed it
                os.unlink(path)


def _by_group(places: Sequence[_Place]) -> dict[int, list[int]]:
    slots: defaultdict[int, list[int]] = defaultdict(list)
    for group, slot in places:
        slots[group].append(slot)
    return dict(slots)
