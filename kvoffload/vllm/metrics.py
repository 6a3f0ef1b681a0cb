"""Our metrics in vLLM's /metrics: their names, and how a step's changes get there. docs/vllm.md explains them."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import Any

from prometheus_client import Counter, Gauge
from vllm.distributed.kv_transfer.kv_connector.v1.metrics import KVConnectorPromMetrics

PREFIX = "vllm:kvoffload_"
TIERS = ("tier", "host", "disk")
WAYS = ("way", "store", "load", "promote", "demote")


@dataclass(frozen=True, slots=True)
class Metric:
    """`label`: its name and then its values; empty for a metric without one. Counters get "_total" behind the name."""

    name: str
    text: str
    label: tuple[str, ...] = ()
    gauge: bool = False


METRICS = (
    Metric("queried_tokens", "Tokens of requests that were looked up, beyond vLLM's own prefix cache"),
    Metric("hit_tokens", "Tokens of these that were loaded instead of computed"),
    Metric("missed_tokens", "Tokens of these that were computed"),
    Metric("queried_chunks", "The same in whole chunks, of all KV groups"),
    Metric("hit_chunks", "Chunks that were loaded instead of computed"),
    Metric("missed_chunks", "Chunks that were computed"),
    Metric("preempted_tokens_saved", "Tokens of preempted requests that were loaded instead of computed again"),
    Metric("refused_tokens", "Tokens that were there but are computed, as that is predicted to be faster", TIERS),
    Metric("tried_tokens", "Tokens loaded against that prediction, to measure again"),
    Metric("joined_requests", "Requests that waited for somebody else's load of the same prefix"),
    Metric("stored_chunks", "Chunks that came to host memory, whole on all ranks"),
    Metric("dropped_chunks", "Chunks that were not stored, as there was no room that could be taken"),
    Metric("evicted_chunks", "Chunks that went to make room", TIERS),
    Metric("promoted_chunks", "Chunks that came back from disk to host memory"),
    Metric("demoted_chunks", "Chunks that were written to disk"),
    Metric(
        "undemoted_chunks",
        "Chunks that were not written to disk",
        ("why", "gone", "admission", "budget"),
    ),
    Metric("jobs", "Batches that were planned", WAYS),
    Metric("moved_bytes", "Bytes that were moved, of all ranks", WAYS),
    Metric("moved_seconds", "Time that transfers between GPU and host memory took, of all ranks", WAYS[:3]),
    Metric("failed_transfers", "Transfers and disk records that failed or were turned away, of all ranks", WAYS),
    Metric("failed_chunks", "Chunks that are a miss as some rank failed"),
    Metric("failed_jobs", "Batches of which some rank reported a failure"),
    Metric("expired_jobs", "Batches that were given up at their deadline"),
    Metric("resets", "Times the cache was emptied"),
    Metric("held_chunks", "Chunks that are there", TIERS, gauge=True),
    Metric("capacity_bytes", "Bytes that can be used, of each rank", TIERS, gauge=True),
    Metric("used_bytes", "Bytes in use, of each rank", TIERS, gauge=True),
    Metric("usage", "Share in use, 0 to 1", TIERS, gauge=True),
    Metric("quarantined_bytes", "Bytes that a late transfer may still write to, of each rank", TIERS, gauge=True),
    Metric("tier_off", "1: switched off, as too much of it is in quarantine", TIERS, gauge=True),
    Metric("disks_off", "Ranks whose disk is switched off after errors", gauge=True),
    Metric("queued", "Transfers and disk records not done, of all ranks", WAYS, gauge=True),
    Metric("open_jobs", "Batches that not all ranks have reported", gauge=True),
    Metric("waiting_for_disk_chunks", "Chunks to be written to disk when it is their turn", gauge=True),
)


class KVOffloadPromMetrics(KVConnectorPromMetrics):
    """One set a process that serves /metrics; every value is there from the start, as 0."""

    def __init__(
        self,
        vllm_config: Any,
        metric_types: dict[Any, Any],
        labelnames: list[str],
        per_engine_labelvalues: dict[int, list[object]],
    ) -> None:
        super().__init__(vllm_config, metric_types, labelnames, per_engine_labelvalues)
        self._values: dict[tuple[int, str], Any] = {}  # by engine and a value's name in KVOffloadStats
        self._gauges: dict[tuple[int, str], dict[str, float]] = defaultdict(dict)  # of each source
        for metric in METRICS:
            names = [*labelnames, *metric.label[:1]]
            if metric.gauge:
                made = metric_types[Gauge](PREFIX + metric.name, metric.text, names, multiprocess_mode="mostrecent")
            else:
                made = metric_types[Counter](PREFIX + metric.name, metric.text, names)
            for engine, values in per_engine_labelvalues.items():
                for label in metric.label[1:] or ("",):
                    name = f"{metric.name}/{label}" if label else metric.name
                    self._values[engine, name] = made.labels(*values, *([label] if label else []))

    def observe(self, transfer_stats_data: dict[str, Any], engine_idx: int = 0) -> None:
        for name, gained in transfer_stats_data.get("counters", {}).items():
            self._values[engine_idx, name].inc(gained)
        for source, gauges in transfer_stats_data.get("gauges", {}).items():
            for name, value in gauges.items():
                of_sources = self._gauges[engine_idx, name]
                of_sources[source] = value
                self._values[engine_idx, name].set(sum(of_sources.values()))
