"""What was tried for `staged` beside a product that fills the GPU, and not built: several gathers in flight, and one
gather for half of the ring that signals piece by piece.

    staged_ways.py staged_ways.so

16 KiB pages, transfers of 256 MiB, two queued; random data; every way is verified once.
"""

import ctypes
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import results

from kvoffload import _C
from kvoffload.cli import neighbours
from kvoffload.cli.interference import interfere

PAGE_BYTES, COUNT, SLOT_BYTES, RING_BYTES = 16 << 10, 16384, 2 << 20, 128 << 20
SLOTS = COUNT * PAGE_BYTES // SLOT_BYTES
library = ctypes.CDLL(sys.argv[1])
for name in ("rig_make", "rig_mark"):
    getattr(library, name).restype = ctypes.c_void_p


class Rig:
    def __init__(self, streams: int, urgent: bool, ctas: int) -> None:
        rng = np.random.default_rng(0)
        self.pages = torch.randint(0, 256, (COUNT, PAGE_BYTES), dtype=torch.uint8, device="cuda")
        self.host = torch.empty(SLOTS * SLOT_BYTES, dtype=torch.uint8).pin_memory()
        self.ring = torch.empty(RING_BYTES, dtype=torch.uint8, device="cuda")
        self.order = rng.permutation(COUNT).astype(np.int32)
        self.ids = torch.from_numpy(self.order).cuda()
        self.slots = rng.permutation(SLOTS).astype(np.uint32)
        pointers = (self.pages, self.ring, self.host, self.ids)
        torch.cuda.synchronize()
        self.handle = ctypes.c_void_p(
            library.rig_make(
                *(ctypes.c_void_p(t.data_ptr()) for t in pointers), self.slots.ctypes.data_as(ctypes.c_void_p),
                COUNT, PAGE_BYTES, streams, int(urgent), ctas,
            )
        )  # fmt: skip

    def submit(self, way: str, piece: int, store: bool):
        if way == "signalled":
            library.signalled(self.handle, ctypes.c_size_t(piece))
        else:
            library.in_flight(self.handle, ctypes.c_size_t(piece), int(store))
        event = ctypes.c_void_p(library.rig_mark(self.handle, 1 if way == "signalled" else 0))

        def wait(_timeout: float) -> SimpleNamespace:
            return SimpleNamespace(ok=library.rig_wait(self.handle, event) == 0, bytes=COUNT * PAGE_BYTES, error="")

        return SimpleNamespace(wait=wait)

    def verify(self, way: str, piece: int) -> None:
        assert self.submit(way, piece, True).wait(0).ok
        want = self.pages[self.ids.long()].cpu().reshape(SLOTS, -1)
        assert torch.equal(self.host.reshape(SLOTS, -1)[torch.from_numpy(self.slots.astype(np.int64))], want), way


WAYS = [  # name, streams, urgent, CTAs, way, piece
    ("2 in flight, 16 MiB", 2, True, 64, "in flight", 16 << 20),
    ("2 in flight, 32 MiB", 2, True, 64, "in flight", 32 << 20),
    ("3 in flight, 16 MiB", 3, True, 64, "in flight", 16 << 20),
    ("3 in flight, 32 MiB", 3, True, 64, "in flight", 32 << 20),
    ("signalled, 16 MiB, 16 CTAs", 2, True, 16, "signalled", 16 << 20),
    ("signalled, 16 MiB, 64 CTAs", 2, True, 64, "signalled", 16 << 20),
    ("signalled, 16 MiB, 64 CTAs, normal priority", 2, False, 64, "signalled", 16 << 20),
]


def main() -> None:
    store, load = _C.ceiling_gb_per_s(_C.cuda_device(0), 1 << 30, False)
    gemm = neighbours.large_product(0)
    metrics, details = {}, {}
    for name, streams, urgent, ctas, way, piece in WAYS:
        rig = Rig(streams, urgent, ctas)
        rig.verify(way, piece)
        for is_store in (True, False) if way == "in flight" else (True,):
            found = interfere(
                gemm, lambda r=rig, w=way, p=piece, s=is_store: r.submit(w, p, s), pairs=3, window_seconds=0.15
            )
            key = f"ways.{name.replace(', ', '.').replace(' ', '_')}.{'d2h' if is_store else 'h2d'}"
            metrics[f"{key}.ratio"] = found.gb_per_s.median / (store if is_store else load)
            metrics[f"{key}.slowdown_pct"] = found.slowdown_pct.median
            metrics[f"{key}.alone_gb_per_s"] = found.alone_gb_per_s
            details[key] = {"slowdown_pct": found.slowdown_pct.samples, "gb_per_s": found.gb_per_s.samples}
    results.write("staged-ways", metrics, runs=details)


if __name__ == "__main__":
    main()
