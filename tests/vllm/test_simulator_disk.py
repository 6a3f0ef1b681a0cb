"""Random traffic with a disk behind little host memory: right bytes or a miss, whatever the disk does."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("vllm", reason="vLLM is not installed; `make test-vllm` installs it")
import models as checkpoints
from simulator import VOCAB, Setting, Simulation, answer_of
from test_simulator import play
from vllm.config import VllmConfig
from vllm.distributed.kv_transfer import kv_transfer_state

from kvoffload import _C
from kvoffload.vllm import start

pytestmark = pytest.mark.vllm

LITTLE_HOST = 40
PROMPTS = [[random.Random(i).randrange(VOCAB) for _ in range(100 + 5 * i)] for i in range(12)]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return checkpoints.write_llama(tmp_path_factory.mktemp("model"))


@pytest.fixture(autouse=True)
def _restore(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What simulations replace in vLLM and in the connector. The seed makes hashes equal after a restart."""
    monkeypatch.setattr(VllmConfig, "use_v2_model_runner", VllmConfig.use_v2_model_runner)
    monkeypatch.setattr(kv_transfer_state, "_KV_CONNECTOR_AGENT", None)
    for name in ("get_pp_group", "get_tp_group"):
        monkeypatch.setattr(start, name, getattr(start, name))
    monkeypatch.setenv("PYTHONHASHSEED", "0")
    yield
    _C.fault_disarm_all()


class Hybrid:
    """A simulation with a disk; `ask` puts every prompt to it, one after the other, and checks the answers."""

    def __init__(self, model: Path, folder: Path, **setting: Any) -> None:
        self.simulation = Simulation(model, Setting(disk=str(folder), **{"host_chunks": LITTLE_HOST, **setting}))
        self.counters = self.simulation.half.counters
        self._names = map(str, itertools.count())

    def __enter__(self) -> Hybrid:
        return self

    def __exit__(self, *_: object) -> None:
        self.simulation.close()

    def ask(self, prompts: list[list[int]] = PROMPTS) -> int:
        """How many tokens were loaded."""
        before = self.counters["hit_tokens"]
        for prompt, name in zip(prompts, self._names, strict=False):
            self.simulation.add(name, prompt, 4)
            self.simulation.drain()
            assert self.simulation.answers.pop(name) == answer_of(prompt, 4), name
            assert self.simulation.scheduler.reset_prefix_cache()
        assert self.simulation.wrong == []
        self.simulation.check_leaks()
        return self.counters["hit_tokens"] - before


