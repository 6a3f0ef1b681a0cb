"""KVCache with a disk: demoted, brought back, known after a restart or a kill; every byte compared."""

import gc
import os
import signal
import subprocess
import sys
import threading

import numpy as np
import pytest

import kvoffload as kv
from kvoffload import _C

BLOCKS, BLOCK_BYTES, HOST_KEYS = 64, 8192 - 512, 16
KEYS = [f"key {i:012}".encode() for i in range(BLOCKS)]


@pytest.fixture(autouse=True)
def _no_faults_left():
    yield
    _C.fault_disarm_all()


class Rig:
    """A cache over one tensor of which block i is filled with i; host memory for 16 of its 64 blocks."""

    def __init__(self, folder, **options):
        self.tensor = np.zeros((BLOCKS, BLOCK_BYTES), np.uint8)
        layout = kv.KVLayout.from_tensors(self.tensor, tokens_per_block=16, blocks_per_chunk=1)
        slot_bytes = layout.groups[0].slot_bytes
        given = {"host": HOST_KEYS * slot_bytes, "disk": folder, "disk_size": "2MiB", "write_through": True, **options}
        self.cache = kv.KVCache(layout, **given)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.cache.close()

    def store(self, ids):
        for i in ids:
            self.tensor[i] = i
        assert self.cache.store([KEYS[i] for i in ids], ids).wait(timeout_seconds=30).ok

    def written(self, keys):
        """Until so many keys were demoted."""
        for _ in range(1000):
            if self.cache.stats()["demoted_keys"] >= keys:
                return
            threading.Event().wait(0.01)
        pytest.fail(f"not demoted: {self.cache.stats()}")

    def store_all(self, ids):
        """In steps that host memory has room for, each on disk before the next."""
        ids = list(ids)
        for at in range(0, len(ids), HOST_KEYS // 2):
            before = self.cache.stats()["demoted_keys"]
            step = ids[at : at + HOST_KEYS // 2]
            self.store(step)
            self.written(before + len(step))

    def fetch(self, ids) -> int:
        """How many of the leading ones came back, half of host memory at a time; their bytes are right."""
        found, ids = 0, list(ids)
        while found < len(ids):
            some = ids[found : found + HOST_KEYS // 2]
            there = self._fetch([KEYS[i] for i in some])
            wrong = [i for at, i in enumerate(some[:there]) if (self.tensor[at] != i).any()]
            assert wrong == []
            found += there
            if there < len(some):
                break
        return found

    def _fetch(self, keys) -> int:
        with self.cache.prefetch(keys) as prefetch:
            found = prefetch.wait(timeout_seconds=30).host
            self.tensor[:] = 255
            if found:
                self.cache.load(keys[:found], list(range(found))).before()
        return found


def test_far_more_than_host_memory_holds_comes_back(tmp_path):
    with Rig(tmp_path) as rig:
        rig.store_all(range(BLOCKS))
        assert rig.cache.lookup(KEYS) == kv.Hit(host=0, disk=BLOCKS)
        for first in range(0, BLOCKS, 8):
            assert rig.fetch(list(range(first, first + 8))) == 8
        stats = rig.cache.stats()
        assert stats["demoted_keys"] == BLOCKS and stats["promoted_keys"] >= BLOCKS - HOST_KEYS
        assert sum(os.stat(path).st_blocks * 512 for path in rig.cache.stats()["mover"]["disk"]["paths"]) <= 2 << 20


def test_what_was_prefetched_stays_however_late_it_is_asked_for(tmp_path):
    with Rig(tmp_path) as rig:
        rig.store_all(range(BLOCKS))
        first = rig.cache.prefetch(KEYS[:8])
        for at in range(8, BLOCKS, 8):  # far more than host memory has room for
            rig.cache.prefetch(KEYS[at : at + 8]).wait(timeout_seconds=30)
        assert first.wait(timeout_seconds=30).host == 8
        stats = rig.cache.stats()
        assert stats["lookup_keys"] == stats["hit_keys"] == stats["disk_hit_keys"] == 0  # nobody looked anything up
        rig.cache.load(KEYS[:8], list(range(8))).before()
        assert all((rig.tensor[i] == i).all() for i in range(8))
        first.release()
        late = rig.cache.prefetch(KEYS[8:16])
        late.release()  # before it is there: nothing stays held
        late.wait(timeout_seconds=30)
        del first, late
        assert rig.cache.stats()["holds"] == 0


def test_a_restart_knows_what_was_written(tmp_path):
    with Rig(tmp_path) as rig:
        rig.store_all(range(40))
    with Rig(tmp_path) as rig:
        assert rig.cache.lookup(KEYS) == kv.Hit(host=0, disk=40)
        assert rig.fetch(list(range(30, 40))) == 10
        rig.cache.reset()
        assert rig.cache.lookup(KEYS) == kv.Hit(0, 0)
    with Rig(tmp_path) as rig:
        assert rig.cache.lookup(KEYS) == kv.Hit(0, 0)


def test_with_write_back_nothing_is_written_before_it_must_be_and_close_writes_the_rest(tmp_path):
    with Rig(tmp_path, write_through=False, host="512KiB") as rig:  # 64 keys, of which 4 may be unwritten
        rig.store(range(4))
        threading.Event().wait(0.6)  # several looks of the thread that demotes
        assert rig.cache.stats()["demoted_keys"] == 0
        rig.store(range(4, 12))
        rig.written(8)
        assert rig.cache.stats()["demoted_keys"] == 8
    with Rig(tmp_path) as rig:
        assert rig.cache.lookup(KEYS) == kv.Hit(host=0, disk=12)


def test_another_namespace_finds_nothing_and_takes_the_room(tmp_path):
    with Rig(tmp_path, namespace="a model") as rig:
        rig.store_all(range(20))
    with Rig(tmp_path, namespace="another") as rig:
        assert rig.cache.lookup(KEYS) == kv.Hit(0, 0)
        rig.store_all(range(20))
        assert rig.fetch(list(range(10))) == 10
    assert len([entry for entry in tmp_path.iterdir() if entry.is_dir()]) == 1


def test_two_caches_of_one_directory(tmp_path):
    with Rig(tmp_path), pytest.raises(kv.InvalidInput, match="process"):
        Rig(tmp_path)
    Rig(tmp_path).cache.close()


def test_a_lower_cap_keeps_what_fits(tmp_path):
    with Rig(tmp_path) as rig:
        rig.store_all(range(BLOCKS))
    with Rig(tmp_path, disk_size="500KiB") as rig:
        kept = sum(rig.cache.lookup([key]).disk for key in KEYS)
        assert 32 <= kept < BLOCKS
        held = [i for i in range(BLOCKS) if rig.cache.lookup([KEYS[i]]).disk]
        assert all(rig.fetch([i]) == 1 for i in held)


def test_several_directories(tmp_path):
    folders = [tmp_path / "a", tmp_path / "b"]
    with Rig(folders) as rig:
        rig.store_all(range(BLOCKS))
    with Rig(folders) as rig:
        assert rig.fetch(list(range(8, 16))) == 8
    with Rig(folders[::-1]) as rig:
        assert rig.cache.lookup(KEYS) == kv.Hit(0, 0), "the files are in the other order"


@pytest.mark.parametrize("io", ["io_uring", "threads"])
def test_records_that_fail_are_misses(tmp_path, io):
    with Rig(tmp_path, disk_io=io) as rig:
        rig.store_all(range(BLOCKS))
        _C.fault_arm("record_payload", 3, 1)
        found = rig.fetch(list(range(8)))
        assert found < 8
        assert rig.cache.stats()["mover"]["disk"]["promotions"]["checksum"] == 1
        assert rig.cache.lookup(KEYS[:8]).host + rig.cache.lookup(KEYS[:8]).disk < 8, "a bad record is not asked again"
        rig.store(range(8))  # and may be stored anew
        assert rig.fetch(list(range(8))) == 8


def test_a_disk_that_is_off_costs_nothing_but_its_hits(tmp_path):
    with Rig(tmp_path) as rig:
        rig.store_all(range(BLOCKS))
        _C.fault_arm("io_eio", 0, 1 << 40)
        for first in range(0, 32, 8):
            rig.fetch(list(range(first, first + 8)))
        assert rig.cache.stats()["mover"]["disk"]["off"]
        rig.store(range(8))
        assert rig.cache.lookup(KEYS[:8]).host == 8


def test_without_a_disk_a_prefetch_is_a_hold(tmp_path):
    tensor = np.zeros((4, BLOCK_BYTES), np.uint8)
    layout = kv.KVLayout.from_tensors(tensor, tokens_per_block=16, blocks_per_chunk=1)
    with kv.KVCache(layout, host="1MiB") as cache:
        cache.store(KEYS[:2], [0, 1]).wait(timeout_seconds=30)
        with cache.prefetch(KEYS[:4]) as prefetch:
            assert prefetch.wait().host == 2
        with pytest.raises(kv.InvalidInput, match="disk_size"):
            kv.KVCache(layout, host="1MiB", disk_size="1MiB")
        with pytest.raises(kv.InvalidInput, match="disk_size is missing"):
            kv.KVCache(layout, host="1MiB", disk=tmp_path)


def test_it_ends_with_its_last_reference(tmp_path):
    rig = Rig(tmp_path)
    rig.store(range(4))
    rig.cache = None
    gc.collect()
    with Rig(tmp_path) as again:
        assert again.cache.lookup(KEYS[:1]).host == 0


# Says how many keys are written, before it forgets all and begins again.
CHILD = """
import sys
from test_cache_disk import BLOCKS, Rig
rig = Rig(sys.argv[1])
while True:
    print(0, flush=True)
    rig.cache.reset()
    for i in range(0, BLOCKS, 8):
        rig.store_all(range(i, i + 8))
        print(i + 8, flush=True)
"""


def test_killed_at_any_moment_it_never_gives_wrong_bytes(tmp_path):
    for moment in range(5):
        child = subprocess.Popen(
            [sys.executable, "-c", CHILD, tmp_path], stdout=subprocess.PIPE, text=True, cwd=os.path.dirname(__file__)
        )
        while child.stdout.readline() != f"{BLOCKS}\n":
            assert child.poll() is None
        threading.Event().wait(0.017 * moment)
        child.send_signal(signal.SIGKILL)
        said = int((child.communicate()[0] or f"{BLOCKS}\n").splitlines()[-1])
        with Rig(tmp_path) as rig:
            held = [i for i in range(BLOCKS) if rig.cache.lookup([KEYS[i]]).disk]
            assert set(range(said)) <= set(held)
            assert all(rig.fetch([i]) == 1 for i in held)
