"""Whether the hybrid hits as often as it could: a real trace through memory and files, and through a model of both.

    hybrid.py [--requests N] [--dir DIR]       writes $OUT/hybrid.json

The conversation trace through a KVCache with host memory of 512 blocks of 512 tokens (an eighth of what 256 GiB hold
for an 8B model) and a disk of 4,096, blocks scaled down to 7.5 KiB. A request has what is there brought back, loads it,
compares every byte, and stores the rest; hits are the blocks that it loaded. The model is a directory of two tiers of
the same sizes whose jobs end at once. Requests follow each other as fast as they end, where the trace leaves seconds
between them: so each first waits until the demotions that are due are done. `.write_through`: all are due at once, else
when more than a sixteenth of host memory waits for them.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent / "policies"))
from admission import end
from replay import Requests, read_trace, results

import kvoffload as kv
from kvoffload import _C
from kvoffload.cache_disk import UNWRITTEN_SHARE
from kvoffload.config import MANIFEST_SHARE

HOST_BLOCKS, DISK_BLOCKS, DEVICE_BLOCKS = 512, 4096, 512
BLOCK_BYTES = 8192 - 512
MODES = {"": HOST_BLOCKS // UNWRITTEN_SHARE, "write_through": 0}  # how many keys may wait for their demotion
SECONDS, FAR = 60.0, 1e18


def key_of(block: int) -> bytes:
    return block.to_bytes(16, "big")


def simulate(requests: Requests, most_waiting: int, slot_bytes: int, disk_bytes: int) -> dict[str, int]:
    directory = _C.Directory(1)
    directory.open(HOST_BLOCKS * slot_bytes, [slot_bytes])
    directory.grow(HOST_BLOCKS * slot_bytes)
    directory.open_disk(disk_bytes, 0, 1)
    for blocks in requests:
        keys = [key_of(block) for block in blocks]
        directory.lookup(0, keys)
        end(directory, directory.plan_promote(0, keys, FAR))
        end(directory, directory.plan_store(0, keys, FAR))
        while (over := directory.stats()["waiting_for_disk_keys"] - most_waiting) > 0:
            if not end(directory, directory.plan_demote(0, over, 0.0, FAR)):
                break
    stats = directory.stats()
    return {"host": stats["hit_keys"], "disk": stats["disk_hit_keys"]}


class Player:
    def __init__(self, folder: Path, most_waiting: int) -> None:
        self.most_waiting = most_waiting
        self.tensor = np.zeros((DEVICE_BLOCKS, BLOCK_BYTES // 8), np.uint64)
        self.pattern = np.random.default_rng(1).integers(0, 2**63, BLOCK_BYTES // 8, dtype=np.uint64)
        layout = kv.KVLayout.from_tensors(self.tensor.view(np.uint16), tokens_per_block=16, blocks_per_chunk=1)
        self.slot_bytes = layout.groups[0].slot_bytes
        slabs = DISK_BLOCKS * self.slot_bytes + (128 << 10)  # and what fit_slab keeps for a header and the maps
        disk_size = slabs * MANIFEST_SHARE // (MANIFEST_SHARE - 1)
        self.cache = kv.KVCache(
            layout, HOST_BLOCKS * self.slot_bytes, disk=folder, disk_size=disk_size,
            write_through=most_waiting == 0, calibrate=False, background=False, worth_loading="always",
        )  # fmt: skip
        self.hits, self.wrong_bytes = {"host": 0, "disk": 0}, 0

    def play(self, blocks: list[int]) -> None:
        keys = [key_of(block) for block in blocks]
        host = self.cache.lookup(keys).host
        with self.cache.prefetch(keys) as prefetch:
            found = prefetch.wait(SECONDS).host
            if found:
                self.tensor[:found] = 0
                self.cache.load(keys[:found], list(range(found))).wait(SECONDS)
        wrong = self.tensor[:found] != self.content(blocks[:found])
        self.wrong_bytes += 8 * int(np.count_nonzero(wrong))
        self.hits["host"] += min(host, found)
        self.hits["disk"] += max(found - host, 0)
        if rest := blocks[found:]:
            self.tensor[found : len(blocks)] = self.content(rest)
            self.cache.store(keys[found:], list(range(found, len(blocks)))).wait(SECONDS)
        self.wait_for_demotions()

    def content(self, blocks: list[int]) -> np.ndarray:
        return self.pattern ^ np.array(blocks, np.uint64)[:, None]

    def wait_for_demotions(self) -> None:
        while (stats := self.cache.stats())["mover"]["disk"]["jobs"] or (
            stats["waiting_for_disk_keys"] > self.most_waiting
        ):
            time.sleep(0.0005)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=None)
    parser.add_argument("--dir", type=Path, default=None)
    arguments = parser.parse_args()
    requests = read_trace("conversation")[: arguments.requests]
    metrics: dict[str, float] = {}
    details: dict[str, object] = {}
    for mode, most_waiting in MODES.items():
        with tempfile.TemporaryDirectory(dir=arguments.dir) as folder:
            figures, details[mode or "write_back"] = compare(requests, Path(folder), most_waiting)
        metrics |= {f"hybrid{mode and '.'}{mode}.{name}": value for name, value in figures.items()}
    results.write("hybrid", metrics, requests=len(requests), **details)


def compare(requests: Requests, folder: Path, most_waiting: int) -> tuple[dict[str, float], dict[str, object]]:
    begun, asked = time.monotonic(), sum(map(len, requests))
    player = Player(folder, most_waiting)
    for blocks in requests:
        player.play(blocks)
    stats = player.cache.stats()
    disk_bytes = stats["mover"]["disk"]["bytes"]
    player.cache.close()
    seconds = time.monotonic() - begun
    simulated = simulate(requests, most_waiting, player.slot_bytes, disk_bytes)
    figures = {
        "hit_ratio": sum(player.hits.values()) / asked,
        "simulated_hit_ratio": sum(simulated.values()) / asked,
        "wrong_bytes": player.wrong_bytes,
    }
    return figures, {
        "asked": asked, "hits": player.hits, "simulated_hits": simulated, "slot_bytes": player.slot_bytes,
        "seconds": round(seconds, 1), "stats": stats,
    }  # fmt: skip


if __name__ == "__main__":
    main()
