"""KVCache with a disk where the machine allows less, beside another process, and from many threads."""

import contextlib
import os
import random
import shutil
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import disk_scenarios
import numpy as np
import pytest
from test_cache_disk import KEYS, Rig

import kvoffload as kv

SCENARIOS = Path(disk_scenarios.__file__)


def command(name, folder, *arguments):
    return [sys.executable, str(SCENARIOS), name, str(folder), *arguments]


def run(name, folder, *arguments):
    done = subprocess.run(
        command(name, folder, *arguments), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=200
    )
    if done.returncode == disk_scenarios.SKIPPED:
        pytest.skip(done.stdout)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("call", ["setup", "enter"])
@pytest.mark.parametrize("error", ["EPERM", "ENOSYS"])
def test_io_uring_refused_is_threads(tmp_path, call, error):
    run("io_uring_refused", tmp_path, call, error)


def test_few_descriptors_are_enough_and_none_is_left(tmp_path):
    run("few_descriptors", tmp_path)


def test_little_locked_memory():
    with tempfile.TemporaryDirectory() as folder:  # which another user can reach
        run("little_locked_memory", folder)


def test_a_memory_file_system():
    folder = Path("/dev/shm")
    if not os.access(folder, os.W_OK):
        pytest.skip("no /dev/shm")
    mine = Path(tempfile.mkdtemp(dir=folder))
    try:
        run("memory_file_system", mine)
    finally:
        shutil.rmtree(mine)


def test_a_full_file_system(tmp_path):
    run("full_file_system", tmp_path)


def test_two_processes_on_one_directory(tmp_path):
    with subprocess.Popen(command("hold", tmp_path), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout.readline() == "open\n"
        for _ in range(2):  # a refusal leaves nothing behind
            with pytest.raises(kv.InvalidInput, match=f"process {other.pid}"):
                Rig(tmp_path)
        other.kill()
    with Rig(tmp_path) as rig:
        assert rig.fetch(list(range(8))) == 8


def bytes_on_disk(folder):
    total = 0
    for path in folder.rglob("*"):
        with contextlib.suppress(FileNotFoundError):  # replaced meanwhile
            total += path.stat().st_blocks * 512 if path.is_file() else 0
    return total


def test_all_files_together_stay_below_the_cap(tmp_path):
    """The manifest among them, however many keys come and go."""
    size, most = 300 << 10, 0
    with Rig(tmp_path, disk_size=size) as rig:
        for batch in range(300):
            keys = [b"key %04d %07d" % (batch, i) for i in range(8)]
            assert rig.cache.store(keys, range(8)).wait(timeout_seconds=30).ok
            rig.written(8 * (batch + 1))
            most = max(most, bytes_on_disk(tmp_path))
        assert rig.cache._directory.manifest.stats()["off"] == ""
    assert size // 2 < most <= size


@pytest.mark.parametrize("size", [4096, 80 << 10])
def test_a_cap_for_not_even_one_record(tmp_path, size):
    with pytest.raises(kv.InvalidInput, match="raise disk_size"):
        Rig(tmp_path, disk_size=size)


THREADS, ROWS = 16, 4  # rows: of each thread's own


def test_sixteen_threads(tmp_path):
    tensor = np.zeros((THREADS * ROWS, 8192 - 512), np.uint8)
    layout = kv.KVLayout.from_tensors(tensor, tokens_per_block=16, blocks_per_chunk=1)
    host = 3 * THREADS * layout.groups[0].slot_bytes  # less than the keys, so that they come and go
    cache = kv.KVCache(layout, host, disk=tmp_path, disk_size="500KiB", write_through=True)
    wrong, moved = [], [0] * THREADS

    def play(number):
        chance = random.Random(number)
        rows = list(range(number * ROWS, (number + 1) * ROWS))
        for _ in range(60):
            ids = chance.sample(range(len(KEYS)), ROWS)
            keys = [KEYS[i] for i in ids]
            with cache.prefetch(keys) as prefetch:
                found = prefetch.wait(60).host
                if found:
                    tensor[rows] = 255
                    assert cache.load(keys[:found], rows[:found]).wait(60).ok
                    wrong.extend(
                        i for i, row in zip(ids[:found], rows[:found], strict=True) if (tensor[row] != i).any()
                    )
                    moved[number] += found
            tensor[rows] = np.array(ids, np.uint8)[:, None]
            assert cache.store(keys, rows).wait(60).ok

    def guarded(number):
        try:
            play(number)
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=guarded, args=(number,)) for number in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    stats = cache.stats()
    cache._ledger.check()
    cache.close(30)
    assert wrong == []
    assert min(moved) > 0 and min(stats["promoted_keys"], stats["demoted_keys"], stats["evicted_keys"]) > len(KEYS)
    assert stats["failed_jobs"] == stats["unknown_reports"] == 0
