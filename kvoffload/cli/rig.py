"""What benchmarks measure on: device memory full of random data, a mover over it, and every way to move blocks.

All rows share one buffer on the device and one arena (each is a KV group of one layout), so that paths are calibrated
once and memory is pinned once. Use one row after the other.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from kvoffload import _C
from kvoffload.cli.device_memory import Target
from kvoffload.cli.sizing import Row, usable_slots
from kvoffload.errors import KVOffloadError
from kvoffload.layout import KVLayout, RawTensor
from kvoffload.mover import Mover
from kvoffload.transfer import Transfer, TransferResult

PATHS = ("auto", "host", "dma", "kernel", "staged")
RAW_PATHS = {"memcpy-loop": "loop", "memcpy-batch": "batch"}  # plain copies, one a page, for comparison
WAIT_SECONDS = 120.0
VERIFY_BYTES = 256 << 20  # checked per path and direction; larger transfers by a random part of their slots

Directions = tuple[bool, ...]
DIRECTIONS: dict[str, Directions] = {"h2d": (False,), "d2h": (True,), "both": (True, False)}


@dataclass(frozen=True)
class Ids:
    """Which blocks and slots a row's transfers use: `store` and `load` have their own, at random places."""

    blocks: dict[bool, npt.NDArray[np.int64]]  # store? -> (chunks * blocks_per_chunk,)
    slots: dict[bool, npt.NDArray[np.int64]]


@dataclass(frozen=True)
class Sample:
    """One run. seconds: from the call until the last byte is seen; results: of each direction, none for raw copies."""

    seconds: float
    results: tuple[TransferResult, ...] = ()


