"""The mover half without an engine: order of a step, failures, and what is reported."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("vllm", reason="vLLM is not installed; `make test-vllm` installs it")

from kvoffload.errors import DeviceError, KVOffloadError, QueueFull, WaitTimeout
from kvoffload.messages import Job, JobResult, Results
from kvoffload.vllm.metadata import NOTHING, Load, StepPlan, WorkerReport
from kvoffload.vllm.worker import MoverHalf

pytestmark = pytest.mark.vllm


class Transfer:
    def __init__(self, broken: bool) -> None:
        self.broken, self.cancelled, self.waited = broken, False, False

    def before(self, stream: Any = None, timeout_seconds: float = 5.0) -> None:
        self.waited = True
        if self.broken:
            raise WaitTimeout("not enqueued")

    def cancel(self) -> bool:
        self.cancelled = True
        return False


class FakeMover:
    """Keeps what it was asked for; `finish` makes jobs end."""

    rank = 0

    def __init__(self) -> None:
        self.events: list[Any] = []
        self.error: KVOffloadError | None = None
        self.broken = False
        self.transfers: dict[int, Transfer] = {}
        self._done: list[JobResult] = []
        self.waits: list[float] = []

    def adopt(self, slab_identity: int) -> None:
        self.events.append(("adopt", slab_identity))

    def submit_to_disk(self, job: Job, timeout_seconds: float) -> None:
        if self.error is not None:
            raise self.error
        self.events.append((job.kind, job.id, timeout_seconds))

    def wait_for_disk(self, timeout_seconds: float) -> None:
        self.waits.append(timeout_seconds)

    def mark(self) -> str:
        if isinstance(self.error, DeviceError):
            raise self.error
        self.events.append("mark")
        return f"mark {len(self.events)}"

    def submit(self, job: Job, after: Any) -> Transfer:
        if self.error is not None:
            raise self.error
        self.events.append((job.kind, job.id, after))
        self.transfers[job.id] = Transfer(self.broken)
        return self.transfers[job.id]

    def finish(self, *jobs: int, ok: bool = True) -> None:
        self._done += [JobResult(job, ok, 0, 0.0) for job in jobs]

    def poll(self) -> tuple[JobResult, ...]:
        done, self._done = self._done, []
        return tuple(done)

    def hello_if_changed(self) -> None:
        return None


def job(number: int, kind: Any = "store", skip: int = 0) -> Job:
    return Job(number, kind, 0, (number, number + 100), (number, number + 100), skip)


def reported(half: MoverHalf) -> dict[int, bool]:
    report = half.report()
    return {} if report is None else {r.job: r.ok for results in report.results for r in results.results}


def test_order_of_a_step() -> None:
    """Last step's stores by their own mark, early stores, the fence, and only then the loads."""
    mover = FakeMover()
    half = MoverHalf(mover, 30.0)
    half.mark_stores(StepPlan(stores=(job(1),)))
    assert mover.events == ["mark"]
    half.start_step(StepPlan(early=(job(2),), flush=(1, 2), loads=(Load("r", (job(3, "load"),)),)))
    assert mover.events[1:] == [("store", 1, "mark 1"), "mark", ("store", 2, "mark 3"), "mark", ("load", 3, "mark 5")]
    assert mover.transfers[1].waited
    assert mover.transfers[2].waited


def test_a_load_is_reported_once_when_its_last_job_ended() -> None:
    mover = FakeMover()
    half = MoverHalf(mover, 30.0)
    half.start_step(StepPlan(loads=(Load("r", (job(1, "load"), job(2, "load", skip=1))),)))
    mover.finish(1)
    assert half.collect().finished == set()
    mover.finish(2, ok=False)
    ended = half.collect()
    assert (ended.finished, ended.failed, ended.blocks) == ({"r"}, {"r"}, {102})
    assert half.collect().finished == set()
    assert reported(half) == {1: True, 2: False}
    assert half.idle()


