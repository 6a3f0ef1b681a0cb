"""Checks every block that a Mover stores or loads inside an engine, by checksums taken on the engine's own stream.

Patches kvoffload.Mover: `submit` sums the blocks of a store as the engine's stream sees them at that moment, `poll`
compares the host slot once the store has ended, and the GPU blocks once a load has ended, before the engine can use
them. What comes back from disk must be what was in the slot that was written there.

What makes a missing edge visible: every other transfer is held back by some milliseconds on our own stream, without the
engine's knowing, and a pause on the engine's stream makes each step's writes late.

Without a GPU the blocks are plain memory, and nothing is held back: for trying out what uses this.
"""

import ctypes
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


class Cuda:
    """Blocks on a GPU, its streams, and what makes them late."""

    device = "cuda"

    def __init__(self):
        self.hold_stream, self.idle_stream = torch.cuda.Stream(), torch.cuda.Stream()

    def page(self, page, num_blocks):
        return torch.as_tensor(DevicePage(page, num_blocks), device="cuda")

    def ids(self, blocks):
        return torch.as_tensor(np.asarray(blocks, np.int64)).pin_memory().cuda(non_blocking=True)  # no host sync

    def unmarked(self, mover):
        """A mark that waits for nothing."""
        return mover.mark(self.idle_stream)

    def hold(self, mover, move):
        """An empty transfer goes ahead on our stream and waits there for a slow kernel."""
        _C.cuda_spin(0, self.hold_stream.cuda_stream, HOLD_SECONDS)
        move(mover, [], [], after=mover.mark(self.hold_stream))

    def pause(self):
        _C.cuda_spin(0, torch.cuda.current_stream().cuda_stream, PAUSE_SECONDS)


class Host:
    """Blocks in plain memory: no streams, nothing is late."""

    device = "cpu"

    def page(self, page, num_blocks):
        extent = (ctypes.c_char * ((num_blocks - 1) * page.block_stride + page.bytes)).from_address(page.address)
        shape, strides = (num_blocks, page.bytes // 4), (page.block_stride, 4)
        return torch.from_numpy(np.ndarray(shape, np.int32, buffer=extent, strides=strides))

    def ids(self, blocks):
        return torch.as_tensor(np.asarray(blocks, np.int64))

    def hold(self, mover, move):
        pass

    def pause(self):
        pass


class Sums:
    """Per block one 64-bit number over all its bytes: the words weighted by odd numbers, modulo 2^64."""

    def __init__(self, group, side):
        rng = np.random.default_rng(0)
        self.group, self.side = group, side
        pages = group.geometry.pages
        self.weights = [rng.integers(1, 1 << 62, page.bytes // 4, np.int64) | 1 for page in pages]
        self.device_weights = [torch.from_numpy(w).to(side.device) for w in self.weights]
        self.device_pages = [side.page(page, group.num_blocks) for page in pages]

    def on_device(self, blocks) -> torch.Tensor:
        ids = self.side.ids(blocks)
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
    """Controls that must find wrong bytes: `marks=False`: stores wait for nothing; `spoils`: slots are written over."""

    def __init__(self, marks=True, spoils=False):
        self.marks, self.spoils = marks, spoils
        self.side = Cuda() if torch.cuda.is_available() else Host()
        self.sums: dict[int, list[Sums]] = {}  # by id of the mover
        self.expected: dict[tuple[int, int], torch.Tensor] = {}  # (group, slot) -> a sum per block
        self.on_disk: dict[tuple[int, bytes], torch.Tensor] = {}  # (group, key) -> the same
        self.jobs: dict[int, tuple] = {}
        self.pairs: dict[str, list] = {"stores": [], "loads": []}  # (found, wanted), compared at the end: no host sync
        self.counts: Counter[str] = Counter()
        self.submit, self.submit_to_disk, self.poll = kv.Mover.submit, kv.Mover.submit_to_disk, kv.Mover.poll
        check = self
        kv.Mover.submit = lambda mover, job, after: check.on_submit(mover, job, after)
        kv.Mover.poll = lambda mover: check.on_poll(mover)
        kv.Mover.submit_to_disk = lambda mover, job, seconds: check.on_submit_to_disk(mover, job, seconds)

    def sums_of(self, mover, group) -> Sums:
        if id(mover) not in self.sums:
            self.sums[id(mover)] = [Sums(g, self.side) for g in mover.layout.groups]
        return self.sums[id(mover)][group]

    def hold(self, mover, move) -> None:
        """Every other time."""
        self.counts["transfers"] += 1
        if self.counts["transfers"] % 2:
            self.side.hold(mover, move)

    def on_submit(self, mover, job, after):
        sums = self.sums_of(mover, job.group)
        if job.kind == "store":
            found = sums.on_device(job.blocks).reshape(len(job.slots), -1)
            self.hold(mover, kv.Mover.store)
            transfer = self.submit(mover, job, after=after if self.marks else self.side.unmarked(mover))
            self.expected.update({(job.group, slot): found[i] for i, slot in enumerate(job.slots)})
            self.jobs[job.id] = ("store", job.group, job.slots, found)
            return transfer
        self.hold(mover, kv.Mover.load)
        transfer = self.submit(mover, job, after=after)
        wanted = torch.cat([self.expected[job.group, slot] for slot in job.slots])[job.skip_blocks :]
        self.jobs[job.id] = ("load", job.group, job.blocks[job.skip_blocks :], wanted)
        return transfer

    def on_submit_to_disk(self, mover, job, seconds):
        for key, slot in zip(job.keys, job.slots, strict=True):
            if job.kind == "demote":
                self.on_disk[job.group, key] = self.expected[job.group, slot]
            else:
                self.expected[job.group, slot] = self.on_disk[job.group, key]
        self.counts[job.kind] += len(job.slots)
        self.submit_to_disk(mover, job, seconds)

    def on_poll(self, mover):
        results = self.poll(mover)
        self.side.pause()
        for result in results:
            if result.job not in self.jobs:  # the disk's
                continue
            kind, group, ids, wanted = self.jobs.pop(result.job)
            sums = self.sums_of(mover, group)
            if not result.ok:
                self.counts["failed"] += 1
            elif kind == "store":
                found = np.stack([sums.in_slot(mover.slot_view(group, slot)) for slot in ids])
                self.pairs["stores"].append((torch.from_numpy(found), wanted))
                if self.spoils:
                    mover.slot_view(group, ids[0])[:4] = b"\xff\xff\xff\xff"
            else:
                self.pairs["loads"].append((sums.on_device(ids), wanted))
        return results

    def report(self) -> dict[str, int]:
        for kind, pairs in self.pairs.items():
            self.counts[f"{kind}_checked"] = sum(wanted.numel() for _, wanted in pairs)
            self.counts[f"wrong_{kind}"] = sum(int((found.cpu() != wanted.cpu()).sum()) for found, wanted in pairs)
        names = ("stores_checked", "wrong_stores", "loads_checked", "wrong_loads", "failed", "demote", "promote")
        return {name: self.counts[name] for name in names}
