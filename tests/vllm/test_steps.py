"""What the scheduler half learns from vLLM's steps, and that what the rule refuses is computed."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("vllm", reason="vLLM is not installed; `make test-vllm` installs it")

from test_ledger_half import Scheduler

from kvoffload.messages import Hello
from kvoffload.prefill import Work
from kvoffload.vllm.options import Options
from kvoffload.vllm.scheduler import LedgerHalf
from kvoffload.vllm.steps import FullStep, prefill_of

pytestmark = pytest.mark.vllm


def output(new: dict[str, int], running: dict[str, tuple[int, int]], drafts: dict[str, list[int]]) -> Any:
    """new: request -> tokens, behind 100; running: request -> (tokens before, tokens)."""
    return SimpleNamespace(
        scheduled_new_reqs=[SimpleNamespace(req_id=name, num_computed_tokens=100) for name in new],
        scheduled_cached_reqs=SimpleNamespace(
            req_ids=list(running), num_computed_tokens=[before for before, _ in running.values()]
        ),
        num_scheduled_tokens={**new, **{name: count for name, (_, count) in running.items()}},
        scheduled_spec_decode_tokens=drafts,
    )


def test_a_step_is_what_its_prefill_computes() -> None:
    assert prefill_of(output({"a": 8, "b": 1}, {"c": (10, 20)}, {})) == Work(28, 8 * 104.0 + 20 * 20.0)
    assert prefill_of(output({}, {"a": (8, 1), "b": (4, 3)}, {"b": [5, 5]})) == Work(0, 0.0)
    assert prefill_of(output({}, {"b": (4, 4)}, {"b": [5, 5]})) == Work(4, 4 * 6.0)
    assert prefill_of(output({}, {}, {})) is None


def test_a_step_is_full_by_its_tokens_or_its_requests() -> None:
    for full, tokens in ((FullStep(tokens=4), 4), (FullStep(requests=1), 1)):
        scheduler = Scheduler(full_step=full)
        scheduler.stored("a", 3, [1])
        lookup = scheduler.half._lookup
        assert lookup is not None and not lookup.busy  # no request is left
        scheduler.admit(scheduler.request("b", 40), [2])
        scheduler.step(new={"b": tokens})
        assert lookup.busy
        scheduler.step()
        assert not lookup.busy


def test_what_was_refused_is_counted_once_and_computed() -> None:
    scheduler = Scheduler(worth_loading="never")
    scheduler.stored("a", 12, [1, 2, 3])
    again = scheduler.request("b", 14, content="a")
    for _ in range(3):
        assert scheduler.half.matched_tokens(again, 4) == (0, False)
        scheduler.step()
    scheduler.admit(again, [1, 7, 8])
    assert scheduler.half.counters["refused_host_tokens"] == 8
    assert scheduler.half.counters["loads"] == 0


def test_the_disk_is_as_fast_as_the_slowest_rank_probed_it() -> None:
    spec = SimpleNamespace(kv_cache_spec=SimpleNamespace(block_size=4))
    for slowest, end in ((10**6, 0), (10**12, 64)):
        half = LedgerHalf(Options(host=65536), SimpleNamespace(kv_cache_groups=[spec]), 4, 2)
        half.hello(
            Hello(rank, (4096,), (1,), 65536, 65536, "f", False, "host", disk_read_bytes_per_second=speed)
            for rank, speed in enumerate((10**12, slowest))
        )
        assert half.worth is not None and half.worth.best_end(0, 0, 64) == end
