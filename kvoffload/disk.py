"""The mover's disk: where its slabs lie, and records between slots of the arena and there. Decides nothing."""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from kvoffload import _C
from kvoffload.config import check_flag, format_size, manifest_bytes, parse_size
from kvoffload.errors import InvalidInput
from kvoffload.layout import KVLayout
from kvoffload.messages import Job, JobResult

log = logging.getLogger("kvoffload")

IO = ("auto", "io_uring", "threads")
# For locks that others hold while they remove files.
OPEN_SECONDS = 30.0
# A disk that is off after a row of failures is tried again so often.
RETRY_SECONDS = 10.0

Paths = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]


@dataclass(frozen=True, slots=True)
class DiskOptions:
    """Checked options of a disk tier.

    directories: one, or several (of several drives) over which slots are striped. size_bytes: of all files together,
    the manifest included. namespace: whatever changes the KV's bytes and is not in the keys; what was kept under
    another one, or with another layout, is foreign and gives way. dp: which of several engines that share the
    directories. io: "auto", "io_uring" or "threads". network: whether file systems of other machines are allowed.

    >>> DiskOptions.parse("/nvme/kv", "1TiB").size_bytes == 1 << 40
    True
    """

    directories: tuple[str, ...]
    size_bytes: int
    namespace: str = ""
    dp: int = 0
    io: str = "auto"
    network: bool = False

    @classmethod
    def parse(
        cls, disk: Paths, disk_size: int | str | None, *, namespace: str = "", dp: int = 0, disk_io: str = "auto",
        disk_network: bool = False,
    ) -> DiskOptions:  # fmt: skip
        """Raises InvalidInput that names the option, what was given and what is allowed."""
        given = [disk] if isinstance(disk, str | os.PathLike) else list(disk)
        directories = tuple(os.path.abspath(os.fspath(path)) for path in given)
        if not directories or len(set(directories)) < len(directories):
            raise InvalidInput(f"disk is {disk!r}; give a directory, or several different ones")
        if disk_size is None:
            raise InvalidInput('disk_size is missing: how much of the disk may be taken, in bytes or like "1TiB"')
        if disk_io not in IO:
            raise InvalidInput(f"disk_io is {disk_io!r}; allowed: {', '.join(IO)}")
        if type(dp) is not int or dp < 0:
            raise InvalidInput(f"dp is {dp!r}; allowed: a whole number from 0 on")
        if not isinstance(namespace, str):
            raise InvalidInput(f"namespace is {namespace!r}; give text, such as a model's name and revision")
        network = check_flag(disk_network, "disk_network")
        return cls(directories, parse_size(disk_size, "disk_size"), namespace, dp, disk_io, network)

    def fingerprint(self, layout: KVLayout) -> str:
        """Of all that changes the bytes of a record: names the namespace's directory."""
        return hashlib.sha256(f"{layout.fingerprint}\0{self.namespace}".encode()).hexdigest()[:32]


class Disk:
    """One rank's slabs, open. The arena is used until `close` has returned without WaitTimeout."""

    def __init__(self, arena: _C.Arena, layout: KVLayout, rank: int, options: DiskOptions) -> None:
        self.options = options
        self._off = ""  # why, as the log knows it
        fingerprint = options.fingerprint(layout)
        self._namespaces = [
            _C.NamespaceDir(root, fingerprint, options.dp, f"rank{rank}", OPEN_SECONDS) for root in options.directories
        ]
        try:
            room_bytes = len(self._namespaces) * min(map(self._make_room, self._namespaces))
            self.tier = _C.DiskTier(
                arena, [namespace.path for namespace in self._namespaces], fingerprint, rank,
                [group.slot_bytes for group in layout.groups], [group.payload_bytes for group in layout.groups],
                room_bytes - manifest_bytes(options.size_bytes, [group.slot_bytes for group in layout.groups]),
                io=options.io, network=options.network, retry_seconds=RETRY_SECONDS,
            )  # fmt: skip
        except BaseException:  # it keeps this frame, and so the locks, for as long as somebody keeps it
            self._namespaces.clear()
            raise

    def _make_room(self, namespace: _C.NamespaceDir) -> int:
        """How much of its directory's share is left beside other caches that are in use."""
        share = self.options.size_bytes // len(self._namespaces)
        room = namespace.make_room(share, share, OPEN_SECONDS)
        if room["removed"]:
            freed = format_size(room["removed_bytes"])
            log.info("kvoffload: %s of other caches removed to make room: %s", freed, ", ".join(room["removed"]))
        if room["foreign_bytes"] >= share:
            raise InvalidInput(
                f"disk_size leaves {format_size(share)} for {namespace.path}, and other caches in use take "
                f"{format_size(room['foreign_bytes'])} of it: {', '.join(room['in_use'])}; raise disk_size"
            )
        return share - int(room["foreign_bytes"])

    def submit(self, job: Job, timeout_seconds: float) -> None:
        """Queue a demotion or promotion; its result comes by `poll`. Raises QueueFull, Unsupported: it is off."""
        slots, disk_slots, keys = list(job.slots), list(job.disk_slots), list(job.keys)
        if job.kind == "demote":
            self.tier.demote(
                job.id, job.group, slots, disk_slots, keys, job.sequence, job.epoch, timeout_seconds
            )  # fmt: skip
        else:
            self.tier.promote(job.id, job.group, slots, disk_slots, keys, job.epoch, timeout_seconds)

    def poll(self) -> tuple[JobResult, ...]:
        """Results of jobs that ended since the last call. A job fails as a whole when none of its records made it."""
        results = tuple(
            JobResult(job, bool(moved), moved, seconds, error, tuple(failed), tuple(untried))
            for job, moved, seconds, error, failed, untried in self.tier.poll()
        )
        if self._off or any(result.error for result in results):
            self._log_health()
        return results

    def _log_health(self) -> None:
        before, self._off = self._off, str(self.tier.stats()["off"])
        if self._off and not before:
            log.warning("kvoffload: the disk is off, and tried again every %g s: %s", RETRY_SECONDS, self._off)
        elif before and not self._off:
            log.warning("kvoffload: the disk works again")

    def close(self, timeout_seconds: float) -> None:
        """What waits is a miss, what is under way ends; then the directories are free for others.

        Raises WaitTimeout: it goes on, and the arena must be left to it.
        """
        self.tier.close(timeout_seconds)
        self._namespaces.clear()

    def stats(self) -> dict[str, Any]:
        """Counters and gauges of the tier, and under `report` how the disk is used."""
        return {**self.tier.stats(), "report": self.tier.report(), "bytes": self.tier.bytes, "paths": self.tier.paths}
