"""The disk tier beside fio on the same file, and from disk through the arena into GPU memory.

    disk.py [--dir DIR] [--size BYTES]             writes $OUT/disk.json and $OUT/disk-to-gpu.json
    disk.py --only {fio|gpu} ...                   one of them

`disk.{read,write}.*`, `crc.*`: what `kvoffload bench disk` measures with records of 2 MiB. `disk.to_gpu.*`: chunks of
2 MiB of a cache whose host memory is a small part of what is on its disk, prefetched 32 MiB at a time, four batches
ahead, and loaded into GPU memory as they come, until a spinning caller sees the last one there; against fio at its
best reading the same slab, taking turns, and against the link (large copies in the same process), whichever is slower.
Random data; what arrives is compared with what was stored.
"""

import argparse
import statistics
import tempfile
import time
from collections import deque
from pathlib import Path

import numpy as np
import results
import torch

import kvoffload as kv
from kvoffload.cli import bench_disk
from kvoffload.cli.disk_report import as_dict
from kvoffload.cli.fio import Fio
from kvoffload.config import parse_size

RECORD_BYTES, PAGE_BYTES = 2 << 20, 64 << 10
PER_CHUNK = RECORD_BYTES // PAGE_BYTES
GPU_CHUNKS, BATCH, AHEAD, PAIRS = 512, 16, 4, 5
WAIT_SECONDS = 120.0


class ToGpu:
    """`chunks` chunks on disk, whose content is the tensor's, again and again."""

    def __init__(self, directory: Path, chunks: int) -> None:
        shape = (2 * GPU_CHUNKS * PER_CHUNK, PAGE_BYTES)  # what is stored, and where it is loaded to
        self.tensor = torch.randint(0, 256, shape, dtype=torch.uint8, device="cuda")
        layout = kv.KVLayout.from_tensors(self.tensor, tokens_per_block=16, blocks_per_chunk=PER_CHUNK)
        slot_bytes = layout.groups[0].slot_bytes
        self.cache = kv.KVCache(
            layout, host=slot_bytes * max(chunks // 8, 4 * AHEAD * BATCH), disk=directory,
            disk_size=slot_bytes * chunks * 5 // 4, write_through=True, background=False, namespace="bench",
        )  # fmt: skip
        self.chunks, self.blocks = chunks, np.arange(len(self.tensor)).reshape(2, GPU_CHUNKS, PER_CHUNK)
        self.keys = [b"bench" + chunk.to_bytes(16, "big") for chunk in range(chunks)]
        self.bytes = chunks * RECORD_BYTES
        for first in range(0, chunks, BATCH):
            places = self.blocks[0, first % GPU_CHUNKS : first % GPU_CHUNKS + BATCH].ravel()
            assert self.cache.store(self.keys[first : first + BATCH], places).wait(WAIT_SECONDS).ok
            self.settle()
        self.seed = 0

    def settle(self) -> None:
        deadline = time.monotonic() + WAIT_SECONDS
        while self.cache.stats()["waiting_for_disk_keys"]:
            assert time.monotonic() < deadline, "demotions do not end"
            time.sleep(0.001)

    @property
    def slab(self) -> Path:
        return Path(self.cache.stats()["mover"]["disk"]["paths"][0])

    def run(self) -> float:
        """GB/s of all chunks, in batches at random: what the last run left in host memory is met by chance only."""
        self.seed += 1
        order = np.random.default_rng(self.seed).permutation(self.chunks // BATCH) * BATCH
        before = self.cache.stats()["promoted_keys"]
        fetching: deque[tuple[int, kv.Prefetch]] = deque()
        loads: list[kv.Transfer] = []
        start = time.perf_counter()
        for first in map(int, order):
            fetching.append((first, self.cache.prefetch(self.keys[first : first + BATCH])))
            if len(fetching) > AHEAD:
                loads.append(self.load(*fetching.popleft()))
        while fetching:
            loads.append(self.load(*fetching.popleft()))
        while not loads[-1].done():
            pass
        seconds = time.perf_counter() - start
        assert all(load.result.ok for load in loads)
        from_disk = self.cache.stats()["promoted_keys"] - before
        assert torch.equal(*self.tensor.view(2, -1)), "wrong bytes"
        self.tensor[len(self.tensor) // 2 :] = 0
        return from_disk * RECORD_BYTES / seconds / 1e9

    def load(self, first: int, prefetch: kv.Prefetch) -> kv.Transfer:
        with prefetch:
            assert prefetch.wait(WAIT_SECONDS).host == BATCH, "a record is missing"
            places = self.blocks[1, first % GPU_CHUNKS : first % GPU_CHUNKS + BATCH].ravel()
            return self.cache.load(self.keys[first : first + BATCH], places)


def link_gb_per_s() -> float:
    host = torch.ones(1 << 30, dtype=torch.uint8).pin_memory()
    device, seconds = torch.empty_like(host, device="cuda"), []
    for _ in range(5):
        start = time.perf_counter()
        device.copy_(host, non_blocking=True)
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - start)
    return len(host) / statistics.median(seconds[1:]) / 1e9


def to_gpu(directory: Path, total_bytes: int) -> None:
    torch.cuda.set_stream(torch.cuda.Stream())
    link = link_gb_per_s()
    measured = ToGpu(directory, total_bytes // RECORD_BYTES // GPU_CHUNKS * GPU_CHUNKS)
    fio = Fio(measured.slab, measured.bytes, direct=True)
    job = fio.best(False, RECORD_BYTES)
    measured.run()  # not measured
    pairs = [(measured.run(), fio.run(job, False).gb_per_s) for _ in range(PAIRS)]
    report = measured.cache.stats()["mover"]["disk"]["report"]
    measured.cache.close()
    metrics = {
        "disk.to_gpu.gb_per_s": statistics.median(ours for ours, _ in pairs),
        "disk.to_gpu.ratio": statistics.median(ours / min(theirs, link) for ours, theirs in pairs),
    }
    results.write(
        "disk-to-gpu", metrics, pairs=pairs, link_gb_per_s=link, fio=str(job), bytes=measured.bytes, report=report
    )


def beside_fio(directory: Path, total_bytes: int) -> None:
    report = bench_disk.run(
        bench_disk.DiskOptions(
            directory=directory, records=[RECORD_BYTES], at_once=[1, 4, 16, 32], io=list(bench_disk.IO),
            total_bytes=total_bytes, repeats=PAIRS, fio=True, network=False,
        )
    )  # fmt: skip
    results.write("disk", report.figures(), bench_disk=as_dict(report))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--dir", type=Path, default=Path(tempfile.gettempdir()))
    parser.add_argument("--size", default="4GiB")
    parser.add_argument("--only", choices=("fio", "gpu"))
    asked = parser.parse_args()
    total_bytes = parse_size(asked.size, "--size")
    if asked.only != "gpu":
        beside_fio(asked.dir, total_bytes)
    if asked.only != "fio":
        with tempfile.TemporaryDirectory(dir=asked.dir, prefix="kvoffload-bench-") as directory:
            to_gpu(Path(directory), total_bytes)


if __name__ == "__main__":
    main()
