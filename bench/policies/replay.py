"""What each eviction policy makes of real request traces, against the best that is possible.

    replay.py          writes $OUT/policies.json
    report.py FOLDER   table and plot of what is there

A request looks its blocks up (the leading run of resident ones are its hits) and then stores all of them. The hit ratio
is hits over all blocks asked for. A block is 512 tokens, 64 MiB of an 8B model. `opt` knows the future.
"""

from __future__ import annotations

import gzip
import heapq
import json
import math
import sys
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import results

from kvoffload import _C

TRACES = ("conversation", "synthetic")
POLICIES = {"lru": "lru", "s3fifo": "s3fifo", "arc": "arc", "default": "adaptive"}  # key in the results -> policy
CAPACITIES = tuple(1 << n for n in range(10, 17))

Requests = list[list[int]]


def read_trace(name: str) -> Requests:
    path = Path(__file__).parent / "traces" / f"mooncake_{name}.jsonl.gz"
    with gzip.open(path, "rt") as lines:
        return [json.loads(line)["hash_ids"] for line in lines]


def leading_hits(policy: str, capacity: int, requests: Requests) -> int:
    replay = _C.PolicyReplay(policy, capacity)
    return sum(replay.request(keys) for keys in requests)


def next_uses(requests: Requests) -> list[list[float]]:
    """For each block of each request: the number of the next request that has it."""
    seen: dict[int, int] = {}
    following: list[list[float]] = []
    for number in range(len(requests) - 1, -1, -1):
        following.append([seen.get(key, math.inf) for key in requests[number]])
        seen.update(dict.fromkeys(requests[number], number))
    return following[::-1]


def optimal_hits(capacity: int, requests: Requests) -> int:
    """Belady: what is needed last goes first, of equals the end of the prefix; new blocks too may be what goes."""
    next_use: dict[int, float] = {}
    heap: list[tuple[float, int, int]] = []  # (-next use, -position in its request, key); stale ones are skipped
    hits = 0
    for keys, following in zip(requests, next_uses(requests), strict=True):
        hits += next((n for n, key in enumerate(keys) if key not in next_use), len(keys))
        for position, (key, use) in enumerate(zip(keys, following, strict=True)):
            next_use[key] = use
            heapq.heappush(heap, (-use, -position, key))
        while len(next_use) > capacity:
            use, _, key = heapq.heappop(heap)
            if next_use.get(key) == -use:
                del next_use[key]
    return hits


def hit_ratios() -> Iterator[tuple[str, float]]:
    for name in TRACES:
        requests = read_trace(name)
        blocks = sum(map(len, requests))
        for capacity in CAPACITIES:
            for key, policy in POLICIES.items():
                yield f"trace.{name}.{key}.{capacity}.hit_ratio", leading_hits(policy, capacity, requests) / blocks
            yield f"trace.{name}.opt.{capacity}.hit_ratio", optimal_hits(capacity, requests) / blocks


def main() -> None:
    results.write("policies", dict(hit_ratios()), policies=POLICIES)


if __name__ == "__main__":
    main()
