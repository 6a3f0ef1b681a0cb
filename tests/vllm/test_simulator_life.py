"""New weights, sleep and shutdown in the middle of random traffic: KV of other weights is never read, nothing hangs."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("vllm", reason="vLLM is not installed; `make test-vllm` installs it")
import simulator
from simulator import Setting, Simulation, prompts
from test_simulator_disk import Hybrid, _restore, model, stored_tokens  # noqa: F401

from kvoffload import _C

pytestmark = pytest.mark.vllm


@pytest.fixture
def retrain() -> Iterator[Any]:
    """Changes the model of arithmetic and what it has computed, as an update of the weights does."""
    old = simulator.follow

    def change(simulation: Simulation) -> None:
        simulator.follow = lambda value, token: old(value, token) ^ 0x55
        for worker in simulation.workers:
            for sequence in worker.sequences.values():
                sequence.values.clear()

    yield change
    simulator.follow = old


def traffic(simulation: Simulation, seed: int, requests: int = 40, steps: int = 10**9) -> None:
    """The same prompts for every seed, in another order."""
    waiting = list(enumerate(prompts(random.Random(1), requests)))
    chance = random.Random(seed)
    chance.shuffle(waiting)
    while steps and (waiting or simulation.scheduler.has_unfinished_requests()):
        if waiting and chance.random() < 0.4:
            index, prompt = waiting.pop()
            simulation.add(f"{seed}-{index}", prompt, chance.randrange(1, 60))
        simulation.step()
        steps -= 1


@pytest.mark.parametrize("told", [True, False], ids=["told", "control: not told"])
@pytest.mark.parametrize("disk", [False, True], ids=["host", "disk"])
def test_new_weights_in_the_middle_of_traffic(
    model: Path,  # noqa: F811
    tmp_path: Path, disk: bool, told: bool, retrain: Any,
) -> None:  # fmt: skip
    """vLLM's own cache is emptied, as whoever updates weights must do; ours was not asked to be."""
    simulation = Simulation(model, Setting(host_chunks=40, disk=str(tmp_path)) if disk else Setting())
    try:
        traffic(simulation, 1)
        traffic(simulation, 2, steps=60)
        if told:
            simulation.half.new_weights("update_weights called on the workers")
            assert simulation.half.ledger.stats()["ready_keys"] == 0
        retrain(simulation)
        assert simulation.scheduler.reset_prefix_cache(reset_running_requests=True)
        before = simulation.half.counters["hit_tokens"]
        traffic(simulation, 3)
        traffic(simulation, 4)
        assert (simulation.wrong == []) == told
        assert simulation.half.counters["hit_tokens"] > before
        if told:
            simulation.check_leaks()
    finally:
        simulation.close()


def test_an_update_in_many_calls_empties_the_cache_once(model: Path) -> None:  # noqa: F811
    simulation = Simulation(model, Setting())
    for _ in range(3):
        simulation.half.new_weights("update_weights called on the workers")
    assert simulation.half.counters["resets"] == 0  # nothing was there
    traffic(simulation, 1, 4)
    for _ in range(3):
        simulation.half.new_weights("update_weights called on the workers")
    assert simulation.half.counters["resets"] == 1
    simulation.close()


def test_the_disk_of_new_weights_is_for_this_run_only(model: Path, tmp_path: Path) -> None:  # noqa: F811
    with Hybrid(model, tmp_path) as hybrid:
        hybrid.ask()
        hybrid.simulation.half.new_weights("reload_weights called on the workers")
        assert hybrid.ask() == 0
        assert hybrid.ask() == stored_tokens(hybrid.simulation)
        assert hybrid.counters["promotions"] > 0
    with Hybrid(model, tmp_path) as hybrid:
        assert hybrid.ask() == 0
        assert hybrid.ask() == stored_tokens(hybrid.simulation)
    with Hybrid(model, tmp_path) as hybrid:
        assert hybrid.ask() == stored_tokens(hybrid.simulation)


@pytest.mark.parametrize("asynchronous", [False, True])
def test_sleep_in_the_middle_of_traffic(model: Path, tmp_path: Path, asynchronous: bool) -> None:  # noqa: F811
    """No copy touches the KV tensors while they are gone, and it goes on afterwards."""
    simulation = Simulation(model, Setting(asynchronous=asynchronous, host_chunks=40, disk=str(tmp_path)))
    (worker,) = simulation.workers
    traffic(simulation, 1)
    for seed in range(2, 8):
        traffic(simulation, seed, steps=30 + seed)
        for name in list(simulation.scheduler.requests):  # mode "abort"
            simulation.answers.pop(name, None)
        simulation.scheduler.finish_requests(None, simulator.RequestStatus.FINISHED_ABORTED)
        _C.fault_arm("enqueue_delay", 0, 2)
        while not simulation.scheduler.reset_prefix_cache(reset_connector=True):
            simulation.step()
        worker.connector.before_sleep()
        half = worker.connector.mover_half
        assert not half._open_transfers() and not half._marked and not half._unsent
        for layer in worker.layers.values():
            layer.fill_(-1)
        traffic(simulation, 100 + seed)
    assert simulation.wrong == []
    simulation.check_leaks()
    simulation.close()


@pytest.mark.parametrize("ranks", [1, 2])
def test_shutdown_with_all_kinds_of_work_in_flight(model: Path, tmp_path: Path, ranks: int) -> None:  # noqa: F811
    """It ends, and what is found afterwards is right."""
    found = 0
    for seed in range(4):
        simulation = Simulation(model, Setting(ranks=ranks, host_chunks=40, disk=str(tmp_path), write_through=True))
        before = simulation.half.ledger.stats()["disk"]["ready_keys"]
        found += before
        traffic(simulation, 10 + seed, steps=100 + 40 * seed)
        assert simulation.half._open_jobs or simulation.half._requests
        simulation.close()
        assert simulation.wrong == []
    with Hybrid(model, tmp_path, ranks=ranks) as hybrid:
        traffic(hybrid.simulation, 50)
        assert hybrid.simulation.wrong == []
        hybrid.simulation.check_leaks()
    assert found > 0
