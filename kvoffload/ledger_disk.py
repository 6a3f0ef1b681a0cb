"""The ledger's side of the disk: what its manifest is told, and in which order, and what it told at the start."""

from __future__ import annotations

import logging
import threading
from collections import defaultdict
from collections.abc import Sequence

from kvoffload import _C
from kvoffload.messages import Hello

log = logging.getLogger("kvoffload")

RESET_SECONDS = 10.0
OPEN_SECONDS = 30.0


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
        self.manifest = _C.Manifest(
            self._namespace.path, f"{fingerprint} {plan.extent_bytes}", slots, data_files=list(data_files)
        )

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
        self._epoch = threading.RLock()  # what was found is made ready before a reset or not at all

    def open(self, disk_bytes: int, hellos: Sequence[Hello]) -> None:
        """Makes what the manifest knows ready, if every rank has the slab it speaks of; else none of it, ever."""
        with self._epoch:
            self._open(disk_bytes, hellos)

    def _open(self, disk_bytes: int, hellos: Sequence[Hello]) -> None:
        opening = self._manifest.take_opening()
        self._directory.open_disk(disk_bytes, self._manifest.stats()["epoch"], self._manifest.first_sequence)
        if opening["not_believed"]:
            log.warning("manifest: %s", opening["not_believed"])
        strangers = [hello.rank for hello in hellos if hello.slab_identity != self._manifest.identity]
        chunks = opening["chunks"]
        if strangers:
            if chunks:
                log.warning(
                    "rank %s has not the files that the manifest speaks of: %d chunks on disk are dropped on all ranks",
                    ", ".join(map(str, strangers)), len(chunks),
                )  # fmt: skip
            self.reset(RESET_SECONDS)
            return
        lost = defaultdict(list)
        for group, key, slot, sequence in reversed(chunks):  # of two commits of one key the later counts
            if not self._directory.restore(group, slot, key, sequence):
                lost[group].append(slot)
        for group, slots in lost.items():
            self._manifest.free(group, slots)
        log.info("manifest: %d chunks on disk are ready, %d are not", len(chunks), sum(map(len, lost.values())))

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
        with self._epoch:
            self._directory.reset()
            self._manifest.take_opening()  # found at start and, before all ranks have said hello, not made ready yet
            self._manifest.reset(timeout_seconds)
