"""KV groups as the scheduler half sees them: tokens to chunks, block hashes to keys."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from kvoffload.errors import Unsupported
from kvoffload.hits import GroupKeys, first_needed_token
from kvoffload.vllm.support import layer_specs

if TYPE_CHECKING:
    from vllm.v1.kv_cache_interface import KVCacheConfig, KVCacheSpec

KeysAndBlocks = tuple[list[bytes], list[int]]
Chunks = list[KeysAndBlocks]  # of one request and group each


@dataclass(frozen=True, slots=True)
class ChunkGroup:
    """One KV group. A chunk's key is the hash of its last block, which covers all tokens before it.

    window_tokens: a sliding-window group needs so many before the next token; None: full attention needs all.
    unit_tokens: hits end at multiples of this. same_on_ranks: MLA, of which tensor-parallel ranks keep the same.

    >>> group = ChunkGroup(index=0, tokens_per_block=32, blocks_per_chunk=2, tokens_per_hash=32)
    >>> group.keys([b"a", b"b", b"c", b"d", b"e"], 0, 2)
    [b'b', b'd']
    """

    index: int
    tokens_per_block: int
    blocks_per_chunk: int
    tokens_per_hash: int
    window_tokens: int | None = None
    unit_tokens: int = 1
    same_on_ranks: bool = False
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
        return GroupKeys(self.index, self.keys(block_hashes, first, end), self.tokens_per_chunk, self.window_tokens)

    def first_needed(self, start_tokens: int, end_tokens: int) -> int:
        """The first chunk that a hit from start_tokens to end_tokens needs, or that running on from there does."""
        return first_needed_token(start_tokens, end_tokens, self.window_tokens) // self.tokens_per_chunk

    def useful(self, chunk: int) -> bool:
        """Whether a hit can need the chunk: the next place where one can end must have it in its window."""
        end = (chunk + 1) * self.tokens_per_chunk
        return self.window_tokens is None or -end % self.unit_tokens < self.window_tokens

    def stored_bytes(self, slot_bytes: int) -> float:
        """Of each token, where all of a long prompt is stored."""
        useful = sum(map(self.useful, range(max(self.unit_tokens // self.tokens_per_chunk, 1))))
        return slot_bytes * useful / max(self.unit_tokens, self.tokens_per_chunk)

    def complete(self, block_hashes: Sequence[bytes], table: Sequence[int], first: int, end: int) -> KeysAndBlocks:
        """Of the chunks first .. end-1 those to be stored."""
        per_chunk = self.blocks_per_chunk
        keys, blocks = self.keys(block_hashes, first, end), list(table[first * per_chunk : end * per_chunk])
        if self.window_tokens is None:
            return keys, blocks
        # 0 is vLLM's null block, which stands for what is behind the window.
        useful = [i for i in range(end - first) if blocks[i] and self.useful(first + i)]
        return [keys[i] for i in useful], [blocks[i] for i in useful]


def window_tokens_of(spec: KVCacheSpec) -> int | None:
    """How many tokens before the next one the layers of a sliding-window group need; None: all.

    Blocks behind the window are freed one by one while the request runs, so that chunks of such groups are one block.
    """
    windows = [
        layer.sliding_window - 1 + getattr(layer, "extra_retained_tokens", 0)
        for layer in layer_specs(spec)
        if type(layer).__name__ == "SlidingWindowSpec"
    ]
    return max(windows, default=None)


def make_groups(
    kv_cache_config: KVCacheConfig, blocks_per_chunk: Sequence[int], tokens_per_hash: int
) -> tuple[ChunkGroup, ...]:
    """Raises Unsupported when a chunk does not end where a hash does."""
    groups = []
    for index, (group, blocks) in enumerate(zip(kv_cache_config.kv_cache_groups, blocks_per_chunk, strict=True)):
        spec = group.kv_cache_spec
        mla = any("MLA" in type(layer).__name__ for layer in layer_specs(spec))
        made = ChunkGroup(index, spec.block_size, blocks, tokens_per_hash, window_tokens_of(spec), same_on_ranks=mla)
        if made.tokens_per_chunk % tokens_per_hash:
            raise Unsupported(
                f"KV cache group {index}: a chunk of {made.tokens_per_chunk} tokens does not end on a multiple of the "
                f"{tokens_per_hash} tokens that vLLM hashes together; change the option 'blocks_per_chunk'"
            )
        groups.append(made)
    unit_tokens = hit_unit_tokens(groups)
    return tuple(replace(group, unit_tokens=unit_tokens) for group in groups)


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
