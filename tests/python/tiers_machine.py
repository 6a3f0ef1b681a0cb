"""For test_tiers_model.py: two tiers, ranks and groups, restarts, and everything that can go wrong at any moment. The
ledger must do what the simple model does, and slots must hold what they are believed to hold, on every rank.

Each rank fails, wholly or in one key, reports late or never as Hypothesis likes; records rot; the ledger is closed or
killed and opened again on its manifest, with a smaller disk, or without the files of one rank.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tiers_bytes import ROTTEN, RankBytes, TierBytes
from tiers_model import DiskModel, TierModel, TiersModel

from kvoffload import _C
from kvoffload.errors import InvalidInput
from kvoffload.ledger import Hold, Ledger
from kvoffload.messages import FinishedJob, Hello, Job, JobResult, Results

UNIT = 4096
SLOT_UNITS = (1, 2)
SLOT_BYTES = tuple(units * UNIT for units in SLOT_UNITS)
HOST_BYTES = 80 * UNIT + 77
DISK_UNITS = (90, 80, 64)  # all with the same extents, so that slot numbers mean the same
RANKS = range(2)
KEYS = [i.to_bytes(16, "big") for i in range(48)]
DEADLINE_SECONDS = 10.0
MEMORY = Path("/dev/shm")  # many manifests are opened, and each opening is synced

key_lists = st.one_of(
    st.tuples(st.integers(0, len(KEYS) - 1), st.integers(0, 20)).map(lambda run: KEYS[run[0] : run[0] + run[1]]),
    st.lists(st.sampled_from(KEYS), max_size=6),
)
groups = st.integers(0, len(SLOT_BYTES) - 1)
ranks = st.sampled_from(RANKS)
choices = st.integers(0, 1000)


def extent_bytes_of(tier_bytes: int) -> int:
    return _C.plan_extents(tier_bytes, list(SLOT_BYTES)).extent_bytes


class TiersMachine(RuleBasedStateMachine):
    policy, admission = "lru", "all"

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.root = tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None)
        self.folder = Path(self.root.name, "0")
        self.folder.mkdir()
        self.identities = [0 for _ in RANKS]  # of the slabs
        self.bytes = [self.no_bytes() for _ in RANKS]
        self.epoch, self.next_sequence, self.committed = 1, 1, 0
        self.kills = self.restored = 0

    def no_bytes(self, disk: TierBytes | None = None) -> RankBytes:
        tiers = [TierBytes(extent_bytes_of(size) // UNIT, SLOT_UNITS) for size in (HOST_BYTES, DISK_UNITS[0] * UNIT)]
        return RankBytes(tiers[0], disk or tiers[1])

    @initialize(ready=st.lists(st.integers(0, HOST_BYTES), min_size=2, max_size=2), whole=st.booleans())
    def start(self, ready: list[int], whole: bool) -> None:
        self.open([HOST_BYTES] * 2 if whole else ready, DISK_UNITS[0])
        self.epoch += 1  # new slabs have no identity yet

    def open(self, ready: list[int], disk_units: int, reset_first: bool = False) -> None:
        disk_bytes = disk_units * UNIT
        disk = DiskModel(extent_bytes_of(disk_bytes), SLOT_BYTES)
        disk.ready_bytes = disk_bytes
        host = TierModel(extent_bytes_of(HOST_BYTES), SLOT_BYTES)
        self.model = TiersModel(len(RANKS), host, disk, self.admission == "second_touch")
        self.slots = [max(set().union(*(disk.slots_of(i, group) for i in disk.unlent()))) + 1 for group in disk.groups]
        self.manifest = _C.Manifest(str(self.folder), "a model", self.slots, sync_seconds=60)
        assert self.committed < self.manifest.first_sequence <= self.next_sequence
        self.next_sequence = self.manifest.first_sequence
        self.ledger = Ledger(
            ranks=len(RANKS), deadline_seconds=DEADLINE_SECONDS, clock=lambda: self.now, manifest=self.manifest,
            admission=self.admission, policy=self.policy,
        )  # fmt: skip
        self.bytes = [self.no_bytes(rank.disk) for rank in self.bytes]
        self.holds: list[Hold] = []
        self.ready = [0 for _ in RANKS]
        if reset_first:
            self.ledger.reset()
        for rank in RANKS:
            self.say_hello(rank, ready[rank])
        self.identities = [self.manifest.identity for _ in RANKS]

    def say_hello(self, rank: int, ready_bytes: int) -> None:
        self.ready[rank] = max(self.ready[rank], ready_bytes)
        self.ledger.hello(
            Hello(
                rank, SLOT_BYTES, SLOT_UNITS, HOST_BYTES, self.ready[rank], "f", pinned=False, device="host",
                disk_bytes=self.model.disk.ready_bytes, slab_identity=self.identities[rank],
            )
        )  # fmt: skip
        self.model.host.ready_bytes = min(self.ready)

    @rule(
        kill=st.booleans(), disk_units=st.sampled_from(DISK_UNITS), missing=st.sampled_from([None, None, None, *RANKS]),
        ready=st.sampled_from((HOST_BYTES, HOST_BYTES // 2)), reset_first=st.integers(0, 5),
    )  # fmt: skip
    def restart(self, kill: bool, disk_units: int, ready: int, missing: int | None, reset_first: int) -> None:
        before = self.model
        if kill:  # what the old process may still do, it does to another file
            folder = self.folder.with_name(str(int(self.folder.name) + 1))
            shutil.copytree(self.folder, folder)
            self.folder = folder
            self.kills += 1
        self.manifest.close(60)
        if missing is not None:
            self.bytes[missing] = self.no_bytes()
            self.identities[missing] = 0
        resets = (missing is not None) + (reset_first == 0)
        self.open([ready, ready], disk_units, reset_first == 0)
        self.epoch += resets
        self.model.version = before.version + resets
        for entry in before.disk.ready() if not resets else []:
            if entry.slot < self.slots[entry.group]:
                self.model.disk.restore(entry.group, entry.key, entry.slot)
                self.restored += 1

    @rule(rank=ranks, ready_bytes=st.integers(0, HOST_BYTES))
    def grow(self, rank: int, ready_bytes: int) -> None:
        self.say_hello(rank, ready_bytes)

    # Plans. From here on the slots to be filled hold nothing whole on any rank.

    def planned(self, job: Job | None) -> None:
        for rank in self.bytes if job else []:
            rank.begin(self.model.jobs[job.id])

    def deadline(self) -> float:
        return self.now + DEADLINE_SECONDS

    @rule(group=groups, keys=key_lists)
    def store(self, group: int, keys: list[bytes]) -> None:
        n = SLOT_UNITS[group]
        blocks = list(range(100, 100 + len(keys) * n))
        job = self.ledger.plan_store(keys, blocks, group)
        slots = list(job.slots) if job else []
        accepted = self.model.plan_store(group, keys, self.deadline(), job.id if job else 0, slots)
        if job:
            expected = tuple(block for i in accepted for block in blocks[i * n : i * n + n])
            assert job == Job(job.id, "store", group, expected, tuple(slots))
        self.planned(job)

    @rule(group=groups, start=st.integers(0, len(KEYS) - 1), most=st.integers(1, 30))
    def store_and_demote(self, group: int, start: int, most: int) -> None:
        """Fills the tiers, so that evictions and moving extents are common."""
        self.store(group, KEYS[start:])
        self.everybody_reports()
        self.lookup(group, KEYS[start:])
        self.demote(group, most)
        self.everybody_reports()

    def everybody_reports(self) -> None:
        for rank in RANKS:
            self.all_reports_of_a_rank(rank)

    def ready_keys(self, tier: TierModel, group: int, choice: int, count: int) -> list[bytes]:
        """Random lists rarely hit: one whose keys are all there."""
        ready = [key for key in KEYS if tier.is_ready(group, key)]
        return ready[choice % max(len(ready), 1) :][:count]

    @rule(group=groups, choice=choices, count=st.integers(1, 10), others=key_lists)
    def load(self, group: int, choice: int, count: int, others: list[bytes]) -> None:
        keys = others if choice % 8 == 0 else self.ready_keys(self.model.host, group, choice, count)
        blocks = tuple(range(len(keys) * SLOT_UNITS[group]))
        job = self.ledger.plan_load(keys, blocks, group)
        slots = self.model.plan_load(group, keys, self.deadline(), job.id if job else 0)
        assert job == (slots and Job(job.id, "load", group, blocks, tuple(slots)))

    @rule(group=groups, choice=choices, count=st.integers(1, 20), rank=ranks)
    def load_that_fails(self, group: int, choice: int, count: int, rank: int) -> None:
        """Host memory loses keys while all else that knows them goes on."""
        before = set(self.model.jobs)
        host, disk = self.model.host, self.model.disk
        keys = self.ready_keys(host, group, choice, count)
        being_demoted = [key for key in keys if disk.find(group, key) and not disk.is_ready(group, key)]
        self.load(group, 0, count, being_demoted or keys)
        self.report(rank, [job_id for job_id in self.model.jobs if job_id not in before], ok=False)
        self.lookup(group, being_demoted or keys)

    @rule(group=groups, choice=choices, count=st.integers(1, 10), others=key_lists)
    def promote(self, group: int, choice: int, count: int, others: list[bytes]) -> None:
        on_disk = [key for key in KEYS if self.model.disk.find(group, key)]
        keys = (others, on_disk[:count], self.ready_keys(self.model.disk, group, choice, count))[choice % 3]
        job = self.ledger.plan_promote(keys, group)
        slots = list(job.slots) if job else []
        moved = self.model.plan_promote(group, keys, self.deadline(), job.id if job else 0, slots)
        if job:
            names, disk_slots = zip(*moved, strict=True)
            assert job == Job(job.id, "promote", group, (), tuple(slots), 0, disk_slots, names, epoch=self.epoch)
        self.planned(job)

    @rule(group=groups, most=st.integers(0, 30))
    def demote(self, group: int, most: int) -> None:
        job = self.ledger.plan_demote(most, group)
        disk_slots = list(job.disk_slots) if job else []
        job_id, sequence = (job.id, job.sequence) if job else (0, 0)
        moved = self.model.plan_demote(group, most, self.deadline(), job_id, disk_slots, sequence)
        if job:
            names, slots = zip(*moved, strict=True)
            expected = Job(job_id, "demote", group, (), slots, 0, tuple(disk_slots), names, sequence, self.epoch)
            assert job == expected
            assert sequence == self.next_sequence
            self.next_sequence += len(names)
        self.planned(job)

    # Reports

    def move(self, rank: int, job_id: int, ok: bool, one_fails: int | None, untried: bool) -> JobResult:
        """What the rank does and says of it."""
        job = self.model.jobs.get(job_id)
        if job is None or rank in job.reported or not ok:
            return JobResult(job_id, ok, 0, 0.0, untried=tuple(range(len(KEYS)) if untried else ()))
        return self.bytes[rank].move(job, job_id, one_fails)

    def report(
        self, rank: int, job_ids: list[int], ok: bool = True, one_fails: int | None = None, untried: bool = False
    ) -> None:
        results = tuple(self.move(rank, job_id, ok, one_fails, untried) for job_id in job_ids)
        expected = []
        for result in results:
            job = self.model.jobs.get(result.job)
            finished = self.model.report(rank, result.job, ok, result.failed, untried)
            expected += [FinishedJob(*job) for job in finished]
            for i, entry in enumerate(job.fills if finished and job.kind == "demote" else []):
                self.committed = max(self.committed, job.sequence + i if entry.state == "ready" else 0)
        assert self.ledger.apply(Results(rank, results)) == expected

    @precondition(lambda self: self.model.jobs)
    @rule(choice=choices, rank=ranks, how=st.sampled_from(["ok", "ok", "ok", "one fails", "fails", "refused"]))
    def one_report(self, choice: int, rank: int, how: str) -> None:
        jobs = list(self.model.jobs)
        ok, untried = how not in ("fails", "refused"), how == "refused"
        self.report(rank, [jobs[choice % len(jobs)]], ok, choice if how == "one fails" else None, untried)

    @rule(rank=ranks)
    def all_reports_of_a_rank(self, rank: int) -> None:
        self.report(rank, [job_id for job_id, job in self.model.jobs.items() if rank not in job.reported])

    @rule(rank=ranks, job_id=st.integers(-1, 50))
    def unknown_report(self, rank: int, job_id: int) -> None:
        if job_id not in self.model.jobs:
            self.report(rank, [job_id])

    @precondition(lambda self: self.model.disk.ready())
    @rule(choice=choices, rank=ranks)
    def rot(self, choice: int, rank: int) -> None:
        records = self.model.disk.ready()
        self.bytes[rank].disk.spoil(records[choice % len(records)], ROTTEN)

    # All else

    @rule(group=groups, keys=key_lists)
    def lookup(self, group: int, keys: list[bytes]) -> None:
        hit = self.ledger.lookup(keys, group)
        assert (hit.host, hit.disk) == self.model.lookup(group, keys)

    @rule(group=groups, keys=key_lists)
    def hold(self, group: int, keys: list[bytes]) -> None:
        hold = self.ledger.hold(keys, group)
        assert hold.keys_held == self.model.hold(group, keys)
        self.holds.append(hold)

    @precondition(lambda self: self.holds)
    @rule(choice=choices)
    def release(self, choice: int) -> None:
        index = choice % len(self.holds)
        self.holds.pop(index).release()
        self.model.release(index)

    @rule(seconds=st.floats(0, 12))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        assert self.ledger.expire() == [FinishedJob(*job) for job in self.model.expire(self.now)]

    @precondition(lambda self: self.model.jobs)
    @rule(choice=choices)
    def abandon(self, choice: int) -> None:
        job_id = list(self.model.jobs)[choice % len(self.model.jobs)]
        if self.model.jobs[job_id].reported:
            with pytest.raises(InvalidInput, match="1 of 2 ranks"):
                self.ledger.abandon(job_id)
        else:
            self.ledger.abandon(job_id)
            self.model.abandon(job_id)

    @rule(group=groups, keys=key_lists)
    def forget(self, group: int, keys: list[bytes]) -> None:
        assert self.ledger.forget(keys, group) == self.model.forget(group, keys)

    @rule(really=st.integers(0, 3))
    def reset(self, really: int) -> None:
        if really == 0:
            self.ledger.reset()
            self.model.reset()
            self.epoch += 1

    # What must hold after every step

    @invariant()
    def bytes_are_right(self) -> None:
        for rank in RANKS:
            self.bytes[rank].check(self.model, rank)

    @invariant()
    def same_as_the_model(self) -> None:
        self.ledger.check()
        stats, model = self.ledger.stats(), self.model
        self.same_tier(stats, model.host, on_disk=False)
        self.same_tier(stats["disk"], model.disk, on_disk=True)
        counters = {name: count for name, count in model.counters.items() if name}
        counters["evicted_keys"] = model.host.counters["evicted_keys"]
        counters["disk_evicted_keys"] = model.disk.counters["evicted_keys"]
        assert {name: stats[name] for name in counters} == counters
        gauges = {
            "epoch": self.epoch,
            "jobs_in_flight": len(model.jobs),
            "given_up_jobs": sum(job.given_up for job in model.jobs.values()),
            "holds": sum(entries != [] for entries in model.holds),
            "waiting_for_disk_keys": sum(map(len, model.waiting)),
        }
        assert {name: stats[name] for name in gauges} == gauges

    def same_tier(self, stats: dict, tier: TierModel, on_disk: bool) -> None:
        assert stats["tier_off"] == tier.tier_off()
        assert stats["ready_bytes"] == tier.ready_bytes
        assert stats["quarantined_bytes"] == tier.quarantined_bytes()
        assert stats["free_extents"] == len(tier.unlent())
        for group, counts in enumerate(stats["groups"]):
            states = self.ledger._directory.states(group, KEYS, on_disk)
            assert states == tier.states(group, KEYS)
            in_map = [entry.state for (owner, _), entry in tier.visible.items() if owner == group]
            assert counts["capacity_slots"] == len(tier.capacity(group))
            assert counts["free_slots"] == len(tier.free(group))
            assert counts["quarantined_slots"] == len(tier.quarantined(group))
            assert (counts["ready_keys"], counts["filling_keys"]) == (in_map.count("ready"), in_map.count("filling"))

    def teardown(self) -> None:
        """Once everybody has reported and let go, nothing is owned."""
        if not hasattr(self, "ledger"):
            return self.root.cleanup()
        for index in reversed(range(len(self.holds))):
            self.release(index)
        self.everybody_reports()
        self.same_as_the_model()
        stats = self.ledger.stats()
        for tier in (stats, stats["disk"]):
            assert tier["quarantined_bytes"] == tier["filling_keys"] == 0
            assert sum(counts["used_slots"] for counts in tier["groups"]) == tier["ready_keys"]
        self.manifest.close(60)
        return self.root.cleanup()
