"""KV events: who follows them knows which chunks are where."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("vllm", reason="vLLM is not installed; `make test-vllm` installs it")

from simulator import BLOCK, Setting, Simulation, prompts
from test_ledger_half import Scheduler
from test_simulator_disk import _restore, model  # noqa: F401
from vllm.distributed.kv_events import BlockRemoved, BlockStored
from vllm.v1.core.kv_cache_utils import maybe_convert_block_hash

from kvoffload.vllm import kv_events

pytestmark = pytest.mark.vllm


class Router:
    """Follows the events of our tiers; each must be news."""

    def __init__(self) -> None:
        self.where: dict[str, set[Any]] = {"CPU": set(), "STORAGE": set()}
        self.removed = 0

    def publish(self, batch: Any) -> None:
        self.follow(batch.events)

    def follow(self, events: Any) -> None:
        for event in events:
            if getattr(event, "medium", None) not in self.where:
                continue
            known, hashes = self.where[event.medium], set(event.block_hashes)
            assert event.group_idx == 0
            if isinstance(event, BlockStored):
                assert (event.block_size, known & hashes) == (BLOCK, set())
                known |= hashes
            else:
                assert isinstance(event, BlockRemoved)
                assert hashes <= known
                known -= hashes
                self.removed += len(hashes)


def test_who_follows_knows_what_is_where(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch  # noqa: F811
) -> None:  # fmt: skip
    monkeypatch.setattr(kv_events, "SWEEP_KEYS", 3)  # far fewer than there are
    setting = Setting(host_chunks=24, disk=str(tmp_path), disk_chunks=60, kv_events=True)
    simulation, router = Simulation(model, setting), Router()
    simulation.scheduler.kv_event_publisher.publish = router.publish
    half = simulation.half
    try:
        chance = random.Random(3)
        for i, prompt in enumerate(prompts(chance, 80)):
            simulation.add(f"r{i}", prompt, 5)
            if i % 4 == 3:
                simulation.drain()
            simulation.workers[0].failures["store"] = 0.1
        simulation.drain()
        for _ in range(200):
            router.follow(half.take_events())
        stats = half.ledger.stats()
        assert router.removed > 0
        assert len(router.where["CPU"]) == stats["ready_keys"] > 0
        assert len(router.where["STORAGE"]) == stats["disk"]["ready_keys"] > 0
        for medium, on_disk in (("CPU", False), ("STORAGE", True)):
            keys = [key for key, told in half._events.told[0].items() if told[on_disk]]
            assert router.where[medium] == {maybe_convert_block_hash(key) for key in keys}
            assert set(half.ledger.states(keys, on_disk=on_disk)) == {"ready"}
        half.reset()
        router.follow(half.take_events())
        assert router.where == {"CPU": set(), "STORAGE": set()}
        assert not half._events._jobs, "jobs that ended are remembered"
    finally:
        simulation.close()


def test_without_events_asked_for_there_are_none() -> None:
    scheduler = Scheduler()
    scheduler.stored("a", 16, [1, 2, 3, 4])
    assert list(scheduler.half.take_events()) == []
