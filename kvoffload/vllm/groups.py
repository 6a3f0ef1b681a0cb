"""KV groups as the scheduler half sees them: tokens to chunks, block hashes to keys."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kvoffload.errors import Unsupported
from kvoffload.hits import GroupKeys

if TYPE_CHECKING:
    from vllm.v1.kv_cache_interface import KVCacheConfig

Chunks = list[tuple[list[bytes], list[int]]]  # (keys, blocks) of one request and group each


@dataclass(frozen=True, slots=True)
class ChunkGroup:
    """One KV group. A chunk's key is the hash of its last block, which covers all tokens before it.

    >>> group = ChunkGroup(index=0, tokens_per_block=32, blocks_per_chunk=2, tokens_per_hash=32)
    >>> group.keys([b"a", b"b", b"c", b"d", b"e"], 0, 2)
    [b'b', b'd']
    """

    index: int
    tokens_per_block: int
    blocks_per_chunk: int
    tokens_per_hash: int
    tokens_per_chunk: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "tokens_per_chunk", self.tokens_per_block * self.blocks_per_chunk)

    def keys(self, block_hashes: Sequence[bytes], first: int, end: int) -> list[bytes]:
        """Keys of chunks first .. end-1."""
        hashes = self.tokens_per_chunk // self.tokens_per_hash
        return list(block_hashes[(first + 1) * hashes - 1 : end * hashes : hashes])

    def keys_between(self, block_hashes: Sequence[bytes], start_tokens: int, end_tokens: int) -> GroupKeys:
        """Keys from the chunk that start_tokens lies in to the one that ends with end_tokens."""
        first, end = start_tokens // self.tokens_per_chunk, end_tokens // self.tokens_per_chunk
        return GroupKeys(self.index, self.keys(block_hashes, first, end), self.tokens_per_chunk)


def make_groups(
    kv_cache_config: KVCacheConfig, blocks_per_chunk: Sequence[int], tokens_per_hash: int
) -> tuple[ChunkGroup, ...]:
    """Raises Unsupported when a chunk does not end where a hash does."""
    groups = []
    for index, (group, blocks) in enumerate(zip(kv_cache_config.kv_cache_groups, blocks_per_chunk, strict=True)):
        made = ChunkGroup(index, group.kv_cache_spec.block_size, blocks, tokens_per_hash)
        if made.tokens_per_chunk % tokens_per_hash:
            raise Unsupported(
                f"KV cache group {index}: a chunk of {made.tokens_per_chunk} tokens does not end on a multiple of the "
                f"{tokens_per_hash} tokens that vLLM hashes together; change the option 'blocks_per_chunk'"
            )
        groups.append(made)
    return tuple(groups)


def hit_unit_tokens(groups: Sequence[ChunkGroup]) -> int:
    """Hits end at multiples of this: chunk ends of all groups."""
    return math.lcm(*(group.tokens_per_chunk for group in groups))


def batches(chunks: Chunks) -> Chunks:
    """Joins what several requests have to store. No block comes twice in one: a block that requests share may be part
    of different chunks of theirs. A beginning that they share comes once.
    """
    joined: Chunks = []
    seen_keys: set[bytes] = set()
    seen_blocks: set[int] = set()
    for keys, blocks in chunks:
        known = 0
        while known < len(keys) and keys[known] in seen_keys:
            known += 1
        if known == len(keys):
            continue
        if known:
            blocks, keys = blocks[known * len(blocks) // len(keys) :], keys[known:]
        if not joined or not seen_blocks.isdisjoint(blocks):
            joined.append(([], []))
            seen_blocks.clear()
        joined[-1][0].extend(keys)
        joined[-1][1].extend(blocks)
        seen_keys.update(keys)
        seen_blocks.update(blocks)
    return joined
