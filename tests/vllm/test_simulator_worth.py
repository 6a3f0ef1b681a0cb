"""The rule of `worth_loading` in vLLM's real scheduler: what is refused is computed, and the answers are right."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("vllm", reason="vLLM is not installed; `make test-vllm` installs it")
from simulator import Simulation
from test_simulator import play
from test_simulator_disk import PROMPTS, Hybrid, _restore, model, stored_tokens  # noqa: F401  (fixtures)

from kvoffload.messages import Job, JobResult
from kvoffload.prefill import LEAST_SAMPLES, StepTimes, Work
from kvoffload.vllm.scheduler import LedgerHalf
from kvoffload.worth import Worth

pytestmark = pytest.mark.vllm

FAST, SLOW = 1e15, 1.0  # bytes a second


def teach(half: LedgerHalf, *, prefill: float = 1e-3, promote: float = FAST) -> Worth:
    """Seconds a token and bytes a second, which what is measured from now on does not change."""
    assert half.worth is not None
    worth, fit = half.worth, half.worth.fit
    half._steps = StepTimes(type(fit)())
    for tokens in range(1, LEAST_SAMPLES + 1):
        fit.note(Work.of(tokens * 100, 0), tokens * 100 * prefill)
    worth.began(Job(1 << 40, "promote", 0, (), (0,)))
    worth.took(0, [JobResult(1 << 40, True, 1000, 1000 / promote)])
    worth.ended(1 << 40)
    worth.took = lambda rank, results: None  # type: ignore[method-assign]
    return worth


def stored(model: Path, folder: Path) -> None:  # noqa: F811
    with Hybrid(model, folder) as hybrid:
        hybrid.ask()


def refused(half: LedgerHalf) -> dict[str, int]:
    return {name: count for name, count in half.counters.items() if "refused_" in name and "tokens" in name and count}


def test_a_fast_disk_is_taken(model: Path, tmp_path: Path) -> None:  # noqa: F811
    stored(model, tmp_path)
    with Hybrid(model, tmp_path, worth_loading="auto") as hybrid:
        teach(hybrid.simulation.half)
        assert hybrid.ask() == stored_tokens(hybrid.simulation)
        assert refused(hybrid.simulation.half) == {}


def test_a_slow_disk_is_refused_and_what_host_memory_has_is_not(model: Path, tmp_path: Path) -> None:  # noqa: F811
    stored(model, tmp_path)
    with Hybrid(model, tmp_path, worth_loading="auto") as hybrid:
        half = hybrid.simulation.half
        teach(half, promote=SLOW)
        assert hybrid.ask() == 0
        everything = stored_tokens(hybrid.simulation)
        assert refused(half) == {"refused_disk_tokens": everything}
        assert hybrid.ask(PROMPTS[-1:]) == (len(PROMPTS[-1]) - 1) // 16 * 16  # it was computed, and is in host memory
        assert refused(half) == {"refused_disk_tokens": everything}
        assert half.counters["promotions"] == 0


def test_a_hit_is_cut(model: Path, tmp_path: Path) -> None:  # noqa: F811
    """A prompt and its beginning in host memory, the rest of it on disk."""
    stored(model, tmp_path)
    with Hybrid(model, tmp_path, worth_loading="auto") as hybrid:
        half = hybrid.simulation.half
        teach(half, promote=SLOW)
        hybrid.ask([PROMPTS[0][:49]])
        before = half.counters["refused_disk_tokens"]
        assert before == 48
        assert hybrid.ask(PROMPTS[:1]) == 48
        assert half.counters["refused_disk_tokens"] - before == (len(PROMPTS[0]) - 1) // 16 * 16 - 48


def test_never_computes_all_and_always_computes_nothing_twice(model: Path, tmp_path: Path) -> None:  # noqa: F811
    with Hybrid(model, tmp_path, worth_loading="never") as hybrid:
        teach(hybrid.simulation.half, prefill=1e6)
        assert hybrid.ask() == hybrid.ask() == 0
        counts = refused(hybrid.simulation.half)
        assert sum(counts.values()) == stored_tokens(hybrid.simulation)
    with Hybrid(model, tmp_path, worth_loading="always") as hybrid:
        teach(hybrid.simulation.half, prefill=1e-15, promote=SLOW)
        assert hybrid.ask() == stored_tokens(hybrid.simulation)


@pytest.mark.parametrize("setting", [{}, {"asynchronous": True}, {"ranks": 2, "runner_v2": True}], ids=str)
def test_random_traffic_teaches_it_and_nothing_is_left_in_its_queues(
    model: Path,  # noqa: F811
    tmp_path: Path,
    setting: dict[str, Any],
) -> None:
    with Hybrid(model, tmp_path, worth_loading="auto", **setting) as hybrid:
        for seed in range(4):
            play(hybrid.simulation, seed, aborts=seed == 1, failures=seed == 2, resets=seed == 3)
        stats = _stats(hybrid.simulation)
        assert stats["load_queued_bytes"] == stats["promote_queued_bytes"] == 0
        assert stats["prefill_samples"] >= LEAST_SAMPLES
        assert stats["load_seconds_per_byte"] > 0


def _stats(simulation: Simulation) -> dict[str, Any]:
    assert simulation.half.worth is not None
    return simulation.half.worth.stats()
