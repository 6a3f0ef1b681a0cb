"""What vLLM is told of us: deltas that add up over steps and ranks, and the metrics they become."""

from __future__ import annotations

import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("vllm", reason="vLLM is not installed; `make test-vllm` installs it")

import msgspec
import prometheus_client as prometheus
from simulator import BLOCK, Setting, Simulation, prompts
from test_ledger_half import Scheduler
from test_simulator_disk import _restore, model  # noqa: F401

from kvoffload import _C
from kvoffload.vllm import KVOffloadConnector
from kvoffload.vllm.metrics import METRICS, PREFIX
from kvoffload.vllm.stats import Changes, KVOffloadStats, ledger_values, mover_values

pytestmark = pytest.mark.vllm

DOCS = Path(__file__).resolve().parents[2] / "docs"
NAMES = {f"{metric.name}/{label}".rstrip("/") for metric in METRICS for label in metric.label[1:] or [""]}


class Metrics:
    """As the process that serves /metrics has them: two engines, a registry of their own."""

    def __init__(self) -> None:
        self.registry = prometheus.CollectorRegistry()

        def of(kind: Any) -> Any:
            return lambda *args, **options: kind(*args, registry=self.registry, **options)

        types = {kind: of(kind) for kind in (prometheus.Gauge, prometheus.Counter, prometheus.Histogram)}
        config: Any = SimpleNamespace(kv_transfer_config=None)
        labels = {0: ["tiny", "0"], 1: ["tiny", "1"]}
        self.metrics = KVOffloadConnector.build_prom_metrics(config, types, ["model_name", "engine"], labels)

    def observe(self, stats: KVOffloadStats, engine: int = 0) -> None:
        payload = msgspec.msgpack.decode(msgspec.msgpack.encode(stats.data))  # it crosses processes
        self.metrics.observe(payload, engine)

    def __call__(self, name: str, engine: int = 0) -> float:
        name, _, label = name.partition("/")
        metric = next(metric for metric in METRICS if metric.name == name)
        labels = {"model_name": "tiny", "engine": str(engine), **({metric.label[0]: label} if label else {})}
        value = self.registry.get_sample_value(PREFIX + name + ("" if metric.gauge else "_total"), labels)
        assert value is not None, f"no sample {name} {labels}"
        return float(value)


def test_only_what_changed_is_told() -> None:
    changes = Changes("ledger")
    first = changes.since_last({"a": 2, "b": 0}, {"g": 1, "h": 0})
    assert first is not None
    assert first.data == {"counters": {"a": 2}, "gauges": {"ledger": {"g": 1}}}
    assert changes.since_last({"a": 2, "b": 0}, {"g": 1, "h": 0}) is None
    second = changes.since_last({"a": 5, "b": 1}, {"g": 0, "h": 0})
    assert second is not None
    assert second.data == {"counters": {"a": 3, "b": 1}, "gauges": {"ledger": {"g": 0}}}
    third = changes.since_last({"a": 5, "b": 1}, {"g": 7, "h": 0})
    assert third is not None
    assert third.data == {"counters": {}, "gauges": {"ledger": {"g": 7}}}


def test_counters_add_up_and_the_latest_gauge_of_each_source_counts() -> None:
    one = KVOffloadStats({"counters": {"a": 1, "b": 1}, "gauges": {"rank 0": {"q": 3, "r": 1}}})
    other = KVOffloadStats({"counters": {"b": 2}, "gauges": {"rank 1": {"q": 5}}})
    later = KVOffloadStats({"counters": {}, "gauges": {"rank 0": {"q": 0}}})
    all_of_them = one.aggregate(other).aggregate(later)
    assert all_of_them.data == {
        "counters": {"a": 1, "b": 3}, "gauges": {"rank 0": {"q": 0, "r": 1}, "rank 1": {"q": 5}},
    }  # fmt: skip
    assert one.data == {"counters": {"a": 1, "b": 1}, "gauges": {"rank 0": {"q": 3, "r": 1}}}, "a logger still has it"
    assert [stats.is_empty() for stats in (one, later, KVOffloadStats({}))] == [False, False, True]
    assert KVOffloadConnector.build_kv_connector_stats().is_empty()
    assert KVOffloadConnector.build_kv_connector_stats(one.data).data is one.data
    one.reset()
    assert one.is_empty()


