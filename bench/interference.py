"""What staged transfers cost a model that fills the GPU, and how fast they are meanwhile.

    interference.py [--sweep]

16 KiB pages beside an 8192^3 bf16 product, and auto, dma and kernel beside a decode-like loop; the yardstick is large
DMA beside the same product. Medians of 7 on/off pairs; bytes that completed inside the product's window. --sweep:
several settings of the path, 3 pairs each, into interference-sweep.json.
"""

import functools
import sys

import numpy as np
import results
import torch

import kvoffload as kv
from kvoffload import _C
from kvoffload.cli import neighbours
from kvoffload.cli.interference import Interference, interfere

PAGE_BYTES, COUNT, SLOT_BYTES = 16 << 10, 16384, 2 << 20
LARGE_BYTES = 32 << 20
RING_BYTES = 256 << 20
WINDOW_SECONDS = 0.25
Engine = _C.Engine

# What was tried for `staged`: name -> tuning of the engine.
SETTINGS = {
    "as built": {},
    "32 CTAs": {"ring_ctas": 32},
    "64 CTAs": {"ring_ctas": 64},
    "normal priority": {"urgent": False},
    "pieces of 8 MiB": {"piece_bytes": 8 << 20},
    "pieces of 32 MiB": {"piece_bytes": 32 << 20},
    "pieces of 64 MiB": {"piece_bytes": 64 << 20},
}


class Load:
    """Transfers of random pages, always the same ones."""

    def __init__(self, page_bytes: int, count: int, tuning: dict | None = None) -> None:
        per_chunk = max(SLOT_BYTES // page_bytes, 1)
        self.tensor = torch.randint(0, 256, (count, page_bytes), dtype=torch.uint8, device="cuda")
        layout = kv.KVLayout.from_tensors(self.tensor, tokens_per_block=16, blocks_per_chunk=per_chunk)
        _C.Engine = functools.partial(Engine, tuning=tuning or {})
        try:
            host = layout.groups[0].slot_bytes * (count // per_chunk)
            self.mover = kv.Mover(layout, host=host, ring=RING_BYTES, background=False)
        finally:
            _C.Engine = Engine
        rng = np.random.default_rng(0)
        self.blocks, self.slots = rng.permutation(count), rng.permutation(count // per_chunk)
        self.stream = torch.cuda.Stream()

    def submit(self, way: str, path: str) -> kv.Transfer:
        if way == "d2h":
            return self.mover.store(self.blocks, self.slots, stream=self.stream, path=path)
        return self.mover.load(self.slots, self.blocks, stream=self.stream, path=path)

    def beside(
        self, neighbour, way: str, path: str, pairs: int, window_seconds: float = WINDOW_SECONDS
    ) -> Interference:
        submit = functools.partial(self.submit, way, path)
        return interfere(neighbour, submit, pairs=pairs, window_seconds=window_seconds)


def numbers(found: Interference) -> dict:
    return {
        "slowdown_pct": [round(v, 3) for v in found.slowdown_pct.samples],
        "gb_per_s": [round(v, 3) for v in found.gb_per_s.samples],
        "alone_gb_per_s": round(found.alone_gb_per_s, 3),
    }


def sweep(gemm, ceiling: dict[str, float]) -> None:
    metrics, details = {}, {}
    for name, tuning in SETTINGS.items():
        try:
            load = Load(PAGE_BYTES, COUNT, tuning)
        except kv.KVOffloadError as error:
            print(name, error)
            continue
        for way in ("d2h", "h2d"):
            found = load.beside(gemm, way, "staged", 3, 0.12)
            details[f"{name}, {way}"] = numbers(found)
            key = f"sweep.{name.replace(' ', '_').replace(',', '')}.{way}"
            metrics[f"{key}.ratio"] = found.gb_per_s.median / ceiling[way]
            metrics[f"{key}.slowdown_pct"] = found.slowdown_pct.median
            metrics[f"{key}.alone_gb_per_s"] = found.alone_gb_per_s
        load.mover.close()
    results.write("interference-sweep", metrics, runs=details)


def beside_product(gemm, ceiling: dict[str, float], load: Load) -> tuple[dict, dict]:
    metrics, details = {}, {}
    large = Load(LARGE_BYTES, 4)
    for way in ("d2h", "h2d"):
        ours, dma = load.beside(gemm, way, "auto", 7), large.beside(gemm, way, "dma", 7)
        key = f"interference.gemm8192.{way}"
        metrics[f"{key}.ratio"] = ours.gb_per_s.median / ceiling[way]
        metrics[f"{key}.slowdown_pct"] = ours.slowdown_pct.median
        metrics[f"{key}.dma_slowdown_pct"] = dma.slowdown_pct.median
        metrics[f"{key}.dma_gb_per_s"] = dma.gb_per_s.median
        details |= {key: numbers(ours), f"{key}.dma": numbers(dma)}
    large.mover.close()
    return metrics, details


def beside_decode(load: Load) -> tuple[dict, dict]:
    metrics, details = {}, {}
    decode = neighbours.decode(0)
    for way in ("d2h", "h2d"):
        for path in ("auto", "dma", "kernel"):
            found = load.beside(decode, way, path, 7)
            suffix = "" if path == "auto" else f".{path}"
            metrics[f"interference.decode.{way}.slowdown_pct{suffix}"] = found.slowdown_pct.median
            metrics[f"interference.decode.{way}.gb_per_s{suffix}"] = found.gb_per_s.median
            details[f"interference.decode.{way}.{path}"] = numbers(found)
    return metrics, details


def main() -> None:
    store, load_rate = _C.ceiling_gb_per_s(_C.cuda_device(0), 1 << 30, False)
    ceiling = {"d2h": store, "h2d": load_rate}
    gemm = neighbours.large_product(0)
    if "--sweep" in sys.argv:
        sweep(gemm, ceiling)
        return
    load = Load(PAGE_BYTES, COUNT)
    metrics, details = beside_product(gemm, ceiling, load)
    more_metrics, more_details = beside_decode(load)
    results.write("interference", metrics | more_metrics, ceiling=ceiling, **details, **more_details)


if __name__ == "__main__":
    main()
