"""The mover half: runs in a vLLM worker, carries out the scheduler half's plans, reports what ended.

Order on the device. Stores are marked on the current stream when the step's writes are queued and submitted one hook
later, after sampling. At the start of a step, before it writes anything: stores of the last step and early ones are
submitted, the stream is made to wait for those whose blocks this step reuses, and loads are submitted behind all of
that (their blocks' last readers were queued by earlier steps). Nothing here waits on the host for a copy.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from vllm.logger import init_logger

from kvoffload.errors import Cancelled, KVOffloadError, QueueFull, WaitTimeout
from kvoffload.messages import Hello, Job, JobResult, Results
from kvoffload.mover import Mover
from kvoffload.transfer import Transfer
from kvoffload.vllm.metadata import Load, StepPlan, WorkerReport

logger = init_logger("vllm.kvoffload")  # vLLM shows only loggers under its own name

FLUSH_SECONDS = 5.0  # bound of the waits of one step until stores' copies are enqueued
QUIESCE_SECONDS = 10.0  # and of the wait for copies before the engine sleeps


@dataclass(slots=True)
class OpenLoad:
    """A request's load on this rank: `left` jobs are not done."""

    request_id: str
    left: int
    deadline: float
    failed: bool = False


@dataclass(slots=True)
class Ended:
    """Loads that ended since the last report; `failed` requests are in `finished` too. `blocks`: the failed ones'."""

    finished: set[str] = field(default_factory=set)
    failed: set[str] = field(default_factory=set)
    blocks: set[int] = field(default_factory=set)


