"""Random traffic through vLLM's real scheduler: every block that a step reads holds what it must, and nothing leaks."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("vllm", reason="vLLM is not installed; `make test-vllm` installs it")
import models as checkpoints  # noqa: E402
from simulator import Setting, Simulation, answer_of, prompts  # noqa: E402

from kvoffload import _C  # noqa: E402

pytestmark = pytest.mark.vllm


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return checkpoints.write_llama(tmp_path_factory.mktemp("model"))


@pytest.fixture(params=["V1", "V2"])
def runner(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    monkeypatch.setenv("VLLM_USE_V2_MODEL_RUNNER", str(int(request.param == "V2")))
    return request.param == "V2"


@pytest.fixture(autouse=True)
def disarmed() -> Iterator[None]:
    yield
    _C.fault_disarm_all()


def play(simulation: Simulation, seed: int, *, aborts: bool = False, resets: bool = False, slow: bool = False) -> None:
    """40 requests at random moments, many with a beginning in common."""
    chance = random.Random(seed)
    asked = {str(i): (prompt, chance.randrange(1, 60)) for i, prompt in enumerate(prompts(chance, 40))}
    waiting = list(asked.items())
    aborted: set[str] = set()
    while waiting or simulation.scheduler.has_unfinished_requests():
        if waiting and chance.random() < 0.4:
            name, (prompt, answer) = waiting.pop()
            simulation.add(name, prompt, answer)
        if slow and chance.random() < 0.02:
            _C.fault_arm("enqueue_delay", 0, 2)
        if aborts and chance.random() < 0.1:
            live = sorted(set(simulation.answers) - simulation.finished - aborted)
            if live:
                aborted.add(chance.choice(live))
                simulation.abort(chance.choice(sorted(aborted)))
        if resets and chance.random() < 0.02:
            simulation.scheduler.connector.reset_cache()
        simulation.step()
    assert simulation.wrong == []
    simulation.check_leaks()
    for name in simulation.finished - aborted:
        assert simulation.answers[name] == answer_of(*asked[name]), name
    assert simulation.finished | aborted >= set(asked)


MODES = [
    pytest.param(Setting(), id="plain"),
    pytest.param(Setting(blocks_per_chunk=3, batched_tokens=48), id="chunks of 3, small batches"),
    pytest.param(Setting(asynchronous=True), id="asynchronous"),
    pytest.param(Setting(asynchronous=True, blocks_per_chunk=2), id="asynchronous, chunks of 2"),
    pytest.param(Setting(host_chunks=30), id="little host memory"),
]


@pytest.mark.parametrize("setting", MODES)
def test_random_traffic(model: Path, runner: bool, setting: Setting) -> None:
    setting = Setting(**{**vars(setting), "runner_v2": runner})
    simulation = Simulation(model, setting)
    for seed in range(3):
        play(simulation, seed, aborts=seed == 1, slow=True)
    counters = simulation.half.counters
    print(dict(counters))
    assert counters["hit_tokens"] > 0
    assert counters["resumed_by_load"] > 0
    assert counters["flushes"] > 0
    simulation.close()
