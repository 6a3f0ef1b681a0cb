"""Each path, and the choice between them, against the link's ceiling of the same process.

    transfer.py

Device pages at random, slots of 2 MiB at random (of 1 MiB for the small transfers), the same for all paths; random
data; the caller's stream is one of its own; time from the call until a spinning caller sees the end. Ceiling: copies of
1 GiB, both at once for `bidir`. All take turns, 11 rounds of 2 samples each, the paths in another order each time;
medians. Every shape and path is verified once, byte by byte.
"""

import random
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import results
import torch

import kvoffload as kv
from kvoffload import _C

ROUNDS, IN_A_ROW = 11, 2
SLOT_BYTES = 2 << 20
PATHS = ("auto", "dma", "kernel", "staged")
SHAPES = [(4096, 8192), (16384, 8192), (65536, 8192), (65536, 1024), (524288, 1024), (2097152, 1024)]
BIDIR = [(16384, 32768), (65536, 8192), (2097152, 1024)]
SMALL = (16384, 64)
SMALL_ROUNDS, WARMUP_ROUNDS = 520, 20
WAYS = ("d2h", "h2d")
ORDER = random.Random(0)


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


def spin(*transfers: kv.Transfer) -> tuple[kv.Transfer, ...]:
    """Until all are done."""
    for transfer in transfers:
        while not transfer.done():
            pass
    return transfers


def seconds_on_device(transfer: kv.Transfer) -> float:
    assert transfer.result.ok, transfer.result.error
    return transfer.result.seconds


class Contiguous:
    """Copies of 1 GiB, the ceiling: one way or both ways at once."""

    bytes = 1 << 30

    def __init__(self) -> None:
        self.host = [torch.ones(self.bytes, dtype=torch.uint8).pin_memory() for _ in WAYS]
        self.device = [torch.randint(0, 256, (self.bytes,), dtype=torch.uint8, device="cuda") for _ in WAYS]
        self.streams = [torch.cuda.Stream() for _ in WAYS]

    def copy(self, ways: tuple[str, ...]) -> None:
        for way in ways:
            i = WAYS.index(way)
            to, source = (self.host, self.device) if way == "d2h" else (self.device, self.host)
            with torch.cuda.stream(self.streams[i]):
                to[i].copy_(source[i], non_blocking=True)
        for way in ways:
            self.streams[WAYS.index(way)].synchronize()


class Samples:
    """Seconds by name. Everything takes turns, some samples each, so that all meet the same machine."""

    def __init__(self) -> None:
        self.seconds: dict[str, list[float]] = {}
        self.on_device: dict[str, list[float]] = {}

    def take(self, name: str, run: Callable[[], tuple[kv.Transfer, ...] | None]) -> None:
        run()  # not measured: what came before was another kind of transfer
        for _ in range(IN_A_ROW):
            start = time.perf_counter()
            transfers = run()
            self.seconds.setdefault(name, []).append(time.perf_counter() - start)
            for seconds in map(seconds_on_device, transfers or ()):
                self.on_device.setdefault(name, []).append(seconds)

    def gb_per_s(self, name: str, moved_bytes: int) -> float:
        return moved_bytes / 1e9 / statistics.median(self.seconds[name])


def shuffled(paths: tuple[str, ...]) -> list[str]:
    """What comes first is slower: before it came another shape, or another path."""
    return ORDER.sample(paths, len(paths))


def measure(ceiling: Contiguous, shapes: dict[tuple[int, int], Shape]) -> Samples:
    samples = Samples()
    for _ in range(ROUNDS):
        for ways in (*((way,) for way in WAYS), WAYS):
            samples.take("ceiling." + "+".join(ways), lambda ways=ways: ceiling.copy(ways))
        for (page_bytes, count), shape in shapes.items():
            for path in shuffled(PATHS):
                for way in WAYS if (page_bytes, count) in SHAPES else ():
                    run = lambda shape=shape, way=way, path=path: spin(shape.submit(way, path))  # noqa: E731
                    samples.take(f"{way}.{page_bytes}.n{count}.{path}", run)
                if (page_bytes, count) in BIDIR:
                    run = lambda shape=shape, path=path: spin(*(shape.submit(way, path) for way in WAYS))  # noqa: E731
                    samples.take(f"bidir.{page_bytes}.{path}", run)
    return samples


def report(samples: Samples, shapes: dict[tuple[int, int], Shape], metrics: dict, details: dict) -> None:
    ceilings = {way: samples.gb_per_s(f"ceiling.{way}", Contiguous.bytes) for way in WAYS}
    ceilings["bidir"] = samples.gb_per_s("ceiling." + "+".join(WAYS), 2 * Contiguous.bytes)
    for name, rate in ceilings.items():
        metrics[f"transfer.ceiling.{name.replace('bidir', 'both')}_gb_per_s"] = rate
    for page_bytes, count in SHAPES:
        for way in WAYS:
            report_one(samples, f"{way}.{page_bytes}.n{count}", page_bytes * count, ceilings[way], metrics, details)
            last = shapes[page_bytes, count].submit(way, "auto")
            spin(last)
            details[f"{way}.{page_bytes}.n{count}"] |= {"path": last.result.path, "reason": last.result.reason}
    for page_bytes, count in BIDIR:
        report_one(samples, f"bidir.{page_bytes}", 2 * page_bytes * count, ceilings["bidir"], metrics, details)


def report_one(
    samples: Samples, name: str, moved_bytes: int, ceiling_gb_per_s: float, metrics: dict, details: dict
) -> None:
    for path in PATHS:
        metrics[f"transfer.{name}.{path}_gb_per_s"] = samples.gb_per_s(f"{name}.{path}", moved_bytes)
    metrics[f"transfer.{name}.ratio"] = metrics[f"transfer.{name}.auto_gb_per_s"] / ceiling_gb_per_s
    details[name] = {
        "auto_us": results.spread([1e6 * seconds for seconds in samples.seconds[f"{name}.auto"]]),
        "auto_us_on_device": statistics.median(samples.on_device[f"{name}.auto"]) * 1e6,
    }


def small(metrics: dict, details: dict) -> None:
    """The paths take turns, so that all meet the same machine."""
    page_bytes, count = SMALL
    shape = Shape(page_bytes, count, slot_bytes=page_bytes * count)
    for way in WAYS:
        samples: dict[str, list[float]] = {path: [] for path in PATHS}
        for path in PATHS:
            shape.verify(path)
        for path in (path for _ in range(SMALL_ROUNDS) for path in shuffled(PATHS)):
            start = time.perf_counter()
            (transfer,) = spin(shape.submit(way, path))
            samples[path].append(time.perf_counter() - start)
            seconds_on_device(transfer)
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
    details: dict = {"device": _C.cuda_device(0).identity()}
    shape = Shape(*SMALL)
    metrics = {"ring.bytes": shape.mover.stats()["ring_bytes"]}
    table = shape.mover.path_table
    source = table.source.replace(str(Path.home()), "~")
    details["path_table"] = {"source": source, "ceilings": table.ceilings, "rows": [c.row for c in table.rows]}
    shape.mover.close()
    small(metrics, details)
    shapes = {key: Shape(*key) for key in dict.fromkeys(SHAPES + BIDIR)}
    for shape in shapes.values():
        for path in PATHS:
            shape.verify(path)
    report(measure(Contiguous(), shapes), shapes, metrics, details)
    results.write("transfer", metrics, **details)


if __name__ == "__main__":
    main()
