"""Random traffic through vLLM's real scheduler: every block that a step reads holds what it must, and nothing leaks."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("vllm", reason="vLLM is not installed; `make test-vllm` installs it")
import models as checkpoints
from simulator import BLOCK, VOCAB, Setting, Simulation, answer_of, prompts
from vllm.config import VllmConfig
from vllm.distributed.kv_transfer import kv_transfer_state

from kvoffload import _C
from kvoffload.vllm import start

pytestmark = pytest.mark.vllm


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return checkpoints.write_llama(tmp_path_factory.mktemp("model"))


@pytest.fixture(autouse=True)
def _restore(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What simulations replace in vLLM and in the connector."""
    monkeypatch.setattr(VllmConfig, "use_v2_model_runner", VllmConfig.use_v2_model_runner)
    monkeypatch.setattr(kv_transfer_state, "_KV_CONNECTOR_AGENT", None)
    for name in ("get_pp_group", "get_tp_group"):
        monkeypatch.setattr(start, name, getattr(start, name))
    yield
    _C.fault_disarm_all()


class WrongBlock(AssertionError):
    """A step read a block that does not hold what it must."""


def play(
    simulation: Simulation,
    seed: int,
    *,
    aborts: bool = False,
    resets: bool = False,
    failures: bool = False,
    slow: float = 0.005,
    make_prompts: Callable[[random.Random, int], list[list[int]]] = prompts,
) -> None:
    """40 requests at random moments, many with a beginning in common, slow transfers now and then."""
    chance = random.Random(seed)
    asked = {f"{seed}-{i}": (prompt, chance.randrange(1, 60)) for i, prompt in enumerate(make_prompts(chance, 40))}
    waiting = list(asked.items())
    simulation.answers.clear()
    for worker in simulation.workers:
        worker.failures = {"load": 0.7, "store": 0.1} if failures else {}
    while waiting or simulation.scheduler.has_unfinished_requests():
        if waiting and chance.random() < 0.4:
            name, (prompt, answer) = waiting.pop()
            simulation.add(name, prompt, answer)
        if chance.random() < slow:
            _C.fault_arm("enqueue_delay", 0, 2)
        if (
            aborts
            and chance.random() < 0.1
            and (live := sorted(set(simulation.scheduler.requests) & set(simulation.answers)))
        ):
            simulation.abort(chance.choice(live))
        if resets and chance.random() < 0.03:
            simulation.scheduler.connector.reset_cache()
        simulation.step()
        if simulation.wrong:
            raise WrongBlock(simulation.wrong[0])
    simulation.check_leaks()
    for name, answer in simulation.answers.items():
        assert answer == answer_of(*asked[name]), name
    assert len(simulation.answers) >= (10 if aborts else len(asked))


@pytest.fixture(params=["V1", "V2"])
def runner_v2(request: pytest.FixtureRequest) -> bool:
    return bool(request.param == "V2")


MIXED = {"windows": (None, 34), "blocks": 80}
MODES = [
    pytest.param({}, id="plain"),
    pytest.param({"blocks_per_chunk": 3, "batched_tokens": 48}, id="chunks of 3, small batches"),
    pytest.param({"asynchronous": True}, id="asynchronous"),
    pytest.param({"asynchronous": True, "blocks_per_chunk": 2}, id="asynchronous, chunks of 2"),
    pytest.param({"host_chunks": 30}, id="little host memory"),
    pytest.param({"ranks": 2, "blocks_per_chunk": 2}, id="two ranks"),
    pytest.param({"ranks": 2, "asynchronous": True}, id="two ranks, asynchronous"),
]
WINDOWED = [
    pytest.param({"windows": (34,)}, id="window"),
    pytest.param({**MIXED, "asynchronous": True, "blocks_per_chunk": 3}, id="mixed, asynchronous, chunks of 3"),
    pytest.param({**MIXED, "windows": (34, None, 66), "blocks": 120, "batched_tokens": 48}, id="two windows"),
    pytest.param({**MIXED, "ranks": 2, "blocks_per_chunk": 2}, id="mixed, two ranks"),
]


@pytest.mark.parametrize("setting", MODES + WINDOWED)
def test_random_traffic(model: Path, runner_v2: bool, setting: dict[str, Any]) -> None:
    simulation = Simulation(model, Setting(runner_v2=runner_v2, **setting))
    for seed in range(4):
        play(simulation, seed, aborts=seed == 1, failures=seed == 2, resets=seed == 3)
    counters = simulation.half.counters
    for seed in range(10, 20):  # there are few loads with little host memory
        if counters["failed_loads"] == 0:
            play(simulation, seed, failures=True)
    print(dict(counters))
    for name in ("hit_tokens", "resumed_by_load", "flushes", "joins", "failed_loads", "failed_stores", "resets"):
        assert counters[name] > 0, name
    if simulation.setting.asynchronous:
        assert counters["early_stores"] > 0
    simulation.close()


def whole_prompts(chance: random.Random, count: int) -> list[list[int]]:
    """A few prompts of whole chunks, again and again, so that most are stored whole."""
    known = [[chance.randrange(VOCAB) for _ in range(6 * chance.randrange(1, 3) * BLOCK)] for _ in range(8)]
    return [chance.choice(known) for _ in range(count)]


@pytest.mark.parametrize("setting", MODES)
def test_the_last_token_of_a_prompt_is_computed_over_its_loaded_block(
    model: Path, runner_v2: bool, setting: dict[str, Any]
) -> None:
    simulation = Simulation(model, Setting(runner_v2=runner_v2, **setting))
    assert simulation.half.whole_prompts
    found = []
    allocated = simulation.half.allocated

    def allocated_seen(request: Any, blocks: Any, external_tokens: int) -> None:
        found.append(external_tokens)
        allocated(request, blocks, external_tokens)

    simulation.half.allocated = allocated_seen
    for seed in range(4):
        play(simulation, seed, aborts=seed == 1, failures=seed == 2, resets=seed == 3, make_prompts=whole_prompts)
    assert sum(tokens % BLOCK == BLOCK - 1 for tokens in found) >= 4
    simulation.close()


@pytest.mark.parametrize("asynchronous", [False, True])
def test_without_the_fence_blocks_are_stored_wrong(model: Path, runner_v2: bool, asynchronous: bool) -> None:
    """Negative control: what the fence is for does happen."""
    simulation = Simulation(model, Setting(asynchronous=asynchronous, runner_v2=runner_v2))
    simulation.half._fence.hand_out = lambda blocks: None

    def play_on() -> None:
        for seed in range(10):
            play(simulation, seed, slow=0.05)

    with pytest.raises(WrongBlock):
        play_on()
    simulation.close()
