"""Checks every block that a Mover stores or loads inside an engine, by checksums taken on the engine's own stream.

Patches kvoffload.Mover: `store` sums the blocks as the engine's stream sees them at that moment, `poll` compares the
host slot once the store has ended, and the GPU blocks once a load has ended, before the engine can use them.

What makes a missing edge visible: every other transfer is held back by some milliseconds on our own stream, without the
engine's knowing, and a pause on the engine's stream makes each step's writes late.
"""

from collections import Counter

import numpy as np
import torch

import kvoffload as kv
from kvoffload import _C

HOLD_SECONDS = 0.004
PAUSE_SECONDS = 0.004


class DevicePage:
    """(num_blocks, words) of one page, by the protocol that torch reads."""

    def __init__(self, page, num_blocks):
        words, stride = page.bytes // 4, page.block_stride
        assert page.bytes % 4 == 0
        self.__cuda_array_interface__ = {
            "shape": (num_blocks, words),
            "strides": (stride, 4),
            "typestr": "<i4",
            "data": (page.address, False),
            "version": 3,
        }


class Sums:
    """Per block one 64-bit number over all its bytes: the words weighted by odd numbers, modulo 2^64."""

    def __init__(self, group):
        rng = np.random.default_rng(0)
        self.group = group
        pages = group.geometry.pages
        self.weights = [rng.integers(1, 1 << 62, page.bytes // 4, np.int64) | 1 for page in pages]
        self.device_weights = [torch.from_numpy(w).cuda() for w in self.weights]
        self.device_pages = [torch.as_tensor(DevicePage(page, group.num_blocks), device="cuda") for page in pages]

    def on_device(self, blocks) -> torch.Tensor:
        ids = torch.as_tensor(np.asarray(blocks, np.int64)).pin_memory().cuda(non_blocking=True)  # no host sync
        pairs = zip(self.device_pages, self.device_weights, strict=True)
        return sum((page[ids].long() * weights).sum(1) for page, weights in pairs)

    def in_slot(self, view) -> np.ndarray:
        slot, before = np.frombuffer(view, np.uint8), 0
        total = np.zeros(self.group.blocks_per_chunk, np.int64)
        for page, weights in zip(self.group.geometry.pages, self.weights, strict=True):
            at = before * self.group.blocks_per_chunk
            words = slot[at : at + page.bytes * self.group.blocks_per_chunk].view(np.int32)
            total += (words.reshape(-1, page.bytes // 4).astype(np.int64) * weights).sum(1)
            before += page.bytes
        return total


class BlockCheck:
    """`marks=False`: stores wait for nothing, the control that must find wrong bytes."""

    def __init__(self, marks=True):
        self.marks = marks
        self.sums: dict[int, list[Sums]] = {}  # by id of the mover
        self.expected: dict[tuple[int, int], torch.Tensor] = {}  # (group, slot) -> a sum per block
        self.jobs: dict[int, tuple] = {}
        self.pairs: dict[str, list] = {"stores": [], "loads": []}  # (found, wanted), compared at the end: no host sync
        self.counts: Counter[str] = Counter()
        self.hold_stream, self.idle_stream = torch.cuda.Stream(), torch.cuda.Stream()
        self.store, self.load, self.poll = kv.Mover.store, kv.Mover.load, kv.Mover.poll
        check = self
        kv.Mover.store = lambda mover, blocks, slots, **options: check.on_store(mover, blocks, slots, **options)
        kv.Mover.load = lambda mover, slots, blocks, **options: check.on_load(mover, slots, blocks, **options)
        kv.Mover.poll = lambda mover: check.on_poll(mover)

    def sums_of(self, mover, group) -> Sums:
        if id(mover) not in self.sums:
            self.sums[id(mover)] = [Sums(g) for g in mover.layout.groups]
        return self.sums[id(mover)][group]

    def hold(self, mover, move) -> None:
        """Every other time: an empty transfer goes ahead on our stream and waits there for a slow kernel."""
        self.counts["transfers"] += 1
        if self.counts["transfers"] % 2:
            _C.cuda_spin(0, self.hold_stream.cuda_stream, HOLD_SECONDS)
            move(mover, [], [], after=mover.mark(self.hold_stream))

    def on_store(self, mover, blocks, slots, *, group=0, job=0, after=None, **options):
        found = self.sums_of(mover, group).on_device(blocks).reshape(len(slots), -1)
        self.hold(mover, self.store)
        after = after if self.marks else mover.mark(self.idle_stream)
        transfer = self.store(mover, blocks, slots, group=group, job=job, after=after, **options)
        self.expected.update({(group, slot): found[i] for i, slot in enumerate(slots)})
        self.jobs[job] = ("store", group, tuple(slots), found)
        return transfer

    def on_load(self, mover, slots, blocks, *, group=0, job=0, skip_blocks=0, **options):
        self.hold(mover, self.load)
        transfer = self.load(mover, slots, blocks, group=group, job=job, skip_blocks=skip_blocks, **options)
        wanted = torch.cat([self.expected[group, slot] for slot in slots])[skip_blocks:]
        self.jobs[job] = ("load", group, tuple(blocks)[skip_blocks:], wanted)
        return transfer

    def on_poll(self, mover):
        results = self.poll(mover)
        _C.cuda_spin(0, torch.cuda.current_stream().cuda_stream, PAUSE_SECONDS)
        for result in results:
            kind, group, ids, wanted = self.jobs.pop(result.job)
            sums = self.sums_of(mover, group)
            if not result.ok:
                self.counts["failed"] += 1
            elif kind == "store":
                found = np.stack([sums.in_slot(mover.slot_view(group, slot)) for slot in ids])
                self.pairs["stores"].append((torch.from_numpy(found), wanted))
            else:
                self.pairs["loads"].append((sums.on_device(ids), wanted))
        return results

    def report(self) -> dict[str, int]:
        for kind, pairs in self.pairs.items():
            self.counts[f"{kind}_checked"] = sum(wanted.numel() for _, wanted in pairs)
            self.counts[f"wrong_{kind}"] = sum(int((found.cpu() != wanted.cpu()).sum()) for found, wanted in pairs)
        names = ("stores_checked", "wrong_stores", "loads_checked", "wrong_loads", "failed")
        return {name: self.counts[name] for name in names}
