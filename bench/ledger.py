"""What the ledger costs at two million keys: looking up, evicting, memory. No GPU, no tensors.

ledger.py [--keys 2000000]
"""

import argparse
import gc
import hashlib
import os
import time
from pathlib import Path

import results

import kvoffload as kv
from kvoffload.messages import Hello, JobResult, Results

SLOT_BYTES, BATCH, LOOKUP, EVICTIONS, LOOKUPS = 4096, 8192, 8192, 5000, 200


def keys_of(start: int, count: int) -> list[bytes]:
    return [hashlib.sha256(i.to_bytes(8, "little")).digest() for i in range(start, start + count)]


def rss_bytes() -> int:
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def store(ledger: kv.Ledger, keys: list[bytes]) -> float:
    """Microseconds of planning; the mover's report comes at once."""
    blocks = [0] * len(keys)
    start = time.perf_counter()
    job = ledger.plan_store(keys, blocks)
    microseconds = (time.perf_counter() - start) * 1e6
    assert job is not None and len(job.slots) == len(keys)
    ledger.apply(Results(0, (JobResult(job.id, True, 0, 0.0),)))
    return microseconds


def fill(count: int) -> tuple[kv.Ledger, float]:
    """A full ledger and the bytes it takes for each key."""
    ledger = kv.Ledger()
    store_before = rss_bytes()
    total = count * SLOT_BYTES
    ledger.hello(
        Hello(
            rank=0, slot_bytes=(SLOT_BYTES,), blocks_per_chunk=(1,), host_bytes=total, ready_bytes=total,
            fingerprint="f", pinned=False, device="host",
        )
    )  # fmt: skip
    for start in range(0, count, BATCH):
        store(ledger, keys_of(start, min(BATCH, count - start)))
    return ledger, (rss_bytes() - store_before) / count


def lookup_us(ledger: kv.Ledger, starts: range, wanted: int) -> float:
    samples = []
    for start in starts:
        keys = keys_of(start, LOOKUP)
        begin = time.perf_counter()
        hit = ledger.lookup(keys)
        samples.append((time.perf_counter() - begin) * 1e6)
        assert hit.host == wanted
    return results.percentile(samples, 50)


def misses_us(ledger: kv.Ledger, count: int) -> float:
    """states() asks for every key, where lookup() would stop at the first miss."""
    samples = []
    for i in range(LOOKUPS):
        keys = keys_of(10 * count + i * LOOKUP, LOOKUP)
        begin = time.perf_counter()
        ledger.states(keys)
        samples.append((time.perf_counter() - begin) * 1e6)
    return results.percentile(samples, 50)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--keys", type=int, default=2_000_000)
    count = parser.parse_args().keys
    ledger, bytes_per_entry = fill(count)
    stride = max(count // LOOKUPS // LOOKUP, 1) * LOOKUP
    metrics = {
        "ledger.bytes_per_entry": bytes_per_entry,
        "ledger.lookup_us.8192": lookup_us(ledger, range(0, count - LOOKUP, stride), LOOKUP),
        "ledger.lookup_us.8192.first_missing": lookup_us(ledger, range(10 * count, 10 * count + 9, 1), 0),
        "ledger.lookup_us.8192.misses": misses_us(ledger, count),
    }
    holds = [ledger.hold(keys_of(start, min(BATCH, count - 1 - start))) for start in range(0, count - 1, BATCH)]
    assert sum(hold.keys_held for hold in holds) == count - 1
    evictions = [store(ledger, keys_of(20 * count + i, 1)) for i in range(EVICTIONS)]
    metrics["ledger.evict_us_p99"] = results.percentile(evictions, 99)
    results.write("ledger", metrics, keys=count, evict_us=results.spread(evictions))


if __name__ == "__main__":
    main()
