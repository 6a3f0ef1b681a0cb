"""From the device to a disk and back, with bytes at random: through host memory that holds an eighth of it."""

import numpy as np
import pytest
from backends import EVERYWHERE

import kvoffload as kv
from kvoffload import _C

BLOCKS, BLOCK_BYTES, HOST_KEYS = 128, 65536, 16
SECONDS = 60
KEYS = [f"key {i:012}".encode() for i in range(BLOCKS)]


class Rig:
    """Blocks at random on the device; content[i] is what was stored under the key i."""

    def __init__(self, backend, folder):
        self.backend = backend
        self.content = np.random.default_rng(3).integers(0, 256, (BLOCKS, BLOCK_BYTES), dtype=np.uint8)
        self.memory = backend.memory(self.content.reshape(-1).copy())
        tensor = backend.view(self.memory, 0, (BLOCKS, BLOCK_BYTES), (BLOCK_BYTES, 1), 1)
        layout = kv.KVLayout.from_tensors(tensor, tokens_per_block=16, blocks_per_chunk=1)
        slot_bytes = layout.groups[0].slot_bytes
        self.cache = kv.KVCache(
            layout, host=HOST_KEYS * slot_bytes, disk=folder, disk_size=2 * BLOCKS * slot_bytes, write_through=True
        )

    def store_all(self):
        for first in range(0, BLOCKS, HOST_KEYS // 2):
            ids = list(range(first, first + HOST_KEYS // 2))
            assert self.cache.store([KEYS[i] for i in ids], ids).wait(timeout_seconds=SECONDS).ok
            self.written(first + len(ids))

    def written(self, keys):
        for _ in range(SECONDS * 100):
            if self.cache.stats()["demoted_keys"] >= keys:
                return
            self.cache._wait_for_disk(0.01)
        pytest.fail(f"not demoted: {self.cache.stats()}")

    def fetch(self, ids):
        """Into other blocks, in one go: how many came back right."""
        places = [(7 * i + 3) % BLOCKS for i in ids]
        self.backend.write(self.memory, np.zeros(BLOCKS * BLOCK_BYTES, np.uint8))
        with self.cache.prefetch([KEYS[i] for i in ids]) as prefetch:
            found = prefetch.wait(timeout_seconds=SECONDS).host
            self.cache.load([KEYS[i] for i in ids[:found]], places[:found]).before()
        there = self.backend.read(self.memory).reshape(BLOCKS, BLOCK_BYTES)
        assert all((there[place] == self.content[i]).all() for place, i in zip(places[:found], ids, strict=False))
        return found


@pytest.mark.parametrize("backend", EVERYWHERE)
def test_all_comes_back_from_disk_and_after_a_restart(backend, tmp_path):
    backend = backend()
    for restarted in (False, True):
        rig = Rig(backend, tmp_path)
        with rig.cache:
            if not restarted:
                rig.store_all()
            order = np.random.default_rng(5).permutation(BLOCKS).tolist()
            for first in range(0, BLOCKS, 8):
                assert rig.fetch(order[first : first + 8]) == 8
            assert rig.cache.stats()["promoted_keys"] >= BLOCKS - HOST_KEYS


@pytest.mark.parametrize("backend", EVERYWHERE)
def test_damaged_records_are_misses(backend, tmp_path):
    rig = Rig(backend(), tmp_path)
    with rig.cache:
        rig.store_all()
        _C.fault_arm("record_payload", 0, 1)
        try:
            assert rig.fetch(list(range(8))) < 8
        finally:
            _C.fault_disarm_all()
        assert rig.fetch(list(range(16, 24))) == 8