class Rig:
    """A mover over `rows`, one KV group a row, and random data on both sides. Close it, or use it in `with`.

    memory: of the target, at least the bytes of the largest row, both ways. arena_bytes: from `fit`.
    load_share, store_share: how much of a row moves in each direction when both run at once.
    """

    def __init__(
        self, target: Target, memory: _C.DeviceMemory, rows: Sequence[Row], arena_bytes: int,
        *, load_share: float = 1.0, store_share: float = 1.0, seed: int = 0,
    ) -> None:  # fmt: skip
        self.target, self.rows, self._memory = target, list(rows), memory
        self.shares = {True: store_share, False: load_share}
        self._rng = np.random.default_rng(seed)
        self._noise = self._rng.integers(0, 256, (4 << 20) + max(row.slot_bytes for row in rows), np.uint8)
        layout = _layout(target.name, memory.address, rows)
        self.mover = Mover(layout, host=arena_bytes, background=False)
        places = usable_slots(arena_bytes, [row.slot_bytes for row in rows])
        self._ids = [self._choose(row, slots) for row, slots in zip(rows, places, strict=True)]

    @property
    def paths(self) -> list[str]:
        """All that may be measured here: auto, the mover's paths and plain copies."""
        return ["auto", *self.mover._engine.paths, *RAW_PATHS]

    @property
    def ring_bytes(self) -> int:
        """What the staged path's ring takes of the device's memory."""
        return self.mover.hello().ring_bytes

    def prepare(self, index: int) -> None:
        """Random bytes into all slots and, by a load, into all blocks of a row. Call it before the row is measured."""
        row, ids = self.rows[index], self._ids[index]
        slots = np.concatenate([ids.slots[True], ids.slots[False]])
        self._randomize(index, slots)
        blocks = self._rng.permutation(row.num_blocks)
        _checked(self.mover.load(slots, blocks, group=index, stream=self.target.stream).wait(WAIT_SECONDS), row, "auto")

    def ids(self, index: int, store: bool, share: float = 1.0) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """(blocks, slots) of the first `share` of a row's chunks, at least one."""
        row, ids = self.rows[index], self._ids[index]
        chunks = max(1, round(share * row.chunks))
        return ids.blocks[store][: chunks * row.blocks_per_chunk], ids.slots[store][:chunks]

    def moved_bytes(self, index: int, direction: str) -> dict[bool, int]:
        """store? -> bytes that a run in this direction moves."""
        block_bytes = self.rows[index].shape.block_bytes
        return {s: len(self.ids(index, s, self._share(s, direction))[0]) * block_bytes for s in DIRECTIONS[direction]}

    def submit(self, index: int, store: bool, path: str, *, share: float = 1.0, stream: Any = None) -> Transfer:
        """One transfer of a row by a path of the mover's; returns at once."""
        blocks, slots = self.ids(index, store, share)
        chosen = None if path == "host" else path
        stream = self.target.stream if stream is None else stream
        if store:
            return self.mover.store(blocks, slots, group=index, stream=stream, path=chosen)
        return self.mover.load(slots, blocks, group=index, stream=stream, path=chosen)

    def run(self, index: int, direction: str, path: str) -> Sample:
        """Moves a row and waits until the last byte is there: seconds from the call on."""
        ways = DIRECTIONS[direction]
        if path in RAW_PATHS:
            return Sample(self._run_raw(index, direction, RAW_PATHS[path]))
        started = time.perf_counter()
        transfers = [self.submit(index, store, path, share=self._share(store, direction)) for store in ways]
        results = [transfer.wait(WAIT_SECONDS) for transfer in transfers]
        seconds = time.perf_counter() - started
        return Sample(seconds, tuple(_checked(result, self.rows[index], path) for result in results))

    def run_gated(self, index: int, direction: str, path: str, hold_seconds: float) -> Sample:
        """The same, held back until everything is enqueued: seconds on the device, of the slower direction."""
        stream = self.target.hold(hold_seconds)
        ways = DIRECTIONS[direction]
        transfers = [self.submit(index, s, path, share=self._share(s, direction), stream=stream) for s in ways]
        results = tuple(_checked(t.wait(WAIT_SECONDS), self.rows[index], path) for t in transfers)
        return Sample(max(result.seconds for result in results), results)

    def verify(self, index: int, store: bool, path: str) -> int:
        """Moves a row once and compares both sides byte by byte; the number of bytes compared.

        The host's bytes are changed before, so that what an earlier run left does not pass. Device pages are read by
        plain copies, and where each must lie is worked out here, not by the engine. Raises KVOffloadError.
        """
        row, ids = self.rows[index], self._ids[index]
        shape, per_chunk = row.shape, row.blocks_per_chunk
        most = max(1, VERIFY_BYTES // (per_chunk * shape.block_bytes))
        chunks = np.sort(self._rng.permutation(row.chunks)[:most])
        slots = ids.slots[store][chunks]
        self._randomize(index, slots)
        self.run(index, "d2h" if store else "h2d", path)
        blocks = ids.blocks[store].reshape(row.chunks, per_chunk)[chunks]
        tensors = np.arange(shape.tensors)[None, :, None] * (row.num_blocks * shape.page_bytes)
        addresses = self._memory.address + tensors + blocks[:, None, :] * shape.page_bytes
        on_device = self.target.read(addresses.reshape(-1), shape.page_bytes)
        in_slots = np.stack([self._payload(index, slot) for slot in slots]).reshape(on_device.shape)
        if wrong := int(np.count_nonzero((on_device != in_slots).any(axis=1))):
            raise KVOffloadError(
                f"WRONG BYTES: {wrong} of {len(on_device)} pages, {path} {'store' if store else 'load'} of {shape.name}"
            )
        return on_device.nbytes

    def close(self) -> None:
        self.mover.close()

    def __enter__(self) -> Rig:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def _share(self, store: bool, direction: str) -> float:
        return self.shares[store] if direction == "both" else 1.0

    def _choose(self, row: Row, places: list[int]) -> Ids:
        blocks = self._rng.permutation(row.num_blocks)
        slots = self._rng.permutation(np.array(places, np.int64))[: 2 * row.chunks]
        return Ids(
            {True: blocks[: row.blocks], False: blocks[row.blocks :]},
            {True: slots[: row.chunks], False: slots[row.chunks :]},
        )

    def _payload(self, index: int, slot: int) -> npt.NDArray[np.uint8]:
        row = self.rows[index]
        return np.frombuffer(
            self.mover.slot_view(index, int(slot)), np.uint8, row.blocks_per_chunk * row.shape.block_bytes
        )

    def _randomize(self, index: int, slots: npt.NDArray[np.int64]) -> None:
        """Each slot gets a piece of the noise from a random place: quick, and no two slots or pages look alike."""
        for slot in slots:
            payload = self._payload(index, slot)
            start = int(self._rng.integers(len(self._noise) - len(payload)))
            payload[:] = self._noise[start : start + len(payload)]

    def _run_raw(self, index: int, direction: str, how: str) -> float:
        ways = DIRECTIONS[direction]
        copies = {store: self._raw_copies(index, store, self._share(store, direction)) for store in ways}
        # Two threads cannot start at one moment: the median of three runs is beside the other way's.
        repeats = 1 if len(ways) == 1 else 3
        with ThreadPoolExecutor(len(ways)) as threads:
            runs = [threads.submit(_C.raw_copies, self.target.device, s, copies[s], how, repeats) for s in ways]
            return max(statistics.median(run.result()) for run in runs)

    def _raw_copies(self, index: int, store: bool, share: float) -> list[tuple[int, int, int]]:
        """(destination, source, bytes) of each page, as an engine that loops over pages would copy them."""
        row, shape = self.rows[index], self.rows[index].shape
        blocks, slots = self.ids(index, store, share)
        per_chunk, page = row.blocks_per_chunk, shape.page_bytes
        copies = []
        for chunk, slot in enumerate(slots):
            host = self._payload(index, slot).ctypes.data
            for tensor in range(shape.tensors):
                first = self._memory.address + tensor * row.num_blocks * page
                for j, block in enumerate(blocks[chunk * per_chunk : (chunk + 1) * per_chunk]):
                    ends = host + (tensor * per_chunk + j) * page, first + int(block) * page
                    copies.append((*(ends if store else ends[::-1]), page))
        return copies


def _layout(device: str, address: int, rows: Sequence[Row]) -> KVLayout:
    tensors: list[RawTensor] = []
    groups: list[list[int]] = []
    for row in rows:
        page, count = row.shape.page_bytes, row.num_blocks
        groups.append(list(range(len(tensors), len(tensors) + row.shape.tensors)))
        tensors += [
            RawTensor(address + tensor * count * page, (count, page), (page, 1), 1, device)
            for tensor in range(row.shape.tensors)
        ]
    chunks = [row.blocks_per_chunk for row in rows]
    return KVLayout.from_tensors(tensors, tokens_per_block=16, groups=groups, blocks_per_chunk=chunks)


def _checked(result: TransferResult, row: Row, path: str) -> TransferResult:
    if not result.ok:
        raise KVOffloadError(f"{row.shape.name} by {path}: the transfer failed: {result.error}")
    return result