def test_the_line_of_every_ten_seconds() -> None:
    counters = {"hit_tokens": 96, "moved_bytes/load": 3e9, "moved_seconds/load": 0.5, "moved_bytes/demote": 2e9}
    gauges = {"ledger": {"usage/host": 0.12345, "held_chunks/host": 5}, "rank 0": {"queued/load": 1}}
    assert KVOffloadStats({"counters": counters, "gauges": gauges}).reduce() == {
        "hit_tokens": 96, "moved_GB/load": 3.0, "GB_per_s/load": 6.0, "moved_GB/demote": 2.0, "usage/host": 0.123,
    }  # fmt: skip


def test_gauges_of_ranks_are_summed_and_engines_kept_apart() -> None:
    metrics = Metrics()
    metrics.observe(KVOffloadStats({"counters": {"jobs/load": 2}, "gauges": {"rank 0": {"queued/load": 3}}}))
    metrics.observe(KVOffloadStats({"counters": {"jobs/load": 1}, "gauges": {"rank 1": {"queued/load": 4}}}))
    assert (metrics("jobs/load"), metrics("queued/load")) == (3, 7)
    metrics.observe(KVOffloadStats({"counters": {}, "gauges": {"rank 0": {"queued/load": 0}}}))
    assert (metrics("jobs/load"), metrics("queued/load")) == (3, 4)
    assert (metrics("jobs/load", engine=1), metrics("queued/load", engine=1)) == (0, 0)
    metrics.observe(KVOffloadStats({"counters": {"jobs/load": 5}, "gauges": {"rank 0": {"queued/load": 9}}}), engine=1)
    metrics.observe(KVOffloadStats({"counters": {}, "gauges": {"rank 1": {"queued/load": 1}}}))
    assert (metrics("jobs/load"), metrics("queued/load")) == (3, 1)
    assert (metrics("jobs/load", engine=1), metrics("queued/load", engine=1)) == (5, 9)


def test_lookups_are_counted_once_in_tokens_and_chunks() -> None:
    scheduler = Scheduler(blocks_per_chunk=2)
    scheduler.stored("a", 16, [1, 2, 3, 4])
    values = ledger_values(scheduler.half)[0]
    assert [values[f"{kind}_tokens"] for kind in ("queried", "hit", "missed")] == [16, 0, 16]
    again = scheduler.request("b", 27, content="a")
    for _ in range(3):  # it does not fit
        assert scheduler.half.matched_tokens(again, 0) == (16, True)
    scheduler.admit(again, list(range(10, 17)), external=16)
    scheduler.report(*(job for load in scheduler.step().loads for job in load.jobs))
    scheduler.admit(again, list(range(10, 17)))  # the second time, to run
    values = ledger_values(scheduler.half)[0]
    assert [values[f"{kind}_tokens"] for kind in ("queried", "hit", "missed")] == [16 + 27, 16, 27]
    assert [values[f"{kind}_chunks"] for kind in ("queried", "hit", "missed")] == [2 + 3, 2, 3]
    assert values["preempted_tokens_saved"] == 0
    again.num_preemptions = 1
    scheduler.step(preempted={"b"})
    assert scheduler.half.matched_tokens(again, 0) == (16, True)
    scheduler.admit(again, list(range(20, 27)), external=16)
    assert ledger_values(scheduler.half)[0]["preempted_tokens_saved"] == 16


