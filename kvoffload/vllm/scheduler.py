"""The ledger half: runs in vLLM's scheduler, knows keys and blocks, plans what the workers' movers do.

A request:  new -> lookup -> wait (None) | planned load -> running -> finished | preempted -> lookup ...
Blocks are never held back: stores in flight are protected by the fence, loads by vLLM, which holds the blocks of a
request that waits for one.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from vllm.logger import init_logger

from kvoffload import _C
from kvoffload.errors import KVOffloadError
from kvoffload.ledger import Ledger
from kvoffload.ledger_disk import LedgerDir
from kvoffload.messages import FinishedJob, Hello, Job
from kvoffload.prefill import PrefillFit, StepTimes
from kvoffload.vllm.disk_plans import DiskPlans
from kvoffload.vllm.fence import Fence
from kvoffload.vllm.groups import ChunkGroup, Chunks, batches, hit_unit_tokens, make_groups
from kvoffload.vllm.kv_events import KVEvents
from kvoffload.vllm.life import Commits
from kvoffload.vllm.lookup import Lookup
from kvoffload.vllm.metadata import NOTHING, Load, StepPlan, WorkerReport
from kvoffload.vllm.options import Options
from kvoffload.vllm.requests import Answer, RequestState
from kvoffload.vllm.stats import count_lookup
from kvoffload.vllm.steps import FullStep, prefill_of
from kvoffload.worth import Worth

if TYPE_CHECKING:
    from vllm.v1.core.kv_cache_manager import KVCacheBlocks
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.kv_cache_interface import KVCacheConfig
    from vllm.v1.outputs import KVConnectorOutput
    from vllm.v1.request import Request

logger = init_logger("vllm.kvoffload")

LONGEST_STEP_SECONDS = 1.0
PAUSE_SECONDS = 0.001
# Of one request and each group, which is then computed: what it needs may come back from disk for ever.
MOST_FAILED_LOADS = 2


class LedgerHalf:
    """All calls come from the scheduler's thread, in the order of vLLM's steps."""

    def __init__(
        self,
        options: Options,
        kv_cache_config: KVCacheConfig,
        tokens_per_hash: int,
        ranks: int,
        *,
        prefix_caching: bool = True,
        speculates: bool = False,
        disk_writes_per_day: int | None = None,
        kv_events: bool = False,
        steps_in_flight: int = 1,
        full_step: FullStep | None = None,
        whole_prompts: bool = False,
    ) -> None:
        self._options, self._ranks, self._disk_writes_per_day = options, ranks, disk_writes_per_day
        self.ledger = self._make_ledger(None)
        self._stepped_seconds, self._last_plan = 0.0, time.monotonic()
        self.counters: Counter[str] = Counter()
        self.worth: Worth | None = None
        self.groups: tuple[ChunkGroup, ...] = ()  # none before all workers said hello: nothing is served till then
        self._kv_cache_config = kv_cache_config
        self._tokens_per_hash = tokens_per_hash
        self._prefix_caching, self.whole_prompts = prefix_caching, whole_prompts
        self._speculates = speculates
        self._lookup: Lookup | None = None
        self._requests: dict[str, RequestState] = {}
        self._fence = Fence()
        self._open_jobs: set[int] = set()
        self._loading: dict[int, RequestState] = {}  # by job
        self._admitted: set[str] = set()  # given blocks in this schedule()
        self._loads: list[Load] = []  # planned in this schedule()
        self._early: Chunks = []  # of requests finished since the last plan
        self._disk: DiskPlans | None = None
        self._commits: Commits | None = None
        self._reset_at_stores = 0  # how many there were at the last reset
        self._new_weights: set[str] = set()  # events that were told of in the log
        self._fit, self._full_step = PrefillFit(), full_step or FullStep()
        self._steps = StepTimes(self._fit, steps_in_flight)
        self._wants_events = kv_events
        self._events: KVEvents | None = None

    def _make_ledger(self, manifest: _C.Manifest | None) -> Ledger:
        # Reports come only with steps, so deadlines count time in which vLLM steps: an engine that stands idle, or
        # compiles for a minute, has not heard of what ended meanwhile.
        return Ledger(
            ranks=self._ranks, deadline_seconds=self._options.deadline_seconds, clock=lambda: self._stepped_seconds,
            policy=self._options.policy, manifest=manifest, admission=self._options.admission,
            disk_writes_per_day=self._disk_writes_per_day,
        )  # fmt: skip

    def hello(self, hellos: Iterable[Hello], directory: LedgerDir | None = None) -> None:
        """All ranks' Hellos; directory: what their disks hold. Raises InvalidInput when the ranks disagree."""
        hellos = tuple(hellos)
        groups = make_groups(self._kv_cache_config, hellos[0].blocks_per_chunk, self._tokens_per_hash)
        self.worth = Worth(
            self._options.worth_loading, hellos[0].slot_bytes, [group.tokens_per_chunk for group in groups],
            min(hello.disk_read_bytes_per_second for hello in hellos), fit=self._fit, counters=self.counters,
            window_tokens=[group.window_tokens for group in groups],
        )  # fmt: skip
        if directory is not None:
            self._commits = Commits(directory.manifest)
            self.ledger = self._make_ledger(cast(_C.Manifest, self._commits))
            self._disk = DiskPlans(self.ledger, directory, hellos[0], self._options.write_through, self.worth)
        for hello in hellos:
            self.ledger.hello(hello)
        self.groups = groups
        self._lookup = Lookup(
            self.ledger, self.groups, hit_unit_tokens(self.groups), self._options.deadline_seconds, self.worth,
            self._disk,
        )  # fmt: skip
        self._lookup.joins, self._lookup.whole_prompts = self._prefix_caching, self.whole_prompts
        if self._wants_events:
            self._events = KVEvents(self.ledger, self.groups)

    # ---- lookup and load

    def matched_tokens(self, request: Request, local_tokens: int) -> Answer:
        """Tokens that can be loaded beyond the local hit; None: ask again. Idempotent: vLLM asks in every step."""
        state = self._state_of(request)
        state.local_tokens = local_tokens
        state.muted = False  # it starts from nothing (or from blocks that are valid now)
        if self._lookup is None or request.skip_reading_prefix_cache:
            return 0, False
        self._lookup.load_ended(state)  # only after a failed load; a good one is admitted without a lookup
        if state.failed_loads >= MOST_FAILED_LOADS * len(self.groups):
            return 0, False
        state.queried_tokens = max(request.num_tokens - local_tokens, 0)
        return self._lookup.answer(state, time.monotonic())

    def _state_of(self, request: Request) -> RequestState:
        state = self._requests.get(request.request_id)
        if state is None:
            state = RequestState(request, prompt_only=not self._options.decode_blocks)
            self._requests[request.request_id] = state
        return state

    def allocated(self, request: Request, blocks: KVCacheBlocks, external_tokens: int) -> None:
        """Blocks were given out: with external_tokens > 0 for a load, else for running. Loads are planned here."""
        state = self._state_of(request)
        table = blocks.get_block_ids()
        for spec, ids in zip(self._kv_cache_config.kv_cache_groups, table, strict=True):
            self._fence.hand_out(ids[state.local_tokens // spec.kv_cache_spec.block_size :])
        count_lookup(self.counters, state, self.groups, external_tokens)
        state.begin(self.groups, table)
        self._admitted.add(request.request_id)
        if external_tokens > 0:
            self._plan_load(state, external_tokens)
        elif self._lookup is not None:
            self._lookup.load_ended(state)
        if self._lookup is not None:
            self._lookup.count_verdict(state)
        state.stop_waiting()
        state.waiting_since = None
        state.stamp = None
        state.offered = False

    def _plan_load(self, state: RequestState, external_tokens: int) -> None:
        assert self._lookup is not None and self.worth is not None
        jobs: list[Job] = []
        end_tokens = state.local_tokens + external_tokens
        for group in self.groups:
            # The last chunk is loaded whole, also where vLLM computes its last token again, or more: it may have cut
            # what we promised.
            first, end = group.first_needed(state.local_tokens, end_tokens), -(-end_tokens // group.tokens_per_chunk)
            keys = group.keys(state.request.block_hashes, first, end)
            first_block = first * group.blocks_per_chunk
            blocks = state.table[group.index][first_block : end * group.blocks_per_chunk]
            skip = max(state.local_tokens // group.tokens_per_block - first_block, 0)
            whole = len(keys) == end - first and len(blocks) == len(keys) * group.blocks_per_chunk
            job = self.ledger.plan_load(keys, blocks, group.index, skip) if whole else None
            if job is None:
                self._refuse_load(state, jobs)
                return
            jobs.append(job)
            self._lookup.load_begins(state, group, keys)
        for job in jobs:
            self.worth.began(job)
            self._open_jobs.add(job.id)
            self._loading[job.id] = state
            state.open_loads.add(job.id)
        self._loads.append(Load(state.request.request_id, tuple(jobs)))
        self.counters["loads"] += len(jobs)
        self.counters["hit_tokens"] += external_tokens
        self.counters["resumed_by_load"] += state.request.num_preemptions > 0

    def _refuse_load(self, state: RequestState, planned: list[Job]) -> None:
        """A promise that cannot be kept (held keys make that impossible but for faults): a failed load, a recompute."""
        assert self._lookup is not None
        for job in planned:
            self.ledger.abandon(job.id)
        self._lookup.load_ended(state)
        state.failed_loads += 1
        blocks = tuple(
            block
            for group in self.groups
            for block in state.table[group.index][state.local_tokens // group.tokens_per_block :]
        )
        self._loads.append(Load(state.request.request_id, (), blocks))
        self.counters["refused_loads"] += 1

    # ---- one plan a step

    def plan(self, scheduled: SchedulerOutput) -> StepPlan:
        """What the workers do in this step, besides the model."""
        now = time.monotonic()
        self._stepped_seconds += min(now - self._last_plan, LONGEST_STEP_SECONDS)
        self._last_plan = now
        self._steps.planned(now, prefill_of(scheduled))
        for job in self.ledger.expire():
            self._give_up(job)
        early, self._early = self._early, []
        for request_id in scheduled.preempted_req_ids or ():
            # One that was preempted and admitted in the same schedule() has new blocks already.
            if request_id in self._requests and request_id not in self._admitted:
                self._leave(self._requests[request_id], early)
        early_jobs = self._plan_stores(early)
        self.counters["early_stores"] += len(early_jobs)
        complete = self._advance(scheduled)
        flush = self._fence.jobs_to_flush()
        self.counters["flushes"] += len(flush)
        stores = self._plan_stores(complete)
        loads, self._loads = tuple(self._loads), []
        self._admitted.clear()
        if self._lookup is not None:
            self._lookup.busy = self._full_step.reached(scheduled)
            self._lookup.stepped(bool(scheduled.num_scheduled_tokens or self._loading or loads))
        plan = NOTHING if not (early_jobs or flush or loads or stores) else StepPlan(early_jobs, flush, loads, stores)
        return plan if self._disk is None else self._with_disk(self._disk, plan, not scheduled.num_scheduled_tokens)

    def _with_disk(self, disk: DiskPlans, plan: StepPlan, no_tokens: bool) -> StepPlan:
        """With what the disk has to do; while the engine has no request, that is to write all that waits for it."""
        with_disk = disk.add_to(plan, everything=no_tokens and not self._requests)
        if self._events is not None:
            for job in (*with_disk.promotions, *with_disk.demotions):
                self._events.watch(job.id, job.group, job.keys)
        self._open_jobs.update(job.id for job in (*with_disk.promotions, *with_disk.demotions))
        if no_tokens and disk.busy and not (plan.early or plan.loads or self._loading):
            return replace(with_disk, pause_seconds=PAUSE_SECONDS)
        return with_disk

    def _advance(self, scheduled: SchedulerOutput) -> Chunks:
        """Follow the running requests by this step; the chunks that it completes."""
        chunks: Chunks = []
        step_tokens, drafts = scheduled.num_scheduled_tokens, scheduled.scheduled_spec_decode_tokens
        for new in scheduled.scheduled_new_reqs:
            state = self._requests[new.req_id]
            state.settled_tokens = new.num_computed_tokens
            computed = new.num_computed_tokens + step_tokens[new.req_id] - len(drafts.get(new.req_id, ()))
            state.computed_tokens = min(computed, state.request.num_tokens) if self._speculates else computed
            if state.computed_tokens >= state.next_tokens:
                chunks += state.complete_chunks(self.groups)
        running, requests, speculates = scheduled.scheduled_cached_reqs, self._requests, self._speculates
        for request_id, blocks, before in zip(
            running.req_ids, running.new_block_ids, running.num_computed_tokens, strict=True
        ):
            state = requests[request_id]
            if blocks is not None and request_id not in self._admitted:
                state.extend(blocks)
                for new_blocks in blocks:
                    self._fence.hand_out(new_blocks)
            state.settled_tokens = before
            computed = before + step_tokens[request_id]
            if drafts:
                computed -= len(drafts.get(request_id, ()))
            if speculates:  # `before` still counts drafts of a step in flight, which may be refused
                computed = min(computed, state.request.num_tokens)
            state.computed_tokens = computed
            if computed >= state.next_tokens:
                chunks += state.complete_chunks(self.groups)
        return chunks

    def _leave(self, state: RequestState, early: Chunks) -> None:
        """The request gave up its blocks. What is complete in them is stored before anything overwrites it."""
        state.settled_tokens = state.computed_tokens
        early += state.complete_chunks(self.groups)
        state.forget_blocks()

    def _plan_stores(self, chunks: Chunks) -> tuple[Job, ...]:
        """As few jobs as can be: fewer messages, and copies of one step share their order anyway."""
        jobs = []
        for group in self.groups if chunks else ():
            for keys, blocks in batches(chunks[group.index :: len(self.groups)]):
                job = self.ledger.plan_store(keys, blocks, group.index)
                if job is None:
                    continue
                self._fence.reading(job.id, job.blocks)
                self._open_jobs.add(job.id)
                if self._events is not None:
                    self._events.watch(job.id, group.index, keys)
                self.counters["stored_chunks"] += len(job.slots)
                jobs.append(job)
        self.counters["stores"] += len(jobs)
        return tuple(jobs)

    # ---- what came back

    def received(self, output: KVConnectorOutput) -> None:
        report = output.kv_connector_worker_meta
        if report is None:
            return
        assert isinstance(report, WorkerReport)
        for results in report.results:
            if self.worth is not None:
                self.worth.took(results.rank, results.results)
            for job in self.ledger.apply(results):
                self._finished(job)

    def _finished(self, job: FinishedJob) -> None:
        self._ended(job)
        self._fence.done(job.id)
        state = self._loading.pop(job.id, None)
        if state is not None and self._lookup is not None:
            state.failed_loads += not job.ok
            state.open_loads.discard(job.id)
            if state.loading and not state.open_loads:
                self._lookup.load_done(state)
        if not job.ok and not job.late:
            self.counters[f"failed_{job.kind}s"] += 1
        self._changed()

    def _give_up(self, job: FinishedJob) -> None:
        """Past its deadline. It may still read its blocks, so the fence keeps it; the engine need not step for it."""
        self._ended(job)
        self.counters[f"expired_{job.kind}s"] += 1
        self._changed()

    def _ended(self, job: FinishedJob) -> None:
        self._open_jobs.discard(job.id)
        if self._disk is not None:
            self._disk.ended(job)
        if self.worth is not None:
            self.worth.ended(job.id)
        if self._events is not None:
            self._events.ended(job.id)

    def _changed(self) -> None:
        if self._lookup is not None:
            self._lookup.generation += 1

    def request_finished(self, request: Request) -> None:
        """In every state, also aborted while it waits. Its blocks are freed right after this."""
        state = self._requests.pop(request.request_id, None)
        if state is None:
            return
        state.stop_waiting()
        if self._lookup is not None:
            self._lookup.load_ended(state)
        self._leave(state, self._early)
        if not self._requests:
            self._steps.idle(time.monotonic())
            if self._lookup is not None:
                self._lookup.busy = False

    def reset(self) -> bool:
        """Nothing stored so far is ever served again; KV computed so far is not stored any more.

        False: that is so for this process, but what is on disk may come back after a restart.
        """
        durable = True
        self._reset_at_stores = self.counters["stores"]
        try:
            self.ledger.reset()
        except KVOffloadError as error:
            logger.warning("kvoffload: the reset is not durable yet: %s", error)
            durable = False
        self._mute()
        if self._events is not None:
            self._events.look_at_all()
        self.counters["resets"] += 1
        self._changed()
        return durable

    def _mute(self) -> None:
        self._early = []
        for state in self._requests.values():
            state.stop_waiting()
            state.mute()

    def keep_nothing(self) -> None:
        """What is on disk is gone, and what comes there from now on is for this run alone, however the run ends."""
        if self._commits is not None:
            self._commits.kept = False
        self.reset()

    def new_weights(self, event: str) -> None:
        """KV is another one from here on, and no longer that of the model that names the cache on disk."""
        if event not in self._new_weights:
            self._new_weights.add(event)
            kept = self._commits is not None and self._commits.kept
            logger.warning(
                "kvoffload: %s may have changed the weights: the cache is emptied%s", event,
                ", and the disk is used for this run only from now on" if kept else "",
            )  # fmt: skip
        # An update comes in many calls, and a reset waits for the disk.
        if self.counters["stores"] == self._reset_at_stores and (self._commits is None or not self._commits.kept):
            self._mute()
        else:
            self.keep_nothing()

    def take_events(self) -> Iterable[Any]:
        return self._events.take() if self._events is not None else ()

    def has_pending_work(self) -> bool:
        """Whether the engine must go on stepping without requests, so that stores are sent and their ends heard of."""
        return bool(self._open_jobs) or bool(self._early) or (self._disk is not None and self._disk.owes)

    def close(self) -> None:
        """What is on disk becomes durable, and the directory is free for the next."""
        if self._disk is not None:
            self._disk.close()
