"""The ledger's side of the disk: what its manifest is told, and in which order, and what it told at the start."""

from __future__ import annotations

import logging
import threading
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from kvoffload import _C
from kvoffload.config import manifest_bytes
from kvoffload.errors import KVOffloadError
from kvoffload.messages import Hello

log = logging.getLogger("kvoffload")

RESET_SECONDS = 10.0
OPEN_SECONDS = 30.0
RUN_KEYS = 32  # committed one after the other: about as many as a demotion has

Chunk = tuple[int, bytes, int, int]  # group, key, slot, sequence


class LedgerDir:
    """The manifest of one cache, with the lock on the directory it lies in.

    root, fingerprint, dp: the namespace, see `DiskOptions`. disk_bytes, slot_bytes: of a rank's slabs; slots have other
    numbers where an extent has another size, so its size is part of what a manifest must agree with. data_files: what
    must be on the medium before a commit counts as durable there.
    """

    def __init__(
        self, root: str, fingerprint: str, dp: int, *, disk_bytes: int, slot_bytes: Sequence[int],
        data_files: Sequence[str] = (),
    ) -> None:  # fmt: skip
        self._namespace: _C.NamespaceDir | None = _C.NamespaceDir(root, fingerprint, dp, "ledger", OPEN_SECONDS)
        plan = _C.plan_extents(disk_bytes, list(slot_bytes))
        full, rest = divmod(disk_bytes, plan.extent_bytes)
        slots = [
            full * plan.slots_per_extent(group) + (plan.usable_slots(group, full, disk_bytes) if rest else 0)
            for group in range(len(slot_bytes))
        ]
        try:
            self.manifest = _C.Manifest(
                self._namespace.path, f"{fingerprint} {plan.extent_bytes}", slots, data_files=list(data_files),
                most_bytes=manifest_bytes(disk_bytes, slot_bytes),
            )  # fmt: skip
        except BaseException:  # it keeps this frame, and so the lock, for as long as somebody keeps it
            self._namespace = None
            raise

    def close(self, timeout_seconds: float) -> None:
        """What is committed becomes durable, and the directory is free for others.

        Raises WaitTimeout: committed it is all the same, but the directory stays locked.
        """
        self.manifest.close(timeout_seconds)
        self._namespace = None


class DiskNotes:
    """Passes what a directory knows of the disk on to its manifest, in the order in which it came about.

    Nothing may be written to a disk slot before the manifest has its `free`: call `note` before a plan is handed out.
    A key counts after a crash once the manifest has its `commit`: call `note` after reports.
    """

    def __init__(self, directory: _C.Directory, manifest: _C.Manifest) -> None:
        self._directory, self._manifest = directory, manifest
        self._order = threading.Lock()  # from taking events to having appended them
        self._start = threading.Lock()  # what was found is made ready before a reset or not at all
        self._epoch: int = manifest.stats()["epoch"]  # with resets that the manifest has not got round to
        self._found: dict[str, Any] | None = None  # by the manifest at its opening
        self._opened = False

    def open(self, disk_bytes: int, hellos: Sequence[Hello]) -> None:
        """Makes what the manifest knows ready, if every rank has the slab it speaks of; else none of it, ever."""
        with self._start:
            found = self._take_found()
            self._directory.open_disk(disk_bytes, self._epoch, self._manifest.first_sequence)
            if found["not_believed"]:
                log.warning("manifest: %s", found["not_believed"])
            strangers = [hello.rank for hello in hellos if hello.slab_identity != self._manifest.identity]
            if strangers:
                self._begin_epoch()
            else:
                self._restore(found["chunks"])
            self._opened = True
        if not strangers:
            return
        if found["chunks"]:
            log.warning(
                "rank %s has not the files that the manifest speaks of: %d chunks on disk are dropped on all ranks",
                ", ".join(map(str, strangers)), len(found["chunks"]),
            )  # fmt: skip
        try:
            self._manifest.reset(RESET_SECONDS)
        except KVOffloadError as error:  # nothing of it was made ready, and host memory can be used
            log.warning("manifest: what is stored now may be a miss after a restart: %s", error)

    def _take_found(self) -> dict[str, Any]:
        if self._found is None:
            self._found = self._manifest.take_opening()
        found, self._found = self._found, {"chunks": [], "not_believed": ""}
        return found

    def _restore(self, chunks: Sequence[Chunk]) -> None:
        """The oldest first, so that it goes first; but a job's last key before its first (see `Directory`)."""
        newest = {(group, key): slot for group, key, slot, _ in chunks}  # of two commits of one key the later counts
        lost = defaultdict(list)
        for start in range(0, len(chunks), RUN_KEYS):
            for group, key, slot, sequence in reversed(chunks[start : start + RUN_KEYS]):
                if newest[group, key] != slot or not self._directory.restore(group, slot, key, sequence):
                    lost[group].append(slot)
        for group, slots in lost.items():
            self._manifest.free(group, slots)
        log.info("manifest: %d chunks on disk are ready, %d are not", len(chunks), sum(map(len, lost.values())))

    def forget(self, group: int, keys: Sequence[bytes]) -> int:
        """Keys that were found and not made ready yet, because not all ranks have said hello; how many."""
        if self._opened:
            return 0
        with self._start:
            if self._opened:
                return 0
            found = self._take_found()
            names = set(keys)
            gone = [chunk for chunk in found["chunks"] if chunk[0] == group and chunk[1] in names]
            if gone:
                self._manifest.free(group, [slot for _, _, slot, _ in gone])
                left = [chunk for chunk in found["chunks"] if chunk[0] != group or chunk[1] not in names]
                found["chunks"] = left
            self._found = found
            return len({key for _, key, _, _ in gone})

    def note(self) -> None:
        """Appends everything that came about so far; never waits for the medium."""
        with self._order:
            freed, committed, epoch = self._directory.take_disk_events()
            slots: defaultdict[int, list[int]] = defaultdict(list)
            for group, slot in freed:
                slots[group].append(slot)
            for group, freed_slots in slots.items():
                self._manifest.free(group, freed_slots)
            records: defaultdict[int, list[tuple[bytes, int, int]]] = defaultdict(list)
            for group, slot, key, sequence in committed:
                records[group].append((key, slot, sequence))
            for group, rows in records.items():
                self._manifest.commit(
                    epoch, group, [row[0] for row in rows], [row[1] for row in rows], [row[2] for row in rows]
                )

    def reset(self, timeout_seconds: float) -> None:
        """A new epoch in both; returns when it is durable. Raises WaitTimeout."""
        with self._start:
            self._take_found()
            self._begin_epoch()
        self._manifest.reset(timeout_seconds)

    def _begin_epoch(self) -> None:
        """In the directory at once. The manifest follows with its reset, which may end long after it was given up."""
        self._directory.reset()
        self._epoch += 1