@pytest.mark.parametrize("ranks", [1, 2])
def test_what_reaches_the_metrics_is_what_happened(
    ranks: int, model: Path, tmp_path: Path  # noqa: F811
) -> None:  # fmt: skip
    """vLLM's own scheduler and aggregation; the disk is small, so that all tiers evict."""
    setting = Setting(ranks=ranks, host_chunks=24, disk=str(tmp_path), disk_chunks=60)
    simulation = Simulation(model, setting)
    told = Metrics()
    make_stats = simulation.scheduler.make_stats

    def observe(*args: Any, **kwargs: Any) -> Any:
        stats = make_stats(*args, **kwargs)
        if stats is not None and stats.kv_connector_stats:
            told.observe(KVOffloadConnector.build_kv_connector_stats(stats.kv_connector_stats))
        return stats

    simulation.scheduler.make_stats = observe
    try:
        chance = random.Random(1)
        for i, prompt in enumerate(prompts(chance, 60)):
            simulation.add(f"r{i}", prompt, 5)
            if i % 4 == 3:
                simulation.drain()
        simulation.workers[-1].failures["store"] = 1.0
        simulation.add("failing", list(range(100)), 2)
        simulation.drain()
        assert not simulation.wrong
        stats = simulation.half.ledger.stats()
        movers = [worker.connector.mover_half.mover.stats() for worker in simulation.workers]
    finally:
        _C.fault_disarm_all()
        simulation.close()
    for metric, value in {
        "stored_chunks": stats["stored_keys"],
        "evicted_chunks/host": stats["evicted_keys"],
        "evicted_chunks/disk": stats["disk_evicted_keys"],
        "promoted_chunks": stats["promoted_keys"],
        "demoted_chunks": stats["demoted_keys"],
        "failed_jobs": stats["failed_jobs"],
        "jobs/load": stats["load_jobs"],
        "held_chunks/host": stats["ready_keys"],
        "held_chunks/disk": stats["disk"]["ready_keys"],
        "usage/disk": stats["disk"]["used_bytes"] / stats["disk"]["ready_bytes"],
        "moved_bytes/store": sum(mover["store"]["bytes"] for mover in movers),
        "moved_bytes/load": sum(mover["load"]["bytes"] for mover in movers),
        "moved_bytes/demote": sum(mover["disk"]["demoted_bytes"] for mover in movers),
        "moved_bytes/promote": sum(mover["disk"]["promoted_bytes"] for mover in movers),
    }.items():
        assert told(metric) == pytest.approx(value), metric
        assert value > 0, f"nothing was seen of {metric}"
    assert told("hit_tokens") == pytest.approx(simulation.half.counters["hit_tokens"])
    assert told("hit_chunks") == told("hit_tokens") / BLOCK
    assert told("hit_tokens") + told("missed_tokens") == told("queried_tokens") > 0
    assert told("failed_transfers/store") > 0
    assert told("open_jobs") == told("queued/store") == told("queued/demote") == 0


def test_what_a_workers_disk_tells() -> None:
    lane = {"bytes": 5, "seconds": 0.5, "failures": 1, "rejected": 2, "unfinished": 3}
    disk = {
        "promotions": {"done": 7, "checksum": 1, "io_error": 2}, "demotions": {"done": 4, "deadline": 1}, "off": "EIO",
        "promoted_bytes": 70, "demoted_bytes": 40, "waiting_promotions": 8, "waiting_demotions": 9,
    }  # fmt: skip
    stats = {"store": lane, "load": lane, "disk": disk}
    half: Any = SimpleNamespace(mover=SimpleNamespace(stats=lambda: stats))
    counters, gauges = mover_values(half)
    assert [counters[f"failed_transfers/{way}"] for way in ("store", "load", "promote", "demote")] == [3, 3, 3, 1]
    assert [counters[f"moved_bytes/{way}"] for way in ("store", "load", "promote", "demote")] == [5, 5, 70, 40]
    assert gauges == {"queued/store": 3, "queued/load": 3, "queued/promote": 8, "queued/demote": 9, "disks_off": 1}
    assert counters.keys() | gauges.keys() <= NAMES
    disk["off"] = ""
    assert mover_values(half)[1]["disks_off"] == 0
    del stats["disk"]
    assert mover_values(half)[1] == {"queued/store": 3, "queued/load": 3}


def test_what_the_break_even_rule_refuses_is_told() -> None:
    scheduler = Scheduler()
    scheduler.half.counters.update(refused_host_tokens=1, refused_disk_tokens=2, tried_anyway_tokens=3)
    values = ledger_values(scheduler.half)[0]
    assert [values[name] for name in ("refused_tokens/host", "refused_tokens/disk", "tried_tokens")] == [1, 2, 3]


def test_every_metric_is_explained() -> None:
    rows = {line.split("`")[1] for line in (DOCS / "vllm.md").read_text().splitlines() if line.startswith("| `vllm:")}
    assert rows == {PREFIX + metric.name + ("" if metric.gauge else "_total") for metric in METRICS}


def test_every_value_told_has_a_metric() -> None:
    counters, gauges = ledger_values(Scheduler().half)
    assert counters.keys() | gauges.keys() <= NAMES