def stored_tokens(simulation: Simulation) -> int:
    unit = simulation.half.groups[0].tokens_per_chunk
    return sum((len(prompt) - 1) // unit * unit for prompt in PROMPTS)


@pytest.mark.parametrize(
    "setting",
    [
        pytest.param({}, id="plain"),
        pytest.param({"write_through": True, "blocks_per_chunk": 2}, id="write-through, chunks of 2"),
        pytest.param({"asynchronous": True}, id="asynchronous"),
        pytest.param({"ranks": 2, "asynchronous": True}, id="two ranks, asynchronous"),
        pytest.param({"runner_v2": True, "disk_chunks": 80}, id="V2, little disk"),
        pytest.param({"windows": (None, 34), "blocks": 80, "blocks_per_chunk": 3}, id="mixed, chunks of 3"),
    ],
)
def test_random_traffic(model: Path, tmp_path: Path, setting: dict[str, Any]) -> None:
    with Hybrid(model, tmp_path, **setting) as hybrid:
        for seed in range(6):
            play(hybrid.simulation, seed, aborts=seed == 1, failures=seed == 2, resets=seed == 3)
        stats = hybrid.simulation.half.ledger.stats()
        assert stats["promoted_keys"] > 0 and stats["demoted_keys"] > 0 and stats["evicted_keys"] > 0, stats


def test_a_tenth_of_all_transfers_of_the_disk_fails(model: Path, tmp_path: Path) -> None:
    chance = random.Random(1)
    points = ("io_eio", "io_short", "io_lost_write", "io_misdirect", "record_payload", "record_trailer", "io_delay")
    with Hybrid(model, tmp_path, ranks=2) as hybrid:
        for worker in hybrid.simulation.workers:
            submit = worker._mover.submit_to_disk

            def submit_failing(job: Any, seconds: float, submit: Any = submit) -> None:
                if chance.random() < 0.1:
                    _C.fault_arm(chance.choice(points), 0, 2)
                submit(job, seconds)

            worker._mover.submit_to_disk = submit_failing  # type: ignore[method-assign]
        for seed in range(8):
            play(hybrid.simulation, seed, aborts=True)
        stats = hybrid.simulation.half.ledger.stats()
        assert stats["failed_keys"] > 0 and stats["promoted_keys"] > 0, stats


def test_a_load_that_failed_does_not_stop_the_engine(model: Path, tmp_path: Path) -> None:
    """vLLM goes on reserving blocks for such a request, here more than half of all, so that no load fits again."""
    prompt = [random.Random(1).randrange(VOCAB) for _ in range(400)]
    with Hybrid(model, tmp_path, asynchronous=True, write_through=True) as hybrid:
        assert hybrid.ask([prompt]) == 0
        hybrid.simulation.workers[0].failures = {"load": 1.0}
        hybrid.ask([prompt])
        assert hybrid.counters["failed_loads"] > 0


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_restart_serves_what_was_stored(model: Path, tmp_path: Path, ranks: int) -> None:
    """Host memory holds a third of it; what is not written yet is, once the engine has nothing else to do."""
    with Hybrid(model, tmp_path, ranks=ranks) as hybrid:
        assert hybrid.ask() == 0
        assert hybrid.ask() == stored_tokens(hybrid.simulation)
        assert hybrid.counters["promotions"] > 0
    with Hybrid(model, tmp_path, ranks=ranks) as hybrid:
        assert hybrid.ask() == stored_tokens(hybrid.simulation)
        hybrid.simulation.scheduler.connector.reset_cache()
    with Hybrid(model, tmp_path, ranks=ranks) as hybrid:
        assert hybrid.ask() == 0


def test_one_rank_that_lost_its_files_makes_all_a_miss(model: Path, tmp_path: Path) -> None:
    with Hybrid(model, tmp_path, ranks=2) as hybrid:
        hybrid.ask()
    (slab,) = tmp_path.rglob("rank1/slab")
    slab.unlink()
    with Hybrid(model, tmp_path, ranks=2) as hybrid:
        assert hybrid.ask() == 0
        assert hybrid.ask() == stored_tokens(hybrid.simulation)  # both ranks have the new identity
    with Hybrid(model, tmp_path, ranks=2) as hybrid:
        assert hybrid.ask() == stored_tokens(hybrid.simulation)


def test_a_lost_manifest_and_damaged_records_are_misses(model: Path, tmp_path: Path) -> None:
    with Hybrid(model, tmp_path) as hybrid:
        hybrid.ask()
    (slab,) = tmp_path.rglob("rank0/slab")
    content = bytearray(slab.read_bytes())
    for at in range(4096 + 100, len(content), 3 * 4096):  # a third of the records
        content[at] ^= 1
    slab.write_bytes(content)
    with Hybrid(model, tmp_path) as hybrid:
        assert 0 < hybrid.ask() < stored_tokens(hybrid.simulation)
        assert hybrid.simulation.half.ledger.stats()["failed_keys"] > 0
    (manifest,) = tmp_path.rglob("manifest")
    manifest.unlink()
    with Hybrid(model, tmp_path) as hybrid:
        assert hybrid.ask() == 0


def test_hashes_of_one_process_are_not_kept(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(start, "why_not_kept", lambda config: "a reason")
    lines: list[str] = []
    warnings: list[str] = []
    monkeypatch.setattr(start.logger, "info", lambda text, *values: lines.append(text % values))
    monkeypatch.setattr(start.logger, "warning", lambda text, *values: warnings.append(text % values))
    for _ in range(2):
        with Hybrid(model, tmp_path) as hybrid:
            assert hybrid.ask() == 0
            assert hybrid.ask() == stored_tokens(hybrid.simulation)
    assert warnings == ["kvoffload: the disk is used for this run only: a reason"] * 2
    monkeypatch.setattr(start, "why_not_kept", lambda config: "")
    with Hybrid(model, tmp_path) as hybrid:  # neither run left anything that another could take for its own
        assert hybrid.simulation.half.ledger.stats()["disk"]["ready_keys"] == 0
    found = [", 0 found, not kept across restarts: a reason, write-back," in line for line in lines if "disk" in line]
    assert found == [True, True, False]


def test_a_request_waits_for_a_promotion_no_longer_than_the_deadline(model: Path, tmp_path: Path) -> None:
    with Hybrid(model, tmp_path) as hybrid:
        hybrid.ask()
    with Hybrid(model, tmp_path, deadline_seconds=0.2) as hybrid:
        worker = hybrid.simulation.workers[0]
        kept: list[Any] = []
        submit, worker._mover.submit_to_disk = worker._mover.submit_to_disk, lambda job, seconds: kept.append(job)  # type: ignore[method-assign]
        hybrid.simulation.add("late", PROMPTS[0], 4)
        while hybrid.simulation.scheduler.has_unfinished_requests():
            hybrid.simulation.step()
        assert hybrid.simulation.answers["late"] == answer_of(PROMPTS[0], 4)
        assert kept and hybrid.counters["hit_tokens"] == 0
        worker._mover.submit_to_disk = submit  # type: ignore[method-assign]
        for job in kept:
            submit(job, 30.0)


def test_those_who_ask_for_the_same_join_one_promotion(model: Path, tmp_path: Path) -> None:
    with Hybrid(model, tmp_path) as hybrid:
        hybrid.ask(PROMPTS[:1])
    with Hybrid(model, tmp_path) as hybrid:
        for name in "abc":
            hybrid.simulation.add(name, [*PROMPTS[0], ord(name)], 4)
        hybrid.simulation.drain()
        hybrid.simulation.check_leaks()
        assert hybrid.simulation.half.ledger.stats()["promoted_keys"] == len(PROMPTS[0]) // 16
        assert hybrid.simulation.wrong == []


def test_a_request_whose_loads_fail_for_ever_is_computed(model: Path, tmp_path: Path) -> None:
    """Host memory loses what failed to load, and the disk brings it back: again and again, were there no end."""
    with Hybrid(model, tmp_path, write_through=True) as hybrid:
        hybrid.ask()
        (worker,) = hybrid.simulation.workers
        worker.failures["load"] = 1.0
        loads = hybrid.counters["loads"]
        hybrid.ask()
        assert hybrid.counters["loads"] - loads == 2 * len(PROMPTS)
        worker.failures.clear()
        assert hybrid.ask() > 0
