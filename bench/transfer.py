"""Each path, and the choice between them, against the link's ceiling of the same process.

    transfer.py [--quick]

Device pages at random, slots of 2 MiB at random (of 1 MiB for the small transfers), the same for all paths; random
data; the caller's stream is one of its own; time from the call until a spinning caller sees the end; median of 21.
Ceiling: contiguous copies of 1 GiB, both at once for `bidir`. Every shape and path is verified once, byte by byte.
"""

import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import results
import torch

import kvoffload as kv
from kvoffload import _C

REPEATS = 21
SLOT_BYTES = 2 << 20
PATHS = ("auto", "dma", "kernel", "staged")
SHAPES = [(4096, 8192), (16384, 8192), (65536, 8192), (65536, 1024), (524288, 1024), (2097152, 1024)]
BIDIR = [(16384, 32768), (65536, 8192), (2097152, 1024)]
SMALL = (16384, 64)
SMALL_ROUNDS, WARMUP_ROUNDS = 520, 20
WAYS = ("d2h", "h2d")


class Shape:
    """`count` random pages of a tensor, in random slots; a second such pair for the other direction."""

    def __init__(self, page_bytes: int, count: int, slot_bytes: int = SLOT_BYTES) -> None:
        self.page_bytes, self.count, self.bytes = page_bytes, count, page_bytes * count
        per_chunk = max(slot_bytes // page_bytes, 1)
        chunks = count // per_chunk
        pages = 2 * count + 2 * per_chunk
        self.tensor = torch.randint(0, 256, (pages, page_bytes), dtype=torch.uint8, device="cuda")
        self.layout = kv.KVLayout.from_tensors(self.tensor, tokens_per_block=16, blocks_per_chunk=per_chunk)
        slots = 2 * chunks + chunks // 4 + 2
        host_bytes = self.layout.groups[0].slot_bytes * slots
        self.mover = kv.Mover(self.layout, host=host_bytes, background=False)
        rng = np.random.default_rng(page_bytes + count)
        blocks, places = rng.permutation(pages), rng.permutation(slots)
        self.ids = {
            "d2h": (blocks[:count].copy(), places[:chunks].copy()),
            "h2d": (blocks[count : 2 * count].copy(), places[chunks : 2 * chunks].copy()),
        }

    def submit(self, way: str, path: str) -> kv.Transfer:
        blocks, slots = self.ids[way]
        if way == "d2h":
            return self.mover.store(blocks, slots, path=path)
        return self.mover.load(slots, blocks, path=path)

    def verify(self, path: str) -> None:
        """What is stored by `path` and loaded by `path` into other blocks is the same."""
        blocks, slots = self.ids["d2h"]
        others = self.ids["h2d"][0]
        want = self.tensor[torch.from_numpy(blocks).cuda()]
        self.mover.store(blocks, slots, path=path).before()
        self.tensor[torch.from_numpy(others).cuda()] = 0
        self.mover.load(slots, others, path=path).before()
        assert torch.equal(self.tensor[torch.from_numpy(others).cuda()], want), f"{path}: wrong bytes"
        torch.cuda.synchronize()


def spin(*transfers: kv.Transfer) -> list[float]:
    """Until all are done; seconds that each took on the device."""
    for transfer in transfers:
        while not transfer.done():
            pass
        assert transfer.result.ok, transfer.result.error
    return [transfer.result.seconds for transfer in transfers]


def timed(run: Callable[[], list[float]], on_device: list[float]) -> float:
    """Median seconds of `run`; those of the first transfer on the device go to `on_device`."""
    run()
    samples = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        seconds = run()
        samples.append(time.perf_counter() - start)
        on_device.append(seconds[0])
    return statistics.median(samples)


def one_way(metrics: dict, details: dict, ceiling: dict[str, float]) -> None:
    for page_bytes, count in SHAPES:
        shape = Shape(page_bytes, count)
        for path in PATHS:
            shape.verify(path)
            for way in WAYS:
                on_device: list[float] = []
                seconds = timed(lambda way=way, path=path, shape=shape: spin(shape.submit(way, path)), on_device)
                rate, key = shape.bytes / 1e9 / seconds, f"transfer.{way}.{page_bytes}.n{count}"
                metrics[f"{key}.{path}_gb_per_s"] = rate
                if path == "auto":
                    metrics[f"{key}.ratio"] = rate / ceiling[way]
                    transfer = shape.submit(way, path)
                    spin(transfer)
                    details[key] = {
                        "path": transfer.result.path, "reason": transfer.result.reason, "us": seconds * 1e6,
                        "us_on_device": statistics.median(on_device) * 1e6,
                    }  # fmt: skip
        shape.mover.close()


def both_ways(metrics: dict, both_gb_per_s: float) -> None:
    for page_bytes, count in BIDIR:
        shape = Shape(page_bytes, count)
        for path in PATHS:
            run = lambda path=path, shape=shape: spin(*(shape.submit(way, path) for way in WAYS))  # noqa: E731
            rate = 2 * shape.bytes / 1e9 / timed(run, [])
            metrics[f"transfer.bidir.{page_bytes}.{path}_gb_per_s"] = rate
            if path == "auto":
                metrics[f"transfer.bidir.{page_bytes}.ratio"] = rate / both_gb_per_s
        shape.mover.close()


def small(metrics: dict, details: dict) -> None:
    """The paths take turns, so that all meet the same machine."""
    page_bytes, count = SMALL
    shape = Shape(page_bytes, count, slot_bytes=page_bytes * count)
    for way in WAYS:
        samples: dict[str, list[float]] = {path: [] for path in PATHS}
        for path in PATHS:
            shape.verify(path)
        for i in range(SMALL_ROUNDS * len(PATHS)):
            path = PATHS[i % len(PATHS)]
            start = time.perf_counter()
            spin(shape.submit(way, path))
            samples[path].append(time.perf_counter() - start)
        for path in PATHS:
            suffix = "" if path == "auto" else f".{path}"
            metrics[f"transfer.small_us.{way}{suffix}"] = statistics.median(samples[path][WARMUP_ROUNDS:]) * 1e6
            details[f"small.{way}.{path}_us"] = results.spread([1e6 * s for s in samples[path][WARMUP_ROUNDS:]])
        transfer = shape.submit(way, "auto")
        spin(transfer)
        details[f"small.{way}"] = {"path": transfer.result.path, "reason": transfer.result.reason}
    shape.mover.close()


def main() -> None:
    torch.cuda.set_stream(torch.cuda.Stream())
    device = _C.cuda_device(0)
    store, load = _C.ceiling_gb_per_s(device, 1 << 30, False)
    both = sum(_C.ceiling_gb_per_s(device, 1 << 30, True))
    metrics = {"ceiling.d2h_gb_per_s": store, "ceiling.h2d_gb_per_s": load, "ceiling.both_gb_per_s": both}
    metrics = {f"transfer.{key}": value for key, value in metrics.items()}
    details: dict = {"device": device.identity()}
    shape = Shape(*SMALL)
    metrics["ring.bytes"] = shape.mover.stats()["ring_bytes"]
    table = shape.mover.path_table
    source = table.source.replace(str(Path.home()), "~")
    details["path_table"] = {"source": source, "ceilings": table.ceilings, "rows": [c.row for c in table.rows]}
    shape.mover.close()
    small(metrics, details)
    if "--quick" not in sys.argv:
        both_ways(metrics, both)
    one_way(metrics, details, {"d2h": store, "h2d": load})
    results.write("transfer", metrics, **details)


if __name__ == "__main__":
    main()
