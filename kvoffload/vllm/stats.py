"""What both halves tell vLLM of themselves, once a step: what counters gained, and gauges that moved.

A value's name is that of its metric, with the value of its label behind a slash: "evicted_chunks/host".
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from vllm.distributed.kv_transfer.kv_connector.v1.metrics import KVConnectorStats

if TYPE_CHECKING:
    from kvoffload.vllm.groups import ChunkGroup
    from kvoffload.vllm.requests import RequestState
    from kvoffload.vllm.scheduler import LedgerHalf
    from kvoffload.vllm.worker import MoverHalf

Values = dict[str, float]

# Counters of Ledger.stats() and of the scheduler half, and the metrics that they are.
LEDGER_COUNTERS = {
    "stored_keys": "stored_chunks",
    "dropped_keys": "dropped_chunks",
    "evicted_keys": "evicted_chunks/host",
    "disk_evicted_keys": "evicted_chunks/disk",
    "promoted_keys": "promoted_chunks",
    "demoted_keys": "demoted_chunks",
    "undemoted_keys": "undemoted_chunks/gone",
    "unadmitted_keys": "undemoted_chunks/admission",
    "over_budget_keys": "undemoted_chunks/budget",
    "failed_keys": "failed_chunks",
    "failed_jobs": "failed_jobs",
    "expired_jobs": "expired_jobs",
    "store_jobs": "jobs/store",
    "load_jobs": "jobs/load",
    "promote_jobs": "jobs/promote",
    "demote_jobs": "jobs/demote",
}
HALF_COUNTERS = {
    "queried_tokens": "queried_tokens",
    "found_tokens": "hit_tokens",
    "missed_tokens": "missed_tokens",
    "queried_chunks": "queried_chunks",
    "found_chunks": "hit_chunks",
    "missed_chunks": "missed_chunks",
    "resumed_tokens": "preempted_tokens_saved",
    "refused_host_tokens": "refused_tokens/host",
    "refused_disk_tokens": "refused_tokens/disk",
    "tried_anyway_tokens": "tried_tokens",
    "joins": "joined_requests",
    "resets": "resets",
}


def count_lookup(
    counters: Counter[str], state: RequestState, groups: tuple[ChunkGroup, ...], found_tokens: int
) -> None:
    """A request that was looked up is given blocks: what it asked for beyond vLLM's own hit, and what is loaded."""
    queried, state.queried_tokens = state.queried_tokens, 0
    if not queried:
        return
    chunks = sum(queried // group.tokens_per_chunk for group in groups)
    found_chunks = sum(found_tokens // group.tokens_per_chunk for group in groups)
    if found_tokens == queried - 1:  # all but the last token, which is in the last chunk found
        found_chunks = chunks
    counters["queried_tokens"] += queried
    counters["queried_chunks"] += chunks
    counters["found_tokens"] += found_tokens
    counters["found_chunks"] += found_chunks
    counters["missed_tokens"] += queried - found_tokens
    counters["missed_chunks"] += chunks - found_chunks
    if state.request.num_preemptions:
        counters["resumed_tokens"] += found_tokens


def ledger_values(half: LedgerHalf) -> tuple[Values, Values]:
    """Counters since the start and gauges now, of the scheduler half."""
    stats = half.ledger.stats()
    counters = {metric: stats[name] for name, metric in LEDGER_COUNTERS.items()}
    counters.update({metric: half.counters[name] for name, metric in HALF_COUNTERS.items()})
    gauges: Values = {"open_jobs": stats["jobs_in_flight"], "waiting_for_disk_chunks": stats["waiting_for_disk_keys"]}
    for name, tier in (("host", stats), ("disk", stats["disk"])):
        gauges |= {
            f"held_chunks/{name}": tier["ready_keys"],
            f"capacity_bytes/{name}": tier["ready_bytes"],
            f"used_bytes/{name}": tier["used_bytes"],
            f"usage/{name}": tier["used_bytes"] / max(tier["ready_bytes"], 1),
            f"quarantined_bytes/{name}": tier["quarantined_bytes"],
            f"tier_off/{name}": int(tier["tier_off"]),
        }
    return counters, gauges


def mover_values(half: MoverHalf) -> tuple[Values, Values]:
    """The same of a worker half."""
    stats = half.mover.stats()
    counters: Values = {}
    gauges: Values = {}
    for way in ("store", "load"):
        lane = stats[way]
        counters |= {
            f"moved_bytes/{way}": lane["bytes"],
            f"moved_seconds/{way}": lane["seconds"],
            f"failed_transfers/{way}": lane["failures"] + lane["rejected"],
        }
        gauges[f"queued/{way}"] = lane["unfinished"]
    disk = stats.get("disk", {})
    for way in ("promote", "demote") if disk else ():
        records = disk[f"{way.removesuffix('e')}ions"]
        counters[f"moved_bytes/{way}"] = disk[f"{way}d_bytes"]
        counters[f"failed_transfers/{way}"] = sum(records.values()) - records["done"]
        gauges[f"queued/{way}"] = disk[f"waiting_{way.removesuffix('e')}ions"]
    if disk:
        gauges["disks_off"] = int(bool(disk["off"]))
    return counters, gauges


class Changes:
    """Remembers what was told, so that only what is new goes to the process that serves /metrics."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._counters: Values = {}
        self._gauges: Values = {}

    def since_last(self, counters: Values, gauges: Values) -> KVOffloadStats | None:
        gained = {name: value - self._counters.get(name, 0) for name, value in counters.items()}
        gained = {name: value for name, value in gained.items() if value > 0}
        moved = {name: value for name, value in gauges.items() if value != self._gauges.get(name, 0)}
        self._counters, self._gauges = counters, gauges
        if not (gained or moved):
            return None
        return KVOffloadStats({"counters": gained, "gauges": {self._source: moved} if moved else {}})


class KVOffloadStats(KVConnectorStats):
    """`data`: {"counters": what was gained, "gauges": {source: values}}; a source is the ledger or a rank.

    Counters of several ranks and steps are added up; of a source's gauges the latest counts.
    """

    data: dict[str, Any]

    def reset(self) -> None:
        self.data = {}

    def is_empty(self) -> bool:
        return not (self.data.get("counters") or self.data.get("gauges"))

    def aggregate(self, other: KVConnectorStats) -> KVOffloadStats:
        """Changes neither: vLLM's loggers keep what they were given."""
        counters = Counter(self.data.get("counters", {}))
        counters.update(other.data.get("counters", {}))
        gauges = dict(self.data.get("gauges", {}))
        for source, values in other.data.get("gauges", {}).items():
            gauges[source] = {**gauges.get(source, {}), **values}
        return KVOffloadStats({"counters": dict(counters), "gauges": gauges})

    def reduce(self) -> dict[str, int | float]:
        """For vLLM's line of every 10 s: what happened in them, and how full the tiers are where that moved."""
        counters: Mapping[str, float] = self.data.get("counters", {})
        said: dict[str, int | float] = {
            name: round(value, 3) for name, value in counters.items() if not name.startswith("moved_")
        }
        for way in ("store", "load", "promote", "demote"):
            moved_bytes, seconds = counters.get(f"moved_bytes/{way}", 0), counters.get(f"moved_seconds/{way}", 0)
            if moved_bytes:
                said[f"moved_GB/{way}"] = round(moved_bytes / 1e9, 3)
            if moved_bytes and seconds:
                said[f"GB_per_s/{way}"] = round(moved_bytes / 1e9 / seconds, 3)
        ledger: Mapping[str, Any] = self.data.get("gauges", {}).get("ledger", {})
        said.update({name: round(value, 3) for name, value in ledger.items() if name.startswith("usage/")})
        return said
