"""Plays a request trace against a KVCache whose device is plain memory, and checks every byte that comes back."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kvoffload.cache import KVCache
from kvoffload.layout import KVLayout
from kvoffload.traces import Request

WAIT_SECONDS = 60.0
STALE = 0xA5A5A5A5A5A5A5A5  # what blocks hold before a load: a load that does nothing must not pass
Words = npt.NDArray[np.uint64]


@dataclass(frozen=True)
class Geometry:
    """One block's KV in a model: K and V of a layer fused in one page, one tensor a layer."""

    layers: int
    kv_heads: int
    head_dim: int
    item_bytes: int
    tokens_per_block: int

    @property
    def page_shape(self) -> tuple[int, ...]:
        return 2, self.tokens_per_block, self.kv_heads, self.head_dim

    @property
    def page_bytes(self) -> int:
        return int(np.prod(self.page_shape)) * self.item_bytes


LLAMA_3_1_8B = Geometry(layers=32, kv_heads=8, head_dim=128, item_bytes=2, tokens_per_block=16)


class Device:
    """KV tensors of `num_blocks` blocks in plain memory, handed out in a ring, and the content that belongs in them.

    A block's bytes are one fixed random pattern (so that no two places in a block look alike) changed by its key (so
    that no two keys look alike): any misplaced, stale or foreign byte shows.
    """

    def __init__(self, geometry: Geometry, num_blocks: int, seed: int = 1) -> None:
        words = geometry.page_bytes // 8
        self.pool: Words = np.full((geometry.layers, num_blocks, words), STALE, dtype=np.uint64)
        self._pattern: Words = np.random.default_rng(seed).integers(
            0, 2**64, (geometry.layers, words), dtype=np.uint64, endpoint=False
        )
        self._expected = np.empty_like(self._pattern)
        self._next = 0
        shape = (num_blocks, *geometry.page_shape)
        self.layout = KVLayout.from_tensors(
            {f"layers.{i}": layer.view(f"u{geometry.item_bytes}").reshape(shape) for i, layer in enumerate(self.pool)},
            tokens_per_block=geometry.tokens_per_block,
            blocks_per_chunk=1,
        )

    def take(self, count: int) -> list[int]:
        """The next `count` blocks of the ring, filled with stale bytes."""
        num_blocks = self.pool.shape[1]
        if count > num_blocks:
            raise ValueError(f"a request of {count} blocks does not fit the device's {num_blocks}")
        blocks = [(self._next + i) % num_blocks for i in range(count)]
        self._next += count
        self.pool[:, blocks] = STALE
        return blocks

    def compute(self, key: bytes, block: int) -> None:
        """Stands in for the model: writes the KV that belongs to `key`."""
        np.bitwise_xor(self._pattern, _word(key), out=self.pool[:, block])

    def wrong_bytes(self, key: bytes, block: int) -> int:
        """How many of the block's bytes are not what `key` says."""
        np.bitwise_xor(self._pattern, _word(key), out=self._expected)
        found = self.pool[:, block]
        if np.array_equal(found, self._expected):
            return 0
        return int(np.count_nonzero(np.ascontiguousarray(found).view(np.uint8) != self._expected.view(np.uint8)))


@dataclass
class Totals:
    """What a replay did; `bytes` of payload, `seconds` from the call to the end of the copies."""

    requests: int = 0
    tokens: int = 0
    hit_tokens: int = 0
    blocks: int = 0
    hit_blocks: int = 0
    disk_hit_blocks: int = 0  # of the hits
    stored_bytes: int = 0
    store_seconds: float = 0.0
    loaded_bytes: int = 0
    load_seconds: float = 0.0
    verified_bytes: int = 0
    wrong_bytes: int = 0
    not_read_back: int = 0


class Replay:
    """Plays requests: load what is there, compute and store the rest, then load that back too; verify all of it."""

    def __init__(self, device: Device, cache: KVCache, trace_block_tokens: int) -> None:
        self.device = device
        self.cache = cache
        self.trace_block_tokens = trace_block_tokens
        self.totals = Totals()

    def play(self, request: Request) -> None:
        totals, device = self.totals, self.device
        keys = [content_key(block_id) for block_id in request.block_ids]
        in_host = self.cache.lookup(keys).host
        with self.cache.prefetch(keys) as prefetch:
            hits = prefetch.wait(WAIT_SECONDS).host
            self._load(keys[:hits])
            missing = keys[hits:]
            blocks = device.take(len(missing))
            for key, block in zip(missing, blocks, strict=True):
                device.compute(key, block)
            self._store(missing, blocks)
            ready = self.cache.lookup(keys).host
            self._load(keys[hits:ready])
        totals.requests += 1
        totals.tokens += request.input_tokens
        totals.hit_tokens += min(hits * self.trace_block_tokens, request.input_tokens)
        totals.blocks += len(keys)
        totals.hit_blocks += hits
        totals.disk_hit_blocks += max(hits - in_host, 0)
        totals.not_read_back += len(keys) - max(ready, hits)

    def play_all(self, requests: Iterable[Request]) -> Totals:
        for request in requests:
            self.play(request)
        return self.totals

    def _store(self, keys: Sequence[bytes], blocks: list[int]) -> None:
        started = time.perf_counter()
        result = self.cache.store(keys, blocks).wait(WAIT_SECONDS)
        self.totals.store_seconds += time.perf_counter() - started
        self.totals.stored_bytes += result.bytes

    def _load(self, keys: Sequence[bytes]) -> None:
        if not keys:
            return
        blocks = self.device.take(len(keys))
        started = time.perf_counter()
        transfer = self.cache.load(keys, blocks)
        transfer.before(timeout_seconds=WAIT_SECONDS)
        self.totals.load_seconds += time.perf_counter() - started
        self.totals.loaded_bytes += transfer.wait(WAIT_SECONDS).bytes
        for key, block in zip(keys, blocks, strict=True):
            self.totals.wrong_bytes += self.device.wrong_bytes(key, block)
        self.totals.verified_bytes += len(keys) * self.device.layout.groups[0].block_bytes


def content_key(block_id: int) -> bytes:
    """The cache key of a trace block. The id is a chained hash in the trace, so it names the whole prefix."""
    return hashlib.sha256(b"mooncake conversation block %d" % block_id).digest()


def _word(key: bytes) -> np.uint64:
    return np.uint64(int.from_bytes(key[:8], "little"))
