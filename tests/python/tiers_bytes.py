"""What the slots of a rank hold, for tiers_machine.py: a mover of two tiers, and a disk that may rot.

A slot is written when its rank reports, the latest moment there is, and torn from when the job is planned, the
earliest. What a job in flight reads must be right at all times between.
"""

from __future__ import annotations

from collections.abc import Sequence

from ledger_model import Entry
from tiers_model import TiersJob, TiersModel

from kvoffload.messages import JobResult

TORN, ROTTEN = "torn", "rotten"

Part = tuple[int, bytes, int, int] | str  # group, key, version, which of its units; or TORN or ROTTEN


class TierBytes:
    """One tier of one rank: its bytes by units, so that slots of two groups in the same place are seen."""

    def __init__(self, extent_units: int, slot_units: tuple[int, ...]) -> None:
        self.extent_units, self.slot_units = extent_units, slot_units
        self.units: dict[int, Part] = {}

    def place(self, entry: Entry) -> range:
        size = self.slot_units[entry.group]
        per_extent = self.extent_units // size
        start = entry.slot // per_extent * self.extent_units + entry.slot % per_extent * size
        return range(start, start + size)

    def write(self, entry: Entry, parts: Sequence[Part]) -> None:
        self.units.update(zip(self.place(entry), parts, strict=True))

    def spoil(self, entry: Entry, how: str) -> None:
        self.write(entry, [how] * self.slot_units[entry.group])

    def read(self, entry: Entry) -> list[Part]:
        return [self.units.get(unit, TORN) for unit in self.place(entry)]

    def content(self, entry: Entry, version: int) -> list[Part]:
        return [(entry.group, entry.key, version, i) for i in range(self.slot_units[entry.group])]

    def is_rotten(self, entry: Entry) -> bool:
        return ROTTEN in self.read(entry)

    def holds(self, entry: Entry, version: int) -> bool:
        return self.read(entry) == self.content(entry, version)


class RankBytes:
    def __init__(self, host: TierBytes, disk: TierBytes) -> None:
        self.host, self.disk = host, disk

    def begin(self, job: TiersJob) -> None:
        for entry in job.fills:
            (self.disk if job.kind == "demote" else self.host).spoil(entry, TORN)

    def move(self, job: TiersJob, job_id: int, one_fails: int | None) -> JobResult:
        failed = set() if one_fails is None else {one_fails % len(job.fills or job.reads)}
        for i, entry in enumerate(job.fills):
            if i in failed:
                continue
            if job.kind == "store":
                self.host.write(entry, self.host.content(entry, job.version))
            elif job.kind == "demote":
                self.disk.write(entry, self.host.read(job.reads[i]))
            elif self.disk.is_rotten(job.reads[i]):
                failed.add(i)
            else:
                self.host.write(entry, self.disk.read(job.reads[i]))
        return JobResult(job_id, True, 0, 0.0, failed=tuple(sorted(failed)))

    def check(self, model: TiersModel, rank: int) -> None:
        """All that is ready is there, and what is being read, too; but for records that rot has hit."""
        for entry in model.host.ready():
            assert self.host.holds(entry, model.version)
        for entry in model.disk.ready():
            assert self.disk.holds(entry, model.version) or self.disk.is_rotten(entry)
        for job in model.jobs.values():
            tier = self.disk if job.kind == "promote" else self.host
            for entry in job.reads if rank not in job.reported else []:
                assert tier.holds(entry, job.version) or tier.is_rotten(entry)
