"""New weights and sleep: what is watched, what a watched call does, and that nothing of it is found after a restart."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("vllm", reason="vLLM is not installed; `make test-vllm` installs it")
from test_mover_half import FakeMover, job, reported
from vllm.v1.engine.core import EngineCore

from kvoffload.errors import Unsupported, WaitTimeout
from kvoffload.ledger_disk import LedgerDir
from kvoffload.vllm import life
from kvoffload.vllm.life import Commits
from kvoffload.vllm.metadata import Load, StepPlan
from kvoffload.vllm.worker import MoverHalf

pytestmark = pytest.mark.vllm


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Events that an engine's calls are noticed by; the calls themselves do nothing."""
    for name in ("collective_rpc", "sleep"):
        monkeypatch.setattr(EngineCore, name, lambda *_, **__: "done")
    life.watch_engine()
    return []


def core_with(connector: Any) -> EngineCore:
    core = object.__new__(EngineCore)
    core.scheduler = SimpleNamespace(connector=connector)
    return core


def reloading() -> None: ...


def test_what_may_change_the_weights_is_noticed_and_nothing_else_is(watched: list[str]) -> None:
    core = core_with(SimpleNamespace(new_weights=watched.append))
    for method in ("reload_weights", "update_weights", "apply_model", "an_extension_s", reloading):
        assert core.collective_rpc(method, None, (), {}) == "done"
    assert core.collective_rpc(method="start_weight_update") == "done"
    assert [event.split()[0] for event in watched] == [
        "reload_weights", "update_weights", "apply_model", "an_extension_s", "reloading", "start_weight_update",
    ]  # fmt: skip
    watched.clear()
    for method in ("profile", "add_lora", "compute_weight_checksums"):
        core.collective_rpc(method)
    core.sleep(1)
    core.sleep(level=0)
    assert watched == []
    core.sleep(level=2, mode="wait")
    core.sleep(2)
    assert watched == ["sleep at level 2"] * 2


def test_engines_without_us_and_engines_that_start_are_left_alone(watched: list[str]) -> None:
    core_with(None).collective_rpc("update_weights")
    core_with(SimpleNamespace()).collective_rpc("update_weights")
    object.__new__(EngineCore).collective_rpc("update_max_model_len")
    object.__new__(EngineCore).collective_rpc("load_model")


def test_a_method_is_watched_once_and_its_signature_stays(watched: list[str]) -> None:
    before = EngineCore.collective_rpc
    life.watch_engine()
    assert EngineCore.collective_rpc is before
    core = core_with(SimpleNamespace(new_weights=watched.append))
    core.collective_rpc("update_weights")
    assert len(watched) == 1


def test_a_vllm_with_another_way_to_the_workers_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(EngineCore, "collective_rpc")
    with pytest.raises(Unsupported, match=r"no EngineCore.collective_rpc"):
        life.watch_engine()


class Worker:
    def __init__(self) -> None:
        self.slept = 0

    def sleep(self, level: int = 1) -> None:
        self.slept = level


def test_memory_goes_only_when_copies_have_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Worker, "sleep", Worker.sleep)
    config: Any = SimpleNamespace(parallel_config=SimpleNamespace(worker_cls=f"{__name__}.Worker"))
    life.watch_worker(config)
    worker = Worker()
    worker.sleep(1)
    assert worker.slept == 1  # no connector in this process
    monkeypatch.setattr(life, "has_kv_transfer_group", lambda: True)
    half = MoverHalf(FakeMover(), 30.0)  # type: ignore[arg-type]
    connector = SimpleNamespace(before_sleep=lambda: half.quiesce(0.01))
    monkeypatch.setattr(life, "get_kv_transfer_group", lambda: connector)
    worker.sleep(2)
    assert worker.slept == 2
    half.start_step(StepPlan(early=(job(1),)))
    with pytest.raises(WaitTimeout):
        worker.sleep(level=1)
    assert worker.slept == 2


def test_before_sleep_what_has_not_begun_fails_and_the_rest_ends() -> None:
    mover = FakeMover()
    half = MoverHalf(mover, 30.0)  # type: ignore[arg-type]
    half.start_step(StepPlan(early=(job(1),), loads=(Load("loading", (job(2, "load"),)),)))
    half.mark_stores(StepPlan(stores=(job(3),)))
    mover.finish(1)
    mover.finish(2)
    half.quiesce(0.01)
    assert all(transfer.cancelled for transfer in mover.transfers.values())
    ended = half.collect()
    assert (ended.finished, ended.failed) == ({"loading"}, set())
    assert reported(half) == {1: True, 2: True, 3: False}
    assert half.idle() and ("store", 3) not in [event[:2] for event in mover.events]
    half.quiesce(0.0)


@pytest.mark.parametrize("kept", [True, False])
def test_nothing_is_found_after_commits_were_stopped(kept: bool, tmp_path: Path) -> None:
    def opened() -> LedgerDir:
        return LedgerDir(str(tmp_path), "f" * 32, 0, disk_bytes=16 << 20, slot_bytes=[1 << 20])

    directory = opened()
    commits = Commits(directory.manifest)
    commits.kept = kept
    commits.free(0, [0])
    commits.commit(commits.stats()["epoch"], 0, [b"k" * 16], [0], [commits.first_sequence])
    directory.close(5.0)
    again = opened()
    assert [chunk[1] for chunk in again.manifest.take_opening()["chunks"]] == ([b"k" * 16] if kept else [])
    again.close(5.0)
