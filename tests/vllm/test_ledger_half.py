"""The ledger half without an engine: what vLLM's scheduler may do to it, step by step."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("vllm", reason="vLLM is not installed; `make test-vllm` installs it")

from kvoffload.errors import WaitTimeout
from kvoffload.messages import Hello, Job, JobResult, Results
from kvoffload.vllm.metadata import NOTHING, StepPlan, WorkerReport
from kvoffload.vllm.options import Options
from kvoffload.vllm.scheduler import LedgerHalf

pytestmark = pytest.mark.vllm

TOKENS = 4  # of a block


class Scheduler:
    """Drives a LedgerHalf as vLLM's scheduler does; workers report what they are told to."""

    def __init__(
        self,
        blocks_per_chunk: int = 1,
        slots: int = 64,
        ranks: int = 1,
        worth_loading: Any = "auto",
        decode_blocks: bool = True,
        **vllm: Any,
    ) -> None:
        spec = SimpleNamespace(block_size=TOKENS)
        config = SimpleNamespace(kv_cache_groups=[SimpleNamespace(kv_cache_spec=spec)])
        options = Options(
            host=4096 * slots, deadline_seconds=30.0, worth_loading=worth_loading, decode_blocks=decode_blocks
        )
        self.half = LedgerHalf(options, config, TOKENS, ranks, **vllm)
        self.ranks = ranks
        self.half.hello(
            Hello(rank, (4096,), (blocks_per_chunk,), 4096 * slots, 4096 * slots, "f", False, "host")
            for rank in range(ranks)
        )

    def request(self, name: str, tokens: int, content: str | None = None) -> Any:
        hashes = [f"{content or name} {i}".ljust(32, ".").encode() for i in range(tokens // TOKENS)]
        return SimpleNamespace(
            request_id=name,
            num_tokens=tokens,
            num_prompt_tokens=tokens,
            block_hashes=hashes,
            num_preemptions=0,
            skip_reading_prefix_cache=False,
        )

    def admit(self, request: Any, blocks: list[int], external: int = 0) -> None:
        table = SimpleNamespace(get_block_ids=lambda: (list(blocks),))
        self.half.allocated(request, table, external)

    def step(
        self,
        new: dict[str, int] | None = None,
        running: dict[str, tuple[int, int, list[int] | None]] | None = None,
        preempted: set[str] | None = None,
        drafts: dict[str, list[int]] | None = None,
    ) -> StepPlan:
        """new: request -> tokens of this step, from 0; running: request -> (tokens before, in it, new blocks)."""
        new, running = new or {}, running or {}
        cached = SimpleNamespace(
            req_ids=list(running),
            num_computed_tokens=[before for before, _, _ in running.values()],
            new_block_ids=[None if blocks is None else (blocks,) for _, _, blocks in running.values()],
        )
        return self.half.plan(
            SimpleNamespace(
                scheduled_new_reqs=[SimpleNamespace(req_id=name, num_computed_tokens=0) for name in new],
                scheduled_cached_reqs=cached,
                num_scheduled_tokens={**new, **{name: count for name, (_, count, _) in running.items()}},
                scheduled_spec_decode_tokens=drafts or {},
                preempted_req_ids=preempted or set(),
            )
        )

    def report(self, *jobs: Job, ok: bool = True, rank: int = 0) -> None:
        results = Results(rank, tuple(JobResult(job.id, ok, 0, 0.0) for job in jobs))
        self.half.received(SimpleNamespace(kv_connector_worker_meta=WorkerReport((results,))))

    def stored(self, name: str, tokens: int, blocks: list[int]) -> None:
        """A request that ran, was stored and is gone."""
        request = self.request(name, tokens)
        assert self.half.matched_tokens(request, 0) == (0, False)
        self.admit(request, blocks)
        plan = self.step(new={name: tokens})
        self.half.request_finished(request)
        self.report(*plan.stores)


def test_store_then_load() -> None:
    scheduler = Scheduler()
    scheduler.stored("a", 12, [1, 2, 3])
    again = scheduler.request("b", 14, content="a")
    assert scheduler.half.matched_tokens(again, 4) == (8, True)
    assert scheduler.half.matched_tokens(again, 4) == (8, True)  # asked again while it does not fit
    scheduler.admit(again, [1, 7, 8], external=8)
    plan = scheduler.step()
    ((job,),) = (load.jobs for load in plan.loads)
    assert (job.blocks, job.kind, plan.loads[0].request_id) == ((7, 8), "load", "b")
    scheduler.report(job)
    scheduler.half.request_finished(again)
    assert not scheduler.half.has_pending_work()
    assert scheduler.half.ledger.stats()["holds"] == 0


def test_a_hit_leaves_one_token() -> None:
    scheduler = Scheduler()
    scheduler.stored("a", 12, [1, 2, 3])
    assert scheduler.half.matched_tokens(scheduler.request("b", 12, content="a"), 0) == (8, True)


def test_an_empty_step_sends_one_constant() -> None:
    assert Scheduler().step() is NOTHING


def test_blocks_handed_out_again_are_fenced() -> None:
    scheduler = Scheduler()
    first = scheduler.request("a", 8)
    scheduler.half.matched_tokens(first, 0)
    scheduler.admit(first, [1, 2])
    (store,) = scheduler.step(new={"a": 8}).stores
    scheduler.half.request_finished(first)
    other = scheduler.request("b", 8)
    scheduler.half.matched_tokens(other, 0)
    scheduler.admit(other, [2, 5])
    plan = scheduler.step(new={"b": 8})
    assert plan.flush == (store.id,)
    assert scheduler.step(running={"b": (8, 1, [1])}).flush == ()  # everything later comes after it anyway


def test_a_running_request_that_grows_into_a_block_is_fenced() -> None:
    scheduler = Scheduler()
    for name, blocks in (("a", [1]), ("b", [2])):
        request = scheduler.request(name, 4)
        scheduler.half.matched_tokens(request, 0)
        scheduler.admit(request, blocks)
        plan = scheduler.step(new={name: 4})
        if name == "a":
            (store,) = plan.stores
            scheduler.half.request_finished(request)
    assert scheduler.step(running={"b": (4, 1, [1])}).flush == (store.id,)


def test_the_hash_comes_a_step_late_and_the_request_is_preempted() -> None:
    """Asynchronous scheduling: the tokens are computed, their hash is there only when the blocks are free already."""
    scheduler = Scheduler()
    request = scheduler.request("a", 8)
    late = request.block_hashes.pop()
    scheduler.half.matched_tokens(request, 0)
    scheduler.admit(request, [1, 2])
    assert [job.blocks for job in scheduler.step(new={"a": 8}).stores] == [(1,)]
    request.block_hashes.append(late)
    other = scheduler.request("b", 4)
    scheduler.half.matched_tokens(other, 0)
    scheduler.admit(other, [2])
    plan = scheduler.step(new={"b": 4}, preempted={"a"})
    (early,) = plan.early
    assert early.blocks == (2,)
    assert plan.flush == (early.id,)


def test_preempted_and_admitted_in_one_schedule_keeps_its_new_table() -> None:
    scheduler = Scheduler()
    request = scheduler.request("a", 8)
    scheduler.half.matched_tokens(request, 0)
    scheduler.admit(request, [1, 2])
    scheduler.step(new={"a": 4})
    scheduler.half.matched_tokens(request, 0)
    scheduler.admit(request, [3, 4])
    plan = scheduler.step(new={"a": 8}, preempted={"a"})
    assert plan.early == ()
    assert [job.blocks for job in plan.stores] == [(4,)]  # the first chunk is being stored already


def test_a_preempted_request_waits_for_its_own_stores() -> None:
    scheduler = Scheduler()
    request = scheduler.request("a", 13)
    scheduler.half.matched_tokens(request, 0)
    scheduler.admit(request, [1, 2, 3, 4])
    (store,) = scheduler.step(new={"a": 13}).stores
    request.num_preemptions = 1
    scheduler.step(preempted={"a"})
    assert scheduler.half.matched_tokens(request, 0) == (None, False)
    scheduler.report(store)
    assert scheduler.half.matched_tokens(request, 0) == (12, True)


def test_a_wait_ends_at_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("kvoffload.vllm.scheduler.time.monotonic", lambda: now[0])
    scheduler = Scheduler()
    request = scheduler.request("a", 13)
    scheduler.half.matched_tokens(request, 0)
    scheduler.admit(request, [1, 2, 3, 4])
    scheduler.step(new={"a": 13})
    request.num_preemptions = 1
    scheduler.step(preempted={"a"})
    assert scheduler.half.matched_tokens(request, 0) == (None, False)
    now[0] += 31
    assert scheduler.half.matched_tokens(request, 0) == (0, False)


def test_others_join_a_load_until_its_request_is_admitted() -> None:
    scheduler = Scheduler()
    scheduler.stored("a", 12, [1, 2, 3])
    first, second = (scheduler.request(name, 13, content="a") for name in "bc")
    assert scheduler.half.matched_tokens(first, 0) == (12, True)
    scheduler.admit(first, [4, 5, 6], external=12)
    assert scheduler.half.matched_tokens(second, 0) == (None, False)
    ((job,),) = (load.jobs for load in scheduler.step().loads)
    scheduler.report(job)
    assert scheduler.half.matched_tokens(second, 0) == (None, False)  # its blocks are not in vLLM's own cache yet
    scheduler.admit(first, [4, 5, 6, 7])
    assert scheduler.half.matched_tokens(second, 12) == (0, False)


def test_without_vllms_own_prefix_cache_nobody_waits_for_the_loads_of_others() -> None:
    scheduler = Scheduler(prefix_caching=False)
    scheduler.stored("a", 12, [1, 2, 3])
    first, second = (scheduler.request(name, 13, content="a") for name in "bc")
    assert scheduler.half.matched_tokens(first, 0) == (12, True)
    scheduler.admit(first, [4, 5, 6], external=12)
    assert scheduler.half.matched_tokens(second, 0) == (12, True)


def test_drafts_that_may_be_refused_are_no_computed_tokens() -> None:
    """Asynchronous scheduling: a step is planned while drafts of the one before it are still being checked."""
    scheduler = Scheduler(speculates=True)
    request = scheduler.request("a", 6)
    scheduler.half.matched_tokens(request, 0)
    scheduler.admit(request, [1, 2, 3])
    (store,) = scheduler.step(new={"a": 6}).stores
    assert store.blocks == (1,)
    plan = scheduler.step(running={"a": (9, 4, None)}, drafts={"a": [5, 5, 5]})  # 9: three of them are drafts
    assert plan.stores == ()
    request.num_tokens, request.block_hashes = 8, scheduler.request("a", 8).block_hashes  # all drafts but one refused
    scheduler.half.request_finished(request)  # the KV of its last token was never computed
    assert scheduler.step().early == ()


def test_an_engine_that_stands_still_gives_nothing_up(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("kvoffload.vllm.scheduler.time.monotonic", lambda: now[0])
    scheduler = Scheduler()
    scheduler.half.matched_tokens(request := scheduler.request("a", 4), 0)
    scheduler.admit(request, [1])
    (store,) = scheduler.step(new={"a": 4}).stores
    now[0] += 1000  # nobody asked for anything
    scheduler.step()
    assert scheduler.half.counters["expired_stores"] == 0
    for _ in range(40):
        now[0] += 1
        scheduler.step()
    assert scheduler.half.counters["expired_stores"] == 1
    scheduler.report(store)
    assert scheduler.half.ledger.stats()["late_reports"] == 1


def test_a_request_that_does_not_fit_makes_way_for_those_that_hold_blocks() -> None:
    scheduler = Scheduler()
    scheduler.stored("a", 12, [1, 2, 3])
    first, large, other = (scheduler.request(*given) for given in (("b", 13, "a"), ("large", 100), ("other", 8)))
    assert scheduler.half.matched_tokens(first, 0) == (12, True)
    scheduler.admit(first, [4, 5, 6], external=12)
    ((job,),) = (load.jobs for load in scheduler.step().loads)
    assert scheduler.half.matched_tokens(large, 0) == (0, False)  # does not fit
    assert scheduler.half.matched_tokens(large, 0) == (0, False)  # the load is still under way
    scheduler.report(job)
    assert scheduler.half.matched_tokens(large, 0) == (None, False)
    assert scheduler.half.matched_tokens(other, 0) == (None, False)  # nobody else passes
    scheduler.admit(first, [4, 5, 6, 7])
    assert scheduler.half.matched_tokens(large, 0) == (0, False)
    assert scheduler.half.matched_tokens(other, 0) == (0, False)


@pytest.mark.parametrize("state", ["waiting", "loading"])
def test_joiners_go_on_when_the_request_they_wait_for_is_gone(state: str) -> None:
    scheduler = Scheduler()
    scheduler.stored("a", 12, [1, 2, 3])
    first, second = (scheduler.request(name, 13, content="a") for name in "bc")
    scheduler.half.matched_tokens(first, 0)
    if state == "loading":
        scheduler.admit(first, [4, 5, 6], external=12)
        assert scheduler.half.matched_tokens(second, 0) == (None, False)
    scheduler.half.request_finished(first)
    assert scheduler.half.matched_tokens(second, 0) == (12, True)


def test_a_failed_load_is_a_miss_afterwards() -> None:
    scheduler = Scheduler(ranks=2)
    request = scheduler.request("a", 12)
    scheduler.half.matched_tokens(request, 0)
    scheduler.admit(request, [1, 2, 3])
    (store,) = scheduler.step(new={"a": 12}).stores
    scheduler.half.request_finished(request)
    scheduler.report(store, rank=0)
    again = scheduler.request("b", 13, content="a")
    assert scheduler.half.matched_tokens(again, 0) == (0, False)  # one rank has not reported
    scheduler.report(store, rank=1)
    assert scheduler.half.matched_tokens(again, 0) == (12, True)
    scheduler.admit(again, [4, 5, 6], external=12)
    ((job,),) = (load.jobs for load in scheduler.step().loads)
    scheduler.report(job, rank=1, ok=False)
    scheduler.report(job, rank=0)
    assert scheduler.half.matched_tokens(again, 0) == (0, False)
    assert scheduler.half.counters["failed_loads"] == 1


def test_a_promise_that_vllm_changed_is_a_failed_load() -> None:
    scheduler = Scheduler(blocks_per_chunk=2)
    scheduler.stored("a", 16, [1, 2, 3, 4])
    again = scheduler.request("b", 17, content="a")
    assert scheduler.half.matched_tokens(again, 0) == (16, True)
    scheduler.admit(again, [5, 6, 7], external=12)
    (load,) = scheduler.step().loads
    assert load.jobs == ()
    assert load.refused == (5, 6, 7)
    scheduler.half.request_finished(again)
    assert scheduler.half.ledger.stats()["holds"] == 0


@pytest.mark.parametrize("admitted", [True, False])
def test_nothing_from_before_a_reset_is_stored_after_it(admitted: bool) -> None:
    scheduler = Scheduler()
    request = scheduler.request("a", 12)
    scheduler.half.matched_tokens(request, 0)
    scheduler.admit(request, [1, 2, 3])
    (store,) = scheduler.step(new={"a": 4}).stores
    scheduler.half.reset()
    scheduler.report(store)
    if admitted:  # it goes on running, on KV from before
        assert scheduler.step(running={"a": (4, 8, [4])}).stores == ()
    else:  # it was preempted by the reset and asks again, but finds no room
        scheduler.half.matched_tokens(request, 0)
        assert scheduler.step(preempted={"a"}) is NOTHING
    scheduler.half.request_finished(request)
    assert scheduler.step() is NOTHING
    assert scheduler.half.ledger.stats()["ready_keys"] == 0


def test_requests_that_share_a_block_in_different_chunks() -> None:
    """With two blocks a chunk, a shared first block: two chunks read it, so they cannot be in one job."""
    scheduler = Scheduler(blocks_per_chunk=2)
    for name, blocks in (("a", [1, 2]), ("b", [1, 3])):
        request = scheduler.request(name, 8)
        scheduler.half.matched_tokens(request, 0)
        scheduler.admit(request, blocks)
    assert [job.blocks for job in scheduler.step(new={"a": 8, "b": 8}).stores] == [(1, 2), (1, 3)]


def test_nothing_is_served_before_the_workers_said_hello() -> None:
    spec = SimpleNamespace(block_size=TOKENS)
    config = SimpleNamespace(kv_cache_groups=[SimpleNamespace(kv_cache_spec=spec)])
    scheduler = Scheduler()
    scheduler.half = LedgerHalf(Options(host=4096), config, TOKENS, 1)
    request = scheduler.request("a", 12)
    assert scheduler.half.matched_tokens(request, 0) == (0, False)
    scheduler.admit(request, [1, 2, 3])
    assert scheduler.step(new={"a": 12}) is NOTHING
    scheduler.half.request_finished(request)
    assert scheduler.step() is NOTHING


def test_a_reset_that_is_not_durable_in_time_hides_all_the_same_and_says_so() -> None:
    scheduler = Scheduler()
    assert scheduler.half.reset()
    request = scheduler.request("a", 8)
    scheduler.half.matched_tokens(request, 0)
    scheduler.admit(request, [1, 2])

    def reset() -> None:
        raise WaitTimeout("the disk hangs")

    scheduler.half.ledger.reset = reset  # type: ignore[method-assign]
    assert not scheduler.half.reset()
    assert scheduler.step(new={"a": 8}) is NOTHING  # nothing older than the reset is stored