def test_a_store_whose_fence_failed_is_not_believed() -> None:
    mover = FakeMover()
    mover.broken = True
    half = MoverHalf(mover, 30.0)
    half.mark_stores(StepPlan(stores=(job(1),)))
    half.start_step(StepPlan(flush=(1,)))
    mover.finish(1)
    half.collect()
    assert reported(half) == {1: False}
    assert mover.transfers[1].cancelled


def test_a_full_queue_drops_stores_and_keeps_loads() -> None:
    mover = FakeMover()
    mover.error = QueueFull("full")
    half = MoverHalf(mover, 30.0)
    half.start_step(StepPlan(early=(job(1),), loads=(Load("r", (job(2, "load"),)),)))
    assert half.collect().finished == set()
    assert reported(half) == {1: False}
    mover.error = None
    half.start_step(NOTHING)
    assert mover.events[-1] == ("load", 2, "mark 2")


def test_a_device_that_fails_at_every_call_raises_nothing() -> None:
    mover = FakeMover()
    mover.error = DeviceError("gone")
    half = MoverHalf(mover, 30.0)
    half.mark_stores(StepPlan(stores=(job(1),)))
    half.start_step(StepPlan(early=(job(2),), flush=(1,), loads=(Load("r", (job(3, "load"),)),)))
    assert half.collect().failed == {"r"}
    assert reported(half) == {1: False, 2: False, 3: False}


def test_loads_past_their_deadline_are_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("kvoffload.vllm.worker.time.monotonic", lambda: now[0])
    mover = FakeMover()
    half = MoverHalf(mover, 30.0)
    half.start_step(StepPlan(loads=(Load("sent", (job(1, "load"),)),)))
    mover.error = QueueFull("full")
    half.start_step(StepPlan(loads=(Load("unsent", (job(2, "load"),)),)))
    now[0] = 31.0
    ended = half.collect()
    assert ended.failed == {"unsent"}
    assert mover.transfers[1].cancelled


def test_a_refused_load_is_reported_as_failed() -> None:
    half = MoverHalf(FakeMover(), 30.0)
    half.start_step(StepPlan(loads=(Load("r", (), refused=(4, 5)),)))
    ended = half.collect()
    assert (ended.finished, ended.failed, ended.blocks) == ({"r"}, {"r"}, {4, 5})


def test_reports_of_several_ranks_are_joined_and_never_falsy() -> None:
    one, two = (WorkerReport((Results(rank),)) for rank in (0, 1))
    assert [results.rank for results in one.aggregate(two).results] == [0, 1]
    assert bool(WorkerReport(()))
    assert bool(NOTHING)


def test_the_disk_comes_last_and_its_slab_is_named_before_it_is_written() -> None:
    mover = FakeMover()
    half = MoverHalf(mover, 30.0)
    plan = StepPlan(
        early=(job(1),), loads=(Load("a", (job(2, "load"),)),), promotions=(job(3, "promote"),),
        demotions=(job(4, "demote"),), slab_identity=77, pause_seconds=0.001,
    )  # fmt: skip
    half.start_step(plan)
    kinds = [event[0] for event in mover.events if event != "mark"]
    assert kinds == ["store", "load", "promote", "adopt", "demote"]
    assert mover.events[-2] == ("adopt", 77)
    assert mover.waits == [0.001] and not half.idle()
    mover.finish(1, 2, 3)
    mover.finish(4, ok=False)
    half.collect()
    assert reported(half) == {1: True, 2: True, 3: True, 4: False}
    assert half.idle()


def test_a_disk_that_takes_nothing_more_fails_its_jobs_and_nothing_else() -> None:
    mover = FakeMover()
    half = MoverHalf(mover, 30.0)
    mover.error = QueueFull("4096 records wait")
    half.start_step(StepPlan(promotions=(job(1, "promote"),), demotions=(job(2, "demote"),), slab_identity=7))
    half.collect()
    (results,) = half.report().results
    assert [(result.job, result.ok, result.untried) for result in results.results] == [
        (1, False, (0, 1)),
        (2, False, (0, 1)),
    ]
    assert half.idle() and mover.waits == []