class MoverHalf:
    """All calls come from the worker's thread. No call raises while serving: what fails is reported as failed."""

    def __init__(self, mover: Mover, deadline_seconds: float) -> None:
        self.mover = mover
        self.counters: Counter[str] = Counter()
        self._deadline_seconds = deadline_seconds
        self._marked: list[tuple[tuple[Job, ...], Any]] = []  # stores to submit at the next hook, each with its mark
        self._stores: dict[int, Transfer] = {}
        self._unsafe: set[int] = set()  # stores whose blocks may have been overwritten while they read
        self._loads: dict[int, tuple[OpenLoad, Job, Transfer | None]] = {}
        self._unsent: deque[tuple[Job, Any]] = deque()  # loads that met a full queue
        self._failed: list[JobResult] = []  # jobs that were never submitted
        self._on_disk: set[int] = set()  # demotions and promotions that have not ended
        self._ended = Ended()
        self._results: list[JobResult] = []

    def hello(self) -> Hello:
        return self.mover.hello()

    def start_step(self, plan: StepPlan) -> None:
        """Before this step writes any block."""
        for jobs, mark in self._marked:
            self._submit_stores(jobs, mark)
        self._marked.clear()
        if self._unsent:
            self._send_loads()
        mark = self._mark(plan.early)
        if mark is not None:
            self._submit_stores(plan.early, mark)
        flush_deadline = time.monotonic() + FLUSH_SECONDS if plan.flush else 0.0
        for job in plan.flush:
            self._flush(job, flush_deadline)
        for load in plan.loads:
            self._begin_load(load)
        jobs = tuple(job for load in plan.loads for job in load.jobs)
        mark = self._mark(jobs)
        if mark is not None:
            self._unsent.extend((job, mark) for job in jobs)
            self._send_loads()
        if plan.promotions or plan.demotions:
            self._send_to_disk(plan)
        if plan.pause_seconds:
            self.mover.wait_for_disk(plan.pause_seconds)

    def _send_to_disk(self, plan: StepPlan) -> None:
        """Neither needs the device: host slots are whole before they are written, and free before they are filled."""
        jobs = plan.promotions + plan.demotions
        for job in jobs:
            try:
                if job.kind == "demote":
                    self.mover.adopt(plan.slab_identity)
                self.mover.submit_to_disk(job, self._deadline_seconds)
                self._on_disk.add(job.id)
                self.counters[f"{job.kind}s"] += 1
            except KVOffloadError as error:
                self._fail(job, error)

    def mark_stores(self, plan: StepPlan) -> None:
        """After this step's writes were queued on the current stream."""
        mark = self._mark(plan.stores)
        if mark is not None:
            self._marked.append((plan.stores, mark))

    def _mark(self, jobs: tuple[Job, ...]) -> Any:
        """The current stream as of now, for these jobs; None if there are none, or none that can be done."""
        try:
            return self.mover.mark() if jobs else None
        except KVOffloadError as error:
            for job in jobs:
                self._fail(job, error)
            return None

    def _submit_stores(self, jobs: Iterable[Job], mark: Any) -> None:
        for job in jobs:
            try:
                self._stores[job.id] = self.mover.submit(job, after=mark)
                self.counters["stores"] += 1
            except KVOffloadError as error:  # a full queue too: a store is dropped, not kept waiting
                self._fail(job, error)

    def _flush(self, job: int, deadline: float) -> None:
        """What the current stream does from now on comes after the store's reads, or the store is not believed."""
        transfer = self._stores.get(job)
        if transfer is None:  # it has ended
            return
        try:
            transfer.before(timeout_seconds=max(0.0, deadline - time.monotonic()))
            self.counters["flushes"] += 1
        except KVOffloadError:
            transfer.cancel()
            self._unsafe.add(job)
            self.counters["unsafe_stores"] += 1

    def _begin_load(self, load: Load) -> None:
        if not load.jobs:
            self._ended.finished.add(load.request_id)
            self._ended.failed.add(load.request_id)
            self._ended.blocks.update(load.refused)
            return
        state = OpenLoad(load.request_id, len(load.jobs), time.monotonic() + self._deadline_seconds)
        for job in load.jobs:
            self._loads[job.id] = (state, job, None)

    def _send_loads(self) -> None:
        while self._unsent:
            job, mark = self._unsent[0]
            state = self._loads[job.id][0]
            try:
                self._loads[job.id] = (state, job, self.mover.submit(job, after=mark))
                self.counters["loads"] += 1
            except QueueFull as error:
                if time.monotonic() < state.deadline:
                    return
                self._fail(job, error)
            except KVOffloadError as error:
                self._fail(job, error)
            self._unsent.popleft()

    def _fail(self, job: Job, error: KVOffloadError) -> None:
        untried = tuple(range(len(job.slots)))
        self._failed.append(JobResult(job.id, ok=False, bytes=0, seconds=0.0, error=str(error), untried=untried))

    def collect(self) -> Ended:
        """Loads that ended since the last call. Never waits; each request comes once."""
        if self._unsent:
            self._send_loads()
        failed, self._failed = self._failed, []
        for result in (*failed, *self.mover.poll()):
            self._take(result)
        if self._loads:
            self._cancel_overdue()
        ended, self._ended = self._ended, Ended()
        return ended

    def _take(self, result: JobResult) -> None:
        if result.job in self._unsafe:
            self._unsafe.discard(result.job)
            result = replace(result, ok=False, error="its blocks were reused before they were read")
        self._stores.pop(result.job, None)
        self._on_disk.discard(result.job)
        self._results.append(result)
        if not result.ok:
            self.counters["failures"] += 1
        if result.job not in self._loads:
            return
        load, job, _ = self._loads.pop(result.job)
        load.left -= 1
        load.failed |= not result.ok
        if not result.ok:
            self._ended.blocks.update(job.blocks[job.skip_blocks :])
        if load.left == 0:
            self._ended.finished.add(load.request_id)
            if load.failed:
                self._ended.failed.add(load.request_id)

    def _cancel_overdue(self) -> None:
        """A load past its deadline is given up if it has not started; its blocks may still be written otherwise."""
        now = time.monotonic()
        for load, _, transfer in self._loads.values():
            if transfer is not None and now > load.deadline and transfer.cancel():
                self.counters["cancelled_loads"] += 1

    def report(self) -> WorkerReport | None:
        """What to tell the scheduler half; None when there is nothing."""
        hello = self.mover.hello_if_changed()
        if hello is None and not self._results:
            return None
        results, self._results = tuple(self._results), []
        return WorkerReport((Results(self.mover.rank, results, hello),))

    def quiesce(self, seconds: float = QUIESCE_SECONDS) -> None:
        """No copy reads or writes the KV tensors when this returns, nor later for what was planned so far.

        What has not begun fails. Raises WaitTimeout.
        """
        unsent = [job for jobs, _ in self._marked for job in jobs] + [job for job, _ in self._unsent]
        self._marked.clear()
        self._unsent.clear()
        for job in unsent:
            self._fail(job, Cancelled("the engine sleeps"))
        for transfer in self._open_transfers():
            transfer.cancel()
        deadline = time.monotonic() + seconds
        while True:
            for result in self.mover.poll():
                self._take(result)
            if not self._open_transfers():
                return
            if time.monotonic() > deadline:
                raise WaitTimeout(f"copies are under way after {seconds:g} s: the KV cache's memory cannot be given up")
            time.sleep(0.001)

    def _open_transfers(self) -> list[Transfer]:
        return [*self._stores.values(), *(transfer for *_, transfer in self._loads.values() if transfer is not None)]

    def idle(self) -> bool:
        """Nothing is queued, running or unreported. For tests."""
        busy = self._marked or self._stores or self._unsafe or self._loads or self._unsent or self._on_disk
        return not (busy or self._results)

    def close(self) -> None:
        self.mover.close()
