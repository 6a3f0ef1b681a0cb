"""What the scheduler half loads and stores of a request: whole prompts, decoded blocks, requests that must not read."""

from __future__ import annotations

import math
from typing import Any

import pytest

pytest.importorskip("vllm", reason="vLLM is not installed; `make test-vllm` installs it")
import torch
from test_ledger_half import TOKENS, Scheduler
from vllm import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.request import Request

from kvoffload.vllm.metadata import NOTHING

pytestmark = pytest.mark.vllm


def test_a_prompt_stored_whole_is_a_hit_but_for_its_last_token() -> None:
    """Where vLLM takes such a count. The last chunk is loaded whole, and is known when the token was computed again."""
    scheduler = Scheduler(blocks_per_chunk=2, whole_prompts=True)
    scheduler.stored("a", 24, [1, 2, 3, 4, 5, 6])
    again = scheduler.request("b", 24, content="a")
    assert scheduler.half.matched_tokens(again, 4) == (19, True)
    scheduler.admit(again, [1, 8, 9, 10, 11, 12], external=19)
    ((job,),) = (load.jobs for load in scheduler.step().loads)
    assert (job.blocks, job.skip_blocks) == ((1, 8, 9, 10, 11, 12), 1)
    scheduler.report(job)
    scheduler.admit(again, [1, 8, 9, 10, 11, 12])
    assert scheduler.step(running={"b": (23, 1, None)}) is NOTHING
    scheduler.half.request_finished(again)
    assert not scheduler.half.has_pending_work()
    counters = scheduler.half.counters
    assert counters["found_tokens"] + 1 == counters["queried_tokens"] - 24 == 20
    assert counters["found_chunks"] == 2
    assert scheduler.half.ledger.stats()["holds"] == 0


@pytest.mark.parametrize(("local", "external"), [(0, 23), (12, 11), (16, 0), (20, 0)])
def test_the_last_chunk_of_a_prompt_is_not_loaded_alone(local: int, external: int) -> None:
    scheduler = Scheduler(blocks_per_chunk=2, whole_prompts=True)
    scheduler.stored("a", 24, [1, 2, 3, 4, 5, 6])
    again = scheduler.request("b", 24, content="a")
    assert scheduler.half.matched_tokens(again, local) == (external, external > 0)
    longer = scheduler.request("c", 25, content="a")
    assert scheduler.half.matched_tokens(longer, local) == (24 - local, True)


@pytest.mark.parametrize(("decode_blocks", "blocks"), [(True, [(1, 2), (3,), (4,)]), (False, [(1, 2)])])
def test_what_decoding_computes_is_stored_unless_the_option_says_no(
    decode_blocks: bool, blocks: list[tuple[int, ...]]
) -> None:
    scheduler = Scheduler(decode_blocks=decode_blocks)
    request = scheduler.request("a", 20)
    request.num_prompt_tokens = 10
    scheduler.half.matched_tokens(request, 0)
    scheduler.admit(request, [1, 2, 3])
    jobs = list(scheduler.step(new={"a": 10}).stores)
    for before in range(10, 14):
        jobs += scheduler.step(running={"a": (before, 1, [4] if before == 12 else None)}).stores
    state = scheduler.half._requests["a"]
    assert (state.next_tokens < math.inf) == decode_blocks, "asked in vain in each step"
    scheduler.step(running={"a": (14, 1, None)})
    state.computed_tokens = 16  # of a step in flight
    scheduler.half.request_finished(request)
    jobs += scheduler.step().early
    assert [job.blocks for job in jobs] == blocks


def test_a_request_that_must_not_read_is_stored_and_waits_for_nobody() -> None:
    """Prompt log-probabilities, for instance, need every token computed."""
    scheduler = Scheduler()
    scheduler.stored("a", 12, [1, 2, 3])
    first = scheduler.request("b", 13, content="a")
    assert scheduler.half.matched_tokens(first, 0) == (12, True)
    scheduler.admit(first, [4, 5, 6], external=12)
    other = scheduler.request("c", 13, content="a")
    other.skip_reading_prefix_cache = True
    assert scheduler.half.matched_tokens(other, 0) == (0, False)
    scheduler.half.request_finished(first)
    scheduler.half.request_finished(other)
    assert scheduler.half.ledger.stats()["holds"] == 0
    new = scheduler.request("d", 8)
    new.skip_reading_prefix_cache = True
    assert scheduler.half.matched_tokens(new, 0) == (0, False)
    scheduler.admit(new, [7, 8])
    assert [job.blocks for job in scheduler.step(new={"d": 8}).stores] == [(7, 8)]


def test_prompts_given_as_embeddings_are_told_apart_by_them() -> None:
    init_none_hash(sha256)
    scheduler = Scheduler()

    def request(name: str, content: float) -> Any:
        return Request(
            name,
            None,
            SamplingParams(max_tokens=1),
            None,
            prompt_embeds=torch.full((13, 8), content),
            block_hasher=get_request_block_hasher(TOKENS, sha256),
        )

    first = request("a", 1.0)
    assert scheduler.half.matched_tokens(first, 0) == (0, False)
    scheduler.admit(first, [1, 2, 3, 4])
    plan = scheduler.step(new={"a": 13})
    assert [job.blocks for job in plan.stores] == [(1, 2, 3)]  # never the part of a block
    scheduler.half.request_finished(first)
    scheduler.report(*plan.stores)
    assert scheduler.half.matched_tokens(request("other", 2.0), 0) == (0, False)
    assert scheduler.half.matched_tokens(request("same", 1.0), 0) == (12, True)
