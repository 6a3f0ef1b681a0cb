"""How much of what was asked fits: rows of a benchmark, and the memory they need."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from kvoffload import _C
from kvoffload.cli.models import Shape
from kvoffload.config import format_size
from kvoffload.errors import MemoryLimit

SLOT_BYTES = 2 << 20  # payload of a host slot; larger blocks have a slot each
LEAST_CUDA_ARENA_BYTES = 1 << 30  # so that small rows find their slots scattered too, and paths can be calibrated


@dataclass(frozen=True)
class Row:
    """Blocks to move at once. `chunks` slots each way, of `blocks_per_chunk` blocks; `asked` is the count wanted."""

    shape: Shape
    asked: int
    blocks_per_chunk: int
    chunks: int

    @property
    def blocks(self) -> int:
        """Blocks moved one way: whole slots, so a few more than asked, or fewer where memory is short."""
        return self.chunks * self.blocks_per_chunk

    @property
    def bytes(self) -> int:
        """Bytes moved one way."""
        return self.blocks * self.shape.block_bytes

    @property
    def num_blocks(self) -> int:
        """Blocks on the device: one half is stored, the other loaded into."""
        return 2 * self.blocks

    @property
    def slot_bytes(self) -> int:
        """Bytes of a host slot: payload, trailer and padding."""
        payload = self.blocks_per_chunk * self.shape.block_bytes + _C.TRAILER_BYTES
        return -(-payload // _C.SLOT_ALIGN) * _C.SLOT_ALIGN


def make_row(shape: Shape, count: int) -> Row:
    """`count` blocks in slots of 2 MiB, rounded up to whole slots.

    >>> row = make_row(Shape("16 KiB", 16384), 1000)
    >>> row.blocks, row.blocks_per_chunk
    (1024, 128)
    """
    per_chunk = max(1, min(count, SLOT_BYTES // shape.block_bytes))
    return Row(shape, count, per_chunk, -(-count // per_chunk))


def fit(rows: Sequence[Row], host_bytes: int, device_bytes: int, least_bytes: int = 0) -> tuple[list[Row], int]:
    """The rows, with fewer chunks where memory is short, and the arena's size: what they need, at least `least_bytes`.

    host_bytes, device_bytes: the most that may be taken on either side; rows share both, one after the other.
    Raises MemoryLimit where not even one slot each way fits.
    """
    slots = [row.slot_bytes for row in rows]
    arena = min(host_bytes, max(least_bytes, *(2 * row.chunks * row.slot_bytes for row in rows)))
    while arena < host_bytes and any(
        len(s) < 2 * r.chunks for r, s in zip(rows, usable_slots(arena, slots), strict=True)
    ):
        arena = min(host_bytes, arena + arena // 8 + max(slots))
    # A mover wants room for one chunk of each group.
    arena = max(arena, len(rows) * max(slots))
    if arena > host_bytes:
        raise MemoryLimit(
            f"host memory {format_size(host_bytes)} is too little for these sizes: at least {format_size(arena)} are "
            "needed; raise --host-memory, or leave out large sizes"
        )
    fitted = []
    for row, places in zip(rows, usable_slots(arena, slots), strict=True):
        chunk_bytes = row.blocks_per_chunk * row.shape.block_bytes
        chunks = min(row.chunks, len(places) // 2, device_bytes // (2 * chunk_bytes))
        if chunks < 1:
            raise MemoryLimit(
                f"{row.shape.name}: two slots of {format_size(row.slot_bytes)} do not fit into {format_size(arena)} of "
                f"host and {format_size(device_bytes)} of device memory; raise --host-memory or leave this size out"
            )
        fitted.append(replace(row, chunks=chunks))
    return fitted, arena


def usable_slots(arena_bytes: int, slot_bytes: Sequence[int]) -> list[list[int]]:
    """Per group the slot numbers that lie in an arena. Groups share it: only one of them may be in use at a time."""
    plan = _C.plan_extents(arena_bytes, list(slot_bytes))
    return [
        [
            extent * plan.slots_per_extent(group) + slot
            for extent in range(arena_bytes // plan.extent_bytes + 1)
            for slot in range(plan.usable_slots(group, extent, arena_bytes))
        ]
        for group in range(len(slot_bytes))
    ]
