"""What the scheduler half plans for the disk: how much at a time, for whom it is kept, and what is written when."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("vllm", reason="vLLM is not installed; `make test-vllm` installs it")

from kvoffload.hits import GroupHit, GroupKeys
from kvoffload.ledger import Ledger
from kvoffload.ledger_disk import LedgerDir
from kvoffload.messages import FinishedJob, Hello, Job, JobResult, Results
from kvoffload.vllm.disk_plans import DiskPlans
from kvoffload.vllm.metadata import NOTHING, StepPlan
from kvoffload.vllm.requests import RequestState
from kvoffload.worth import Worth

pytestmark = pytest.mark.vllm

HOST, DISK, SLOT = 16, 64, 4096
KEYS = [f"key {i}".ljust(32, ".").encode() for i in range(2 * HOST)]


class Half:
    """A ledger of 16 slots in host memory and 64 on disk; jobs end when they are told to."""

    def __init__(self, folder: Path, write_through: bool = False) -> None:
        self.directory = LedgerDir(str(folder), "f" * 32, 0, disk_bytes=DISK * SLOT, slot_bytes=(SLOT,))
        self.ledger = Ledger(policy="lru", manifest=self.directory.manifest)
        hello = Hello(
            0, (SLOT,), (1,), HOST * SLOT, HOST * SLOT, "f", pinned=False, device="host", disk_bytes=DISK * SLOT,
            slab_identity=self.directory.manifest.identity,
        )  # fmt: skip
        self.plans = DiskPlans(self.ledger, self.directory, hello, write_through, Worth("always", [SLOT], [16]))
        self.ledger.hello(hello)

    def end(self, *jobs: Job) -> None:
        results = tuple(JobResult(job.id, ok=True, bytes=SLOT, seconds=0.0) for job in jobs)
        for job in self.ledger.apply(Results(0, results)):
            self.plans.ended(job)

    def store(self, keys: list[bytes]) -> None:
        job = self.ledger.plan_store(keys, [0] * len(keys))
        assert job is not None
        self.end(job)

    def write_all(self) -> None:
        while self.plans.owes:
            self.end(*self.plans.add_to(NOTHING, everything=True).demotions)

    def bring(self, state: RequestState, keys: list[bytes]) -> tuple[bool, tuple[Job, ...]]:
        group = GroupKeys(0, keys, 4)
        hit = self.ledger.lookup_groups([group])
        waits = self.plans.bring(state, [group], GroupHit(*hit))
        return waits, self.plans.add_to(NOTHING, everything=False).promotions


@pytest.fixture
def half(tmp_path: Path) -> Iterator[Half]:
    """The first 16 keys are on disk alone, the others in host memory and on disk."""
    half = Half(tmp_path)
    for keys in (KEYS[:HOST], KEYS[HOST:]):
        half.store(keys)
        half.write_all()
    assert half.ledger.lookup(KEYS[:HOST]).disk == HOST
    yield half
    half.plans.close()


def request(name: str) -> RequestState:
    fake: Any = SimpleNamespace(request_id=name)
    return RequestState(fake)


def test_a_quarter_of_host_memory_at_a_time_and_what_came_is_kept(half: Half) -> None:
    first, second = request("a"), request("b")
    waits, (job,) = half.bring(first, KEYS[:8])
    assert waits and job.keys == tuple(KEYS[:4])
    assert half.bring(second, KEYS[8:HOST]) == (True, ())  # it waits for the other's end
    half.end(job)
    assert half.ledger.stats()["holds"] == 1 and first.promotions == set()
    half.store([b"another %23d" % i for i in range(HOST - 4)])
    assert half.ledger.lookup(KEYS[:8]).host == 4
    waits, (job,) = half.bring(first, KEYS[:8])
    assert waits and job.keys == tuple(KEYS[4:8])


def test_what_somebody_else_brings_is_waited_for_and_not_brought_twice(half: Half) -> None:
    waits, (job,) = half.bring(request("a"), KEYS[:4])
    assert waits
    assert half.bring(request("b"), KEYS[:3]) == (True, ())
    half.end(job)
    assert half.ledger.lookup(KEYS[:4]).host == 4


@pytest.mark.parametrize("late", [False, True])
def test_nothing_is_kept_for_one_that_is_gone(half: Half, late: bool) -> None:
    state = request("a")
    _, (job,) = half.bring(state, KEYS[:4])
    state.stop_waiting()
    if late:
        half.plans.ended(FinishedJob(job.id, "promote", ok=False, late=False))
    half.end(job)
    assert half.ledger.stats()["holds"] == 0
    assert half.bring(request("b"), KEYS[4:8])[1][0].keys == tuple(KEYS[4:8])  # its room is free again


def test_one_for_whom_there_is_no_room_does_not_wait(half: Half) -> None:
    with half.ledger.hold(KEYS[HOST:]):
        assert half.bring(request("a"), KEYS[:4]) == (False, ())


def test_a_refused_promotion_keeps_the_keys_and_ends_the_wait(half: Half) -> None:
    """The disk is off, say: the request computes, and when it comes again it may ask again."""
    state = request("a")
    _, (job,) = half.bring(state, KEYS[:4])
    refused = JobResult(job.id, ok=False, bytes=0, seconds=0.0, untried=(0, 1, 2, 3))
    for ended in half.ledger.apply(Results(0, (refused,))):
        half.plans.ended(ended)
    assert half.ledger.lookup(KEYS[:4]).disk == 4
    assert half.bring(state, KEYS[:4]) == (False, ())
    assert half.bring(request("b"), KEYS[:4])[0]
    state.stop_waiting()
    assert half.bring(state, KEYS[:4])[0]


def test_demotions_name_the_manifest_and_wait_until_the_engine_is_idle(tmp_path: Path) -> None:
    half = Half(tmp_path)
    assert half.plans.add_to(NOTHING, everything=True) is NOTHING
    half.store(KEYS[:1])  # a sixteenth of host memory may wait
    assert half.plans.owes
    assert half.plans.add_to(NOTHING, everything=False) is NOTHING
    half.store(KEYS[1:4])
    plan = half.plans.add_to(NOTHING, everything=True)
    assert [job.keys for job in plan.demotions] == [tuple(KEYS[:2])]  # an eighth of host memory at a time
    assert plan.slab_identity == half.directory.manifest.identity != 0
    assert half.plans.busy and not half.plans.owes
    half.end(*plan.demotions)
    half.write_all()
    assert not half.plans.busy and not half.plans.owes
    assert half.ledger.stats()["disk"]["ready_keys"] == 4
    half.plans.close()


def test_write_through_does_not_wait(tmp_path: Path) -> None:
    half = Half(tmp_path, write_through=True)
    half.store(KEYS[:2])
    plan = half.plans.add_to(StepPlan(flush=(7,)), everything=False)
    assert plan.flush == (7,) and plan.demotions[0].keys == tuple(KEYS[:2])
    half.plans.close()
