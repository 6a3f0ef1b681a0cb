"""What the scheduler half answers when a model has several KV groups, and what the eviction policy hears of it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("vllm", reason="vLLM is not installed; `make test-vllm` installs it")

from kvoffload.ledger import Ledger
from kvoffload.messages import Hello, Job, JobResult, Results
from kvoffload.vllm.groups import ChunkGroup, hit_unit_tokens
from kvoffload.vllm.lookup import Lookup
from kvoffload.vllm.requests import RequestState
from kvoffload.worth import Worth

pytestmark = pytest.mark.vllm

TOKENS = 4  # that vLLM hashes together
GROUPS = (ChunkGroup(0, 4, 1, TOKENS), ChunkGroup(1, 4, 2, TOKENS))  # chunks of 4 and of 8 tokens


class Half:
    """A ledger of two groups and a lookup in it."""

    def __init__(
        self, slots: int = 32, policy: Any = "adaptive", groups: tuple[ChunkGroup, ...] = GROUPS, worth: Any = None
    ) -> None:
        self.groups = groups
        self.ledger = Ledger(policy=policy)
        per_chunk = tuple(group.blocks_per_chunk for group in groups)
        self.ledger.hello(
            Hello(0, (4096,) * len(groups), per_chunk, slots * 4096, slots * 4096, "f", pinned=False, device="host")
        )
        worth = worth or Worth("always", [4096] * len(groups), [group.tokens_per_chunk for group in groups])
        self.lookup = Lookup(self.ledger, groups, hit_unit_tokens(groups), 30.0, worth)

    def plan_store(self, request: Any, group: int, first: int, end: int) -> Job:
        keys = self.groups[group].keys(request.block_hashes, first, end)
        job = self.ledger.plan_store(keys, [0] * len(keys) * self.groups[group].blocks_per_chunk, group)
        assert job is not None
        return job

    def report(self, job: Job) -> None:
        self.ledger.apply(Results(0, (JobResult(job.id, True, 0, 0.0),)))

    def store(self, request: Any, group: int, first: int, end: int) -> None:
        self.report(self.plan_store(request, group, first, end))

    def answer(self, state: RequestState) -> tuple[int | None, bool]:
        self.lookup.generation += 1
        return self.lookup.answer(state, 0.0)


def make_request(tokens: int, name: str = "a") -> Any:
    hashes = [f"{name} {i}".ljust(32).encode() for i in range(tokens // TOKENS)]
    return SimpleNamespace(request_id=name, num_tokens=tokens, block_hashes=hashes, num_preemptions=0)


def test_a_hit_is_what_all_groups_have_and_no_more_is_held() -> None:
    half, request = Half(), make_request(33)
    state = RequestState(request)
    half.store(request, 0, 0, 7)
    assert half.answer(state) == (0, False)
    assert half.ledger.stats()["holds"] == 0
    half.store(request, 1, 0, 2)
    assert half.answer(state) == (16, True)
    assert [hold.keys_held for hold in state.holds] == [4 + 2]
    half.store(request, 1, 2, 4)
    assert half.answer(state) == (24, True)  # the first group has 28 tokens, no chunk of the second ends there
    state.local_tokens = 8
    assert half.answer(state) == (16, True)
    state.release_holds()
    assert half.ledger.stats()["holds"] == 0


def test_a_preempted_request_waits_for_its_stores_only_if_they_make_the_hit_longer() -> None:
    half, request = Half(), make_request(33)
    request.num_preemptions = 1
    state = RequestState(request)
    half.store(request, 0, 0, 3)
    half.store(request, 1, 0, 1)
    storing = half.plan_store(request, 1, 1, 2)
    assert half.answer(state) == (8, True)  # tokens 12 to 15 of the first group are nowhere
    other = half.plan_store(request, 0, 3, 4)
    assert half.answer(state) == (None, False)
    half.report(storing)
    assert half.answer(state) == (None, False)
    half.report(other)
    assert half.answer(state) == (16, True)


def test_a_new_request_does_not_wait_for_the_stores_of_others() -> None:
    half, request = Half(), make_request(9)
    for group in range(2):
        half.plan_store(request, group, 0, 1)
    assert half.answer(RequestState(request)) == (0, False)


def test_a_request_that_is_aborted_while_it_waits_has_used_its_keys() -> None:
    half = Half(slots=10, policy="s3fifo", groups=GROUPS[:1])
    used = make_request(9, "used")
    half.store(used, 0, 0, 1)
    for i in range(9):
        half.store(make_request(4, f"first {i}"), 0, 0, 1)
    state = RequestState(used)
    assert half.answer(state) == (4, True)
    state.release_holds()
    for i in range(10):
        half.store(make_request(4, f"second {i}"), 0, 0, 1)
    assert half.ledger.states(used.block_hashes[:1]) == ["ready"]


class Verdicts(Worth):
    """Says what it is told."""

    def __init__(self) -> None:
        super().__init__("auto", [4096], [4])
        self.end, self.tries, self.was_busy = 0, False, False

    def best_end(self, start: int, host_end: int, end: int, *, busy: bool = False) -> int:
        self.was_busy = busy
        return max(start, min(self.end, end))

    def try_anyway(self) -> bool:
        self.counters["asked to try"] += 1
        return self.tries


def judged(tokens: int = 17) -> tuple[Half, Verdicts, RequestState]:
    worth = Verdicts()
    half = Half(groups=GROUPS[:1], worth=worth)
    request = make_request(tokens)
    half.store(request, 0, 0, tokens // TOKENS)
    return half, worth, RequestState(request)


def test_a_refused_hit_is_no_hit_and_holds_nothing() -> None:
    half, worth, state = judged()
    assert half.answer(state) == (0, False)
    assert half.ledger.stats()["holds"] == 0
    worth.end = 16
    assert half.answer(state) == (16, True)


def test_a_request_is_tried_or_not_however_often_vllm_asks() -> None:
    half, worth, state = judged()
    assert [half.answer(state) for _ in range(5)] == [(0, False)] * 5
    assert worth.counters["asked to try"] == 1
    half.lookup.count_verdict(state)
    assert worth.counters["refused_host_tokens"] == 16
    state.stop_waiting()
    worth.tries = True
    assert [half.answer(state) for _ in range(5)] == [(16, True)] * 5
    half.lookup.count_verdict(state)
    assert worth.counters["tried_anyway_tokens"] == worth.counters["refused_host_tokens"] == 16
    assert worth.counters["asked to try"] == 2


def test_a_hit_that_was_worth_it_stays_so_until_the_request_runs() -> None:
    half, worth, state = judged()
    worth.end = 16
    assert half.answer(state) == (16, True)
    worth.end = 0
    assert half.answer(state) == (16, True)
    half.lookup.count_verdict(state)
    assert worth.counters["refused_host_tokens"] == 0
    state.stop_waiting()
    assert half.answer(state) == (0, False)


def test_the_gpu_is_busy_after_a_full_step_and_when_somebody_waits_for_blocks() -> None:
    half, worth, state = judged()
    half.answer(state)
    assert not worth.was_busy
    half.answer(state)  # asked again after an answer: there were no blocks
    assert worth.was_busy
    half.lookup.busy = True
    other = RequestState(state.request)
    half.answer(other)
    assert worth.was_busy
