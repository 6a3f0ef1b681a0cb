"""Two ranks, three groups, everything that can go wrong at any moment: the ledger must do what the simple model does.

Each rank fails, reports late or never as Hypothesis likes; plans are abandoned, epochs reset, capacity grows.
"""

from __future__ import annotations

import itertools
import random

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from ledger_model import LedgerModel

from kvoffload import _C
from kvoffload.errors import InvalidInput
from kvoffload.ledger import Hold, Ledger
from kvoffload.messages import FinishedJob, Hello, Job, JobResult, Results

UNIT = 4096
SLOT_BYTES = (UNIT, 2 * UNIT, 3 * UNIT)
HOST_BYTES = 100 * UNIT + 77
BLOCKS_PER_CHUNK = (1, 2, 3)
RANKS = 2
KEYS = [i.to_bytes(16, "big") for i in range(60)]
DEADLINE_SECONDS = 10.0

# An ordered run of keys (a prefix's continuation), now and then with a repetition or in another order.
key_lists = st.one_of(
    st.tuples(st.integers(0, len(KEYS) - 1), st.integers(0, 30)).map(lambda run: KEYS[run[0] : run[0] + run[1]]),
    st.lists(st.sampled_from(KEYS), max_size=6),
)
groups = st.integers(0, len(SLOT_BYTES) - 1)
choices = st.integers(0, 1000)


class LedgerMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.ledger = Ledger(ranks=RANKS, deadline_seconds=DEADLINE_SECONDS, clock=lambda: self.now, policy="lru")
        extent_bytes = _C.plan_extents(HOST_BYTES, list(SLOT_BYTES)).extent_bytes
        self.model = LedgerModel(RANKS, extent_bytes, SLOT_BYTES)
        self.holds: list[Hold] = []
        self.ready = [0] * RANKS

    def say_hello(self, rank: int, ready_bytes: int) -> None:
        self.ready[rank] = max(self.ready[rank], ready_bytes)
        self.ledger.hello(
            Hello(rank, SLOT_BYTES, BLOCKS_PER_CHUNK, HOST_BYTES, self.ready[rank], "f", pinned=False, device="host")
        )
        self.model.ready_bytes = min(self.ready)

    @initialize(ready=st.lists(st.integers(0, HOST_BYTES), min_size=RANKS, max_size=RANKS), whole=st.booleans())
    def start(self, ready: list[int], whole: bool) -> None:
        for rank in range(RANKS):
            self.say_hello(rank, HOST_BYTES if whole else ready[rank])

    @rule(rank=st.integers(0, RANKS - 1), ready_bytes=st.integers(0, HOST_BYTES))
    def grow(self, rank: int, ready_bytes: int) -> None:
        self.say_hello(rank, ready_bytes)

    @rule(group=groups, keys=key_lists)
    def store(self, group: int, keys: list[bytes]) -> None:
        blocks = list(range(100, 100 + len(keys) * BLOCKS_PER_CHUNK[group]))
        job = self.ledger.plan_store(keys, blocks, group)
        slots = list(job.slots) if job else []
        deadline = self.now + DEADLINE_SECONDS
        accepted = self.model.plan_store(group, keys, deadline, job.id if job else 0, slots)
        assert len(accepted) == len(slots)
        if job:
            n = BLOCKS_PER_CHUNK[group]
            expected = tuple(block for i in accepted for block in blocks[i * n : i * n + n])
            assert job == Job(job.id, "store", group, expected, tuple(slots))

    @rule(group=groups, start=st.integers(0, len(KEYS) - 1))
    def store_and_report(self, group: int, start: int) -> None:
        """Fills the tier, so that evictions and moving extents are common."""
        self.store(group, KEYS[start:])
        for rank in range(RANKS):
            self.all_reports_of_a_rank(rank)

    @rule(group=groups, keys=key_lists)
    def load(self, group: int, keys: list[bytes]) -> None:
        self.load_keys(group, keys)

    @rule(group=groups, start=choices, count=st.integers(1, 10))
    def load_ready(self, group: int, start: int, count: int) -> None:
        """Random lists rarely hit: one whose keys are all there."""
        ready = [key for key, state in zip(KEYS, self.ledger.states(KEYS, group), strict=True) if state == "ready"]
        self.load_keys(group, ready[start % max(len(ready), 1) :][:count])

    def load_keys(self, group: int, keys: list[bytes]) -> None:
        blocks = tuple(range(len(keys) * BLOCKS_PER_CHUNK[group]))
        skip_blocks = BLOCKS_PER_CHUNK[group] - 1
        job = self.ledger.plan_load(keys, blocks, group, skip_blocks)
        slots = self.model.plan_load(group, keys, self.now + DEADLINE_SECONDS, job.id if job else 0)
        assert job == (slots and Job(job.id, "load", group, blocks, tuple(slots), skip_blocks))

    @rule(group=groups, keys=key_lists)
    def lookup(self, group: int, keys: list[bytes]) -> None:
        assert self.ledger.lookup(keys, group).host == self.model.lookup(group, keys)

    @rule(group=groups, keys=key_lists)
    def hold(self, group: int, keys: list[bytes]) -> None:
        hold = self.ledger.hold(keys, group)
        assert hold.keys_held == self.model.hold(group, keys)
        self.holds.append(hold)

    @precondition(lambda self: self.holds)
    @rule(choice=choices)
    def release(self, choice: int) -> None:
        index = choice % len(self.holds)
        hold = self.holds.pop(index)
        hold.release()
        hold.release()
        self.model.release(index)

    def report(self, rank: int, job_ids: list[int], ok: bool) -> None:
        results = tuple(JobResult(job_id, ok, 0, 0.0) for job_id in job_ids)
        expected = [FinishedJob(*job) for job_id in job_ids for job in self.model.report(rank, job_id, ok)]
        assert self.ledger.apply(Results(rank, results)) == expected

    @precondition(lambda self: self.model.jobs)
    @rule(choice=choices, rank=st.integers(0, RANKS - 1), ok=st.integers(0, 3))
    def one_report(self, choice: int, rank: int, ok: int) -> None:
        jobs = list(self.model.jobs)
        self.report(rank, [jobs[choice % len(jobs)]], ok > 0)

    @rule(rank=st.integers(0, RANKS - 1))
    def all_reports_of_a_rank(self, rank: int) -> None:
        self.report(rank, [job_id for job_id, job in self.model.jobs.items() if rank not in job.reported], True)

    @rule(rank=st.integers(0, RANKS - 1), job_id=st.integers(-1, 50))
    def unknown_report(self, rank: int, job_id: int) -> None:
        if job_id not in self.model.jobs:
            self.report(rank, [job_id], True)

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
        assert self.ledger.forget(keys, group) == self.model.forget(group, list(dict.fromkeys(keys)))

    @rule(really=st.integers(0, 3))
    def reset(self, really: int) -> None:
        if really == 0:
            self.ledger.reset()
            self.model.reset()

    @invariant()
    def same_as_the_model(self) -> None:
        self.ledger.check()
        for group in self.model.groups:
            assert self.ledger.states(KEYS, group) == self.model.states(group, KEYS)
        stats = self.ledger.stats()
        counters = {name: stats[name] for name in self.model.counters}
        assert counters == dict(self.model.counters)
        assert stats["tier_off"] == self.model.tier_off()
        assert stats["quarantined_bytes"] == self.model.quarantined_bytes()
        assert stats["jobs_in_flight"] == len(self.model.jobs)
        assert stats["free_extents"] == len(self.model.unlent())
        for group, counts in enumerate(stats["groups"]):
            in_map = [entry.state for (owner, _), entry in self.model.visible.items() if owner == group]
            assert counts["capacity_slots"] == len(self.model.capacity(group))
            assert counts["free_slots"] == len(self.model.free(group))
            assert counts["quarantined_slots"] == len(self.model.quarantined(group))
            assert counts["free_slots"] + counts["used_slots"] + counts["quarantined_slots"] == counts["capacity_slots"]
            assert (counts["ready_keys"], counts["filling_keys"]) == (in_map.count("ready"), in_map.count("filling"))

    @invariant()
    def no_byte_has_two_owners(self) -> None:
        spans = []
        for group, slot in self.model.taken:
            per_extent = self.model.extent_bytes // SLOT_BYTES[group]
            start = slot // per_extent * self.model.extent_bytes + slot % per_extent * SLOT_BYTES[group]
            spans.append((start, start + SLOT_BYTES[group]))
        spans.sort()
        assert all(end <= start for (_, end), (start, _) in itertools.pairwise(spans))
        assert not spans or spans[-1][1] <= self.model.ready_bytes

    def teardown(self) -> None:
        """Once everybody has reported and let go, nothing is owned."""
        for index in reversed(range(len(self.holds))):
            self.holds[index].release()
            self.model.release(index)
        for rank in range(RANKS):
            self.all_reports_of_a_rank(rank)
        self.same_as_the_model()
        stats = self.ledger.stats()
        assert stats["holds"] == stats["jobs_in_flight"] == stats["quarantined_bytes"] == stats["filling_keys"] == 0
        assert sum(counts["used_slots"] for counts in stats["groups"]) == stats["ready_keys"]


