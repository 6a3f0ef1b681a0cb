"""The byte-wise reference: every store and load is done twice, by a Mover and on plain numpy arrays, and all bytes of
the device's memory, in blocks and between them, must come out the same."""

import functools

import numpy as np
import pytest
from kv_layouts import Case

import kvoffload as kv
from kvoffload import _C

WAIT_SECONDS = 60


def layout_of(backend, case: Case, memories) -> kv.KVLayout:
    tensors, groups = [], []
    for views in case.groups:
        groups.append(list(range(len(tensors), len(tensors) + len(views))))
        tensors += [backend.view(memories[v.buffer], v.offset, v.shape, v.strides, v.item_bytes) for v in views]
    return kv.KVLayout.from_tensors(tensors, tokens_per_block=case.tokens_per_block, groups=groups, **case.options)


def slots_by_group(layout: kv.KVLayout, host_bytes: int) -> list[list[int]]:
    """Extents are dealt out in turn, as an extent has one owner (slot numbers of groups name the same bytes)."""
    plan = _C.plan_extents(host_bytes, [g.slot_bytes for g in layout.groups])
    slots: list[list[int]] = [[] for _ in layout.groups]
    for extent in range(host_bytes // plan.extent_bytes + 1):
        group = extent % len(slots)
        first = extent * plan.slots_per_extent(group)
        slots[group] += range(first, first + plan.usable_slots(group, extent, host_bytes))
    return slots


class World:
    """A Mover and its reference. `memory[i]` and `slots[group, slot]` say what the bytes ought to be."""

    path = "auto"  # of movers whose options name none

    def __init__(self, backend, case: Case, seed=0, host="4MiB", **options):
        self.backend, self.case = backend, case
        self.rng = np.random.default_rng(seed)
        self.memory = [self.random(size) for size in case.buffers]
        self.device = [backend.memory(data) for data in self.memory]
        self.layout = layout_of(backend, case, self.device)
        self.mover = kv.Mover(self.layout, host=host, **{"path": self.path, **options})
        self.free_slots = slots_by_group(self.layout, self.mover.hello().host_bytes)
        self.slots: dict[tuple[int, int], np.ndarray] = {}

    def random(self, size) -> np.ndarray:
        return self.rng.integers(0, 256, size, np.uint8)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.mover.close()

    @functools.cached_property
    def index(self) -> list[list[tuple[int, np.ndarray]]]:
        """Per group, where each block's bytes are: (buffer, (num_blocks, bytes) offsets) of each view."""
        return [[(v.buffer, v.byte_index()) for v in views] for views in self.case.groups]

    def blocks_per_chunk(self, group) -> int:
        return self.layout.groups[group].blocks_per_chunk

    def choose(self, group, chunks) -> tuple[list[int], list[int]]:
        """Random distinct blocks for `chunks` chunks (as many as there are blocks for) and slots."""
        bpc = self.blocks_per_chunk(group)
        chunks = min(chunks, self.layout.groups[group].num_blocks // bpc, len(self.free_slots[group]))
        blocks = self.rng.permutation(self.layout.groups[group].num_blocks)[: chunks * bpc]
        return blocks.tolist(), self.rng.permutation(self.free_slots[group])[:chunks].tolist()

    def bytes_of(self, group, blocks) -> np.ndarray:
        return np.concatenate([self.memory[buffer][index[blocks]] for buffer, index in self.index[group]], axis=1)

    def store(self, group, blocks, slots, **options):
        content = self.bytes_of(group, blocks).reshape(len(slots), self.blocks_per_chunk(group), -1)
        self.slots.update({(group, slot): content[i] for i, slot in enumerate(slots)})
        return self.mover.store(np.array(blocks, np.int64), slots, group=group, **options)

    def load(self, group, slots, blocks, skip_blocks=0, **options):
        content = np.concatenate([self.slots[group, slot] for slot in slots])[skip_blocks:]
        start = 0
        for buffer, index in self.index[group]:
            where = index[blocks][skip_blocks:]
            self.memory[buffer][where] = content[:, start : start + where.shape[1]]
            start += where.shape[1]
        return self.mover.load(slots, np.array(blocks, np.int64), group=group, skip_blocks=skip_blocks, **options)

    def scramble(self) -> None:
        """New bytes everywhere on the device."""
        self.backend.synchronize()
        for i, data in enumerate(self.memory):
            self.memory[i] = self.random(data.size)
            self.backend.write(self.device[i], self.memory[i])

    def check(self) -> None:
        self.backend.synchronize()
        for i, expected in enumerate(self.memory):
            wrong = np.flatnonzero(self.backend.read(self.device[i]) != expected)
            assert wrong.size == 0, f"{self.case.name}: buffer {i}: {wrong.size} wrong bytes, first at {wrong[0]}"


@pytest.fixture(params=["dma", "kernel", "staged"])
def each_path(request, monkeypatch):
    """All worlds of a test move their bytes by one path, then by the next."""
    monkeypatch.setattr(World, "path", request.param)


def finish(transfer, bytes=None) -> None:
    result = transfer.wait(timeout_seconds=WAIT_SECONDS)
    assert result.ok, result.error
    assert transfer.done()
    assert bytes is None or result.bytes == bytes
