"""What a mover says of itself, checked: by itself, against what it said before, and against the other ranks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields

from kvoffload.errors import InvalidInput
from kvoffload.messages import Hello

# What may differ between ranks, and what one rank may change later.
_PER_RANK = frozenset(
    {"rank", "ready_bytes", "pinned", "device", "failure", "ring_bytes", "paths", "slab_identity"}
    | {"disk_read_bytes_per_second"}
)


def check_hello(hello: Hello, known: Mapping[int, Hello], ranks: int) -> None:
    """Raises InvalidInput that names the rank and what is wrong. known: what each rank said last."""
    before = known.get(hello.rank)
    if not 0 <= hello.rank < ranks:
        raise InvalidInput(f"Hello of rank {hello.rank}: this ledger has ranks 0 to {ranks - 1}, see `ranks`")
    if not hello.slot_bytes or len(hello.slot_bytes) != len(hello.blocks_per_chunk):
        raise InvalidInput(
            f"Hello of rank {hello.rank}: slot_bytes {hello.slot_bytes} and blocks_per_chunk "
            f"{hello.blocks_per_chunk} must have one entry per group, and there is at least one group"
        )
    if min(hello.slot_bytes) < 1 or min(hello.blocks_per_chunk) < 1:
        raise InvalidInput(
            f"Hello of rank {hello.rank}: slot_bytes {hello.slot_bytes} and blocks_per_chunk "
            f"{hello.blocks_per_chunk} must be above 0"
        )
    if not 0 <= hello.ready_bytes <= hello.host_bytes:
        raise InvalidInput(
            f"Hello of rank {hello.rank}: ready_bytes = {hello.ready_bytes} is outside 0 to host_bytes = "
            f"{hello.host_bytes}"
        )
    if before and hello.ready_bytes < before.ready_bytes and not hello.failure:
        raise InvalidInput(
            f"Hello of rank {hello.rank}: ready_bytes went from {before.ready_bytes} to {hello.ready_bytes}; slots "
            "once ready cannot be taken back: make a new ledger for a new mover"
        )
    for other in known.values():
        for name in (field.name for field in fields(Hello) if field.name not in _PER_RANK):
            given, agreed = getattr(hello, name), getattr(other, name)
            if given != agreed:
                raise InvalidInput(
                    f"Hello of rank {hello.rank}: {name} = {given}, but rank {other.rank} said {agreed}; all ranks "
                    "need the same KV layout and the same host size"
                )
