"""The process that is killed, on the real tier: a KVCache with a disk that stores, fetches and resets at random.

What it tells: `freeing` before the manifest has the free of a slot, `committed` after it has the commit, so that the
oracle knows what must be there; the lines come from whichever thread did it.
"""

import hashlib
import os
import random
import shutil
from collections import deque
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from harness import Tell

import kvoffload as kv
from kvoffload import _C

KEYS, HOST_SLOTS, BLOCKS = 96, 16, 40
BLOCK_BYTES = 8192 - 512
DISK_SIZE = "640KiB"  # of two directories: about half of the keys
SECONDS = 60.0
RealManifest = _C.Manifest


def key_bytes(key: int) -> bytes:
    return b"a key of a chunk" + key.to_bytes(8, "little")


def key_of(name: bytes) -> int:
    return int.from_bytes(name[-8:], "little")


def content(key: int, epoch: int) -> np.ndarray:
    """What a key means changes with the epoch: right bytes of an old one are wrong bytes."""
    return np.frombuffer(hashlib.shake_128(b"%d/%d" % (key, epoch)).digest(BLOCK_BYTES), np.uint8)


class ToldManifest:
    """A manifest that says what it is told. sync_seconds: between two syncs; compacted every few hundred records."""

    def __init__(
        self, tell: Tell, sync_seconds: float, directory: str, fingerprint: str, slots: Sequence[int], *,
        data_files: Sequence[str], most_bytes: int,
    ) -> None:  # fmt: skip
        self.path, self.data_files = Path(directory) / "manifest", data_files
        self._tell = tell  # of every commit: most_bytes would let it drop some
        self._real = RealManifest(
            directory, fingerprint, slots, data_files=data_files, sync_seconds=sync_seconds, compact_bytes=8 << 10
        )
        tell("opened", self._real.stats()["epoch"])

    def __getattr__(self, name):
        return getattr(self._real, name)

    def take_opening(self):
        opening = self._real.take_opening()
        epoch = self._real.stats()["epoch"]
        for group, key, slot, sequence in opening["chunks"]:
            self._tell("committed", epoch, group, slot, key_of(key), sequence)
        return opening

    def free(self, group, slots):
        for slot in slots:
            self._tell("freeing", group, slot)
        self._real.free(group, slots)

    def commit(self, epoch, group, keys, slots, sequences):
        stale = self._real.stats()["stale_commits"]
        self._real.commit(epoch, group, keys, slots, sequences)
        if off := self._real.stats()["off"]:
            raise RuntimeError(off)
        if self._real.stats()["stale_commits"] == stale:
            for key, slot, sequence in zip(keys, slots, sequences, strict=True):
                self._tell("committed", epoch, group, slot, key_of(key), sequence)

    def reset(self, timeout_seconds):
        self._tell("resetting")
        self._real.reset(timeout_seconds)
        self._tell("reset", self._real.stats()["epoch"])


class Rig:
    """A cache, its tensor (rows to store from, then rows to load to), and its manifest."""

    def __init__(self, root: Path, tell: Tell, io: str, sync_seconds: float) -> None:
        self.tell = tell
        _C.Manifest = lambda *given, **options: self._keep(ToldManifest(tell, sync_seconds, *given, **options))
        self.tensor = np.zeros((BLOCKS, BLOCK_BYTES), np.uint8)
        layout = kv.KVLayout.from_tensors(self.tensor, tokens_per_block=16, blocks_per_chunk=1)
        host = HOST_SLOTS * layout.groups[0].slot_bytes
        self.cache = kv.KVCache(
            layout,
            host,
            disk=[root / "a", root / "b"],
            disk_size=DISK_SIZE,
            disk_io=io,
            write_through=True,
            calibrate=False,
        )

    def _keep(self, manifest: ToldManifest) -> ToldManifest:
        self.manifest = manifest
        return manifest

    @property
    def epoch(self) -> int:
        return self.manifest.stats()["epoch"]

    @property
    def paths(self) -> list[Path]:
        """Of the slabs, and last of the manifest."""
        slabs = self.cache.stats()["mover"]["disk"]["paths"]
        if slabs != self.manifest.data_files:
            raise RuntimeError(f"the manifest syncs {self.manifest.data_files} and not {slabs}")
        return [*map(Path, slabs), self.manifest.path]

    def fetch(self, keys: list[int], rows: int) -> list[int]:
        """Those of the leading keys that came into host memory, whose bytes are compared."""
        names = [key_bytes(key) for key in keys]
        with self.cache.prefetch(names) as prefetch:
            found = prefetch.wait(SECONDS).host
            if found:
                self.tensor[rows : rows + found] = 0
                self.cache.load(names[:found], list(range(rows, rows + found))).wait(SECONDS)
        for row, key in enumerate(keys[:found], rows):
            if (self.tensor[row] != content(key, self.epoch)).any():
                self.tell("wrong", key)
        return keys[:found]


def work(root: Path, seed: int, io: str, snapshots: Path | None, tell: Tell) -> None:
    """Until it is killed. With `snapshots` nothing is put on the medium but by `flush`, which leaves a copy there."""
    chance = random.Random(seed)
    rig = Rig(root, tell, io, 60 if snapshots else 0.01)
    tell("ready", rig.epoch)
    under_way: deque = deque()
    row = 0
    while True:
        dice = chance.random()
        if dice < 0.003:
            rig.cache.reset()
            if snapshots:
                flush(rig, snapshots)
        elif dice < 0.3:
            rig.fetch(chance.sample(range(KEYS), chance.randrange(1, 4)), HOST_SLOTS)
        elif dice < 0.33 and snapshots:
            flush(rig, snapshots)
        else:
            keys = chance.sample(range(KEYS), chance.randrange(1, 5))
            while len(under_way) > HOST_SLOTS // 4 - 1:  # its rows are free again
                under_way.popleft().wait(SECONDS)
            rows = [(row + i) % HOST_SLOTS for i in range(len(keys))]
            row += len(keys)
            for key, at in zip(keys, rows, strict=True):
                rig.tensor[at] = content(key, rig.epoch)
                tell("stored", key)
            under_way.append(rig.cache.store([key_bytes(key) for key in keys], rows))


def flush(rig: Rig, snapshots: Path) -> None:
    """All that was committed becomes durable; then a copy, at least as new as the medium, replaces the one before."""
    rig.tell("flushing")
    rig.manifest.flush(SECONDS)
    fresh = snapshots.with_name("snapshot.new")
    take_snapshot(rig.paths, fresh)
    shutil.rmtree(snapshots.with_name("snapshot.old"), ignore_errors=True)
    os.rename(snapshots, snapshots.with_name("snapshot.old"))
    os.rename(fresh, snapshots)
    rig.tell("flushed")


def take_snapshot(paths: list[Path], folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for number, path in enumerate(paths):
        shutil.copyfile(path, folder / str(number))


def find(root: Path, io: str, snapshots: Path | None, tell: Tell) -> None:
    """What a successor finds: `found` is each key that came back from the disk."""
    rig = Rig(root, tell, io, 0.01)
    tell("ready", rig.epoch)
    for key in range(KEYS):
        if rig.cache.lookup([key_bytes(key)]).disk and rig.fetch([key], 0):
            tell("found", key)
    paths = rig.paths
    tell("files", *paths)
    rig.cache.close(SECONDS)
    if snapshots is not None:
        take_snapshot(paths, snapshots)
