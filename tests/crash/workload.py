"""The process that is killed: chunks are stored, demoted, forgotten and reset at random, and an oracle is told of each.

The data tier is a stand-in: one slab file a rank, a record a slot, written in pieces. The oracle is a pipe: a line says
what has happened (`committed`) or is about to (`freeing`, `resetting`), and outlives the process that wrote it.
"""

import hashlib
import os
import random
import struct
import time
from pathlib import Path

from harness import Tell

from kvoffload import _C

RANKS = 2
SLOTS = (48, 24)
RECORD_BYTES = 8192
TRAILER = struct.Struct("<qqqI")
PAYLOAD_BYTES = RECORD_BYTES - TRAILER.size
PENDING_MOST = 16  # chunks that wait for their demotion


def key_bytes(key: int) -> bytes:
    return b"a key of a chunk" + key.to_bytes(8, "little")


def key_of(name: bytes) -> int:
    return int.from_bytes(name[-8:], "little")


def content(key: int, epoch: int) -> bytes:
    """What a key means changes with the epoch: right bytes of an old one are wrong bytes."""
    return hashlib.shake_128(b"%d/%d" % (key, epoch)).digest(PAYLOAD_BYTES)


def record(key: int, sequence: int, epoch: int) -> bytes:
    payload = content(key, epoch)
    return payload + TRAILER.pack(key, sequence, epoch, _C.crc32c(payload))


def read_record(slab: int, offset: int) -> tuple[bytes, tuple[int, int, int]] | None:
    """(payload, (key, sequence, epoch)) of a record whose checksum is right."""
    data = os.pread(slab, RECORD_BYTES, offset)
    if len(data) < RECORD_BYTES:
        return None
    payload = data[:PAYLOAD_BYTES]
    key, sequence, epoch, crc = TRAILER.unpack(data[PAYLOAD_BYTES:])
    return (payload, (key, sequence, epoch)) if _C.crc32c(payload) == crc else None


def offset_of(group: int, slot: int) -> int:
    return (sum(SLOTS[:group]) + slot) * RECORD_BYTES


class Cache:
    """A namespace of a ledger and its ranks, their slabs, and the manifest."""

    def __init__(self, root: Path) -> None:
        leaves = ["ledger", *(f"rank{rank}" for rank in range(RANKS))]
        self.dirs = [_C.NamespaceDir(str(root), "crash-harness", 0, leaf, 10) for leaf in leaves]
        paths = [f"{directory.path}/slab" for directory in self.dirs[1:]]
        self.slabs = [os.open(path, os.O_RDWR | os.O_CREAT, 0o600) for path in paths]
        self.manifest = _C.Manifest(
            self.dirs[0].path, "8 KiB records", SLOTS, data_files=paths, sync_seconds=0.01, compact_bytes=8 << 10
        )
        self.opening = self.manifest.take_opening()
        self.epoch = self.manifest.stats()["epoch"]

    def close(self) -> None:
        self.manifest.close(30)
        for slab in self.slabs:
            os.close(slab)
        self.dirs.clear()


class Workload:
    def __init__(self, root: Path, seed: int, tell: Tell) -> None:
        self.random = random.Random(seed)
        self.tell = tell
        self.cache = Cache(root)
        self.sequence = self.cache.manifest.first_sequence
        self.held = {(group, slot): key_of(name) for group, name, slot, _ in self.cache.opening["chunks"]}
        self.pending: list[int] = []

    def run(self) -> None:
        self.tell("ready", self.cache.epoch)
        compactions = 0
        while True:
            while (stats := self.cache.manifest.stats())["undurable_records"] > 100:  # not faster than the disk
                time.sleep(0.001)
            if stats["compactions"] > compactions:
                compactions = stats["compactions"]
                self.tell("compacted")
            for _ in range(self.random.randrange(4)):
                self.store()
            dice = self.random.random()
            if len(self.pending) > PENDING_MOST or dice < 0.3:
                self.demote()
            elif dice < 0.33 and self.held:
                self.free([self.random.choice(list(self.held))])
            elif dice < 0.334:
                self.reset()

    def store(self) -> None:
        key = self.random.randrange(400)
        if key not in self.pending and key not in self.held.values():
            self.pending.append(key)
            self.tell("stored", key)

    def free(self, places: list[tuple[int, int]]) -> None:
        for place in places:
            if place in self.held:
                self.tell("freeing", self.held.pop(place))
        for group in range(len(SLOTS)):
            if slots := [slot for in_group, slot in places if in_group == group]:
                self.cache.manifest.free(group, slots)

    def demote(self) -> None:
        """Free before a slot is overwritten; commit when every rank has written."""
        group = self.random.randrange(len(SLOTS))
        keys, self.pending = self.pending[:8], self.pending[8:]
        slots = self.random.sample(range(SLOTS[group]), len(keys))
        self.free([(group, slot) for slot in slots])
        sequences = range(self.sequence, self.sequence + len(keys))
        self.sequence += len(keys)
        for slab in self.cache.slabs:
            for key, slot, sequence in zip(keys, slots, sequences, strict=True):
                data, offset = record(key, sequence, self.cache.epoch), offset_of(group, slot)
                for piece in range(0, RECORD_BYTES, 2048):
                    os.pwrite(slab, data[piece : piece + 2048], offset + piece)
        self.cache.manifest.commit(self.cache.epoch, group, list(map(key_bytes, keys)), slots, list(sequences))
        if off := self.cache.manifest.stats()["off"]:
            raise RuntimeError(off)
        for key, slot, sequence in zip(keys, slots, sequences, strict=True):
            self.held[group, slot] = key
            self.tell("committed", key, sequence)

    def reset(self) -> None:
        self.tell("resetting")
        self.cache.manifest.reset(30)
        self.cache.epoch = self.cache.manifest.stats()["epoch"]
        self.tell("reset", self.cache.epoch)
        self.held.clear()
        self.pending.clear()
