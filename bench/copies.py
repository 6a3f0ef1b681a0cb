"""Ceilings of this machine's link, and what path `dma` reaches below them by page size.

    copies.py

GB are 10^9 bytes. Ceilings: one large copy of pinned, contiguous, random memory. Pages: 1,000 scattered pages on the
GPU, slots of one page each, so that neither side lets copies be merged.
"""

import statistics
import time

import numpy as np
import results
import torch

import kvoffload as kv

COUNT = 1000
REPEATS = 7


def timed(copy) -> float:
    copy()
    torch.cuda.synchronize()
    seconds = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        copy()
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds)


def ceilings() -> dict[str, float]:
    size = 2 << 30
    device = torch.randint(0, 256, (2, size), dtype=torch.uint8, device="cuda")
    host = torch.empty((2, size), dtype=torch.uint8, pin_memory=True)
    host.copy_(device)
    ways = torch.cuda.Stream(), torch.cuda.Stream()

    def both() -> None:
        with torch.cuda.stream(ways[0]):
            host[0].copy_(device[0], non_blocking=True)
        with torch.cuda.stream(ways[1]):
            device[1].copy_(host[1], non_blocking=True)

    return {
        "copies.ceiling_gb_per_s.store": size / 1e9 / timed(lambda: host[0].copy_(device[0], non_blocking=True)),
        "copies.ceiling_gb_per_s.load": size / 1e9 / timed(lambda: device[1].copy_(host[1], non_blocking=True)),
        "copies.ceiling_gb_per_s.both": 2 * size / 1e9 / timed(both),
    }


def pages(page_bytes: int) -> dict[str, float]:
    rng = np.random.default_rng(page_bytes)
    tensor = torch.randint(0, 256, (2 * COUNT, page_bytes), dtype=torch.uint8, device="cuda")
    layout = kv.KVLayout.from_tensors(tensor, tokens_per_block=16, blocks_per_chunk=1)
    out = {}
    with kv.Mover(layout, host=layout.groups[0].slot_bytes * 2 * COUNT, background=False) as mover:
        for name in ("store", "load"):
            blocks, slots = rng.permutation(2 * COUNT)[:COUNT], rng.permutation(2 * COUNT)[:COUNT]
            ids = (blocks, slots) if name == "store" else (slots, blocks)
            seconds = timed(lambda name=name, ids=ids: getattr(mover, name)(*ids).wait(timeout_seconds=60))
            out[f"copies.dma_gb_per_s.{name}.p{page_bytes}"] = COUNT * page_bytes / 1e9 / seconds
    return out


def main() -> None:
    metrics = ceilings()
    torch.cuda.empty_cache()
    for page_bytes in (4 << 10, 16 << 10, 64 << 10, 512 << 10, 2 << 20):
        metrics |= pages(page_bytes)
    results.write("copies", metrics, count=COUNT, repeats=REPEATS)


if __name__ == "__main__":
    main()