TestLedgerMachine = LedgerMachine.TestCase
TestLedgerMachine.settings = settings(
    max_examples=60, stateful_step_count=60, deadline=None, suppress_health_check=list(HealthCheck)
)


def test_rare_things_do_happen():
    """A long plain random walk, so that no invariant above holds only because nothing happened."""
    walk = random.Random(5)
    machine = LedgerMachine()
    machine.start([HOST_BYTES // 3] * RANKS, whole=False)
    for step in range(3000):
        group, first, rank = walk.randrange(3), walk.randrange(len(KEYS)), walk.randrange(RANKS)
        keys, choice = KEYS[first : first + walk.randrange(20)], walk.randrange(1000)
        action = walk.randrange(40)
        if action < 10:
            machine.store(group, keys)
        elif action < 14:
            machine.load_ready(group, choice, 5)
        elif action < 16:
            machine.hold(group, keys)
        elif action < 19 and machine.holds:
            machine.release(choice)
        elif action < 26 and machine.model.jobs:
            machine.one_report(choice, rank, walk.randrange(4))
        elif action < 34:
            machine.all_reports_of_a_rank(rank)
        elif action < 36:
            machine.time_passes(4.0)
        elif action < 37:
            machine.lookup(group, keys)
        elif action < 38 and machine.model.jobs:
            machine.abandon(choice)
        elif action < 39:
            machine.grow(rank, HOST_BYTES * step // 2000 if step < 2000 else HOST_BYTES)
        elif step % 10 == 0:
            machine.reset(0)
        machine.same_as_the_model()
        machine.no_byte_has_two_owners()
    stats = machine.ledger.stats()
    names = "evicted_keys dropped_keys failed_keys expired_jobs late_reports abandoned_jobs hit_keys load_jobs epoch"
    assert {name: stats[name] for name in names.split() if stats[name] < 5} == {}
    assert machine.model.moved_extents >= 5
    machine.teardown()
