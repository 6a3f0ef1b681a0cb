"""How a cache with a disk ends, and what one that fails to begin leaves behind: nothing that the next one waits for."""

import atexit
import os
import signal
import subprocess
import sys
import threading

import pytest
from test_cache_disk import HOST_KEYS, KEYS, Rig

import kvoffload as kv
from kvoffload import _C
from kvoffload.ledger_disk import LedgerDir


@pytest.fixture(autouse=True)
def _no_faults_left():
    yield
    _C.fault_disarm_all()


@pytest.mark.parametrize(
    "wrong", [{"disk_size": "100TiB"}, {"disk_size": "1KiB"}, {"policy": "none"}, {"path": "none"}, {"disk_io": "none"}]
)
def test_one_that_cannot_begin_leaves_no_lock_though_its_error_is_kept(tmp_path, wrong):
    with pytest.raises(kv.InvalidInput) as kept:
        Rig(tmp_path, **wrong)
    Rig(tmp_path).cache.close()
    assert kept.value


def test_the_second_directory_cannot_be_had(tmp_path):
    (tmp_path / "b").touch()
    with pytest.raises(kv.KVOffloadError) as kept:
        Rig([tmp_path / "a", tmp_path / "b"])
    Rig(tmp_path / "a").cache.close()
    assert kept.value


def test_the_slabs_cannot_be_signed(tmp_path, monkeypatch):
    """The last step of all."""

    def fails(*_):
        raise OSError("no")

    monkeypatch.setattr(kv.cache, "pump_in_background", fails)
    with pytest.raises(OSError, match="no") as kept:
        Rig(tmp_path)
    monkeypatch.undo()
    Rig(tmp_path).cache.close()
    assert kept.value


def child(act) -> int:
    """The status of a forked child that does this."""
    pid = os.fork()
    if pid == 0:
        try:
            act()
        finally:
            os._exit(1)
    return os.waitpid(pid, 0)[1]


def test_a_forked_child_neither_waits_nor_closes_what_is_not_its_own(tmp_path, capfd):
    with Rig(tmp_path) as rig:
        rig.store(range(4))

        def end():
            signal.alarm(60)
            with pytest.raises(kv.Forked):
                rig.cache._mover.disk.close(60)
            atexit._run_exitfuncs()
            os._exit(7)

        assert os.waitstatus_to_exitcode(child(end)) == 7
        assert "transfers still ran" not in capfd.readouterr().err
        rig.store(range(4, 8))
        rig.written(8)


def test_a_forked_child_does_not_keep_the_directory(tmp_path):
    reading, writing = os.pipe()
    rig = Rig(tmp_path)
    pid = os.fork()
    if pid == 0:  # has all descriptors, and stays until the parent has done
        os.close(writing)
        os.read(reading, 1)
        os._exit(0)
    try:
        rig.cache.close()
        Rig(tmp_path).cache.close()
    finally:
        os.close(writing)
        os.waitpid(pid, 0)


def test_a_forked_child_that_ends_leaves_the_parent_its_locks(tmp_path):
    with Rig(tmp_path) as rig:

        def drop():
            rig.cache._mover.disk._namespaces.clear()
            os._exit(0)

        assert child(drop) == 0
        with pytest.raises(kv.InvalidInput, match="in use by process"):
            Rig(tmp_path)


def test_close_writes_what_is_still_being_stored(tmp_path):
    rig = Rig(tmp_path)
    for i in range(12):
        rig.tensor[i] = i
    stream = kv.HostStream()
    stream.delay(0.3)
    rig.cache.store(KEYS[:12], range(12), stream=stream)
    rig.cache.close()
    with Rig(tmp_path) as rig:
        assert rig.fetch(list(range(12))) == 12


def test_close_leaves_time_for_what_is_under_way(tmp_path, caplog):
    rig = Rig(tmp_path, host=64 * 8192, write_through=False)
    rig.store(range(32))
    _C.fault_arm("io_delay", 0, 1 << 40)  # all of it takes 1.6 s
    rig.cache.close(timeout_seconds=0.8)
    assert "transfers still ran" not in caplog.text
    Rig(tmp_path).cache.close()


def test_after_a_close_that_was_not_in_time_it_is_closed_all_the_same(tmp_path):
    rig = Rig(tmp_path, write_through=False)
    rig.store(range(HOST_KEYS // 2))
    _C.fault_arm("io_delay", 0, 1 << 40)
    rig.cache._settle(flush=True)
    rig.cache.close(timeout_seconds=0)
    with pytest.raises(kv.Closed):
        rig.cache.store(KEYS[:1], [0])
    assert rig.cache._mover.disk.tier.wait(60)


def test_a_key_that_is_too_long_does_not_take_others_with_it(tmp_path):
    with Rig(tmp_path) as rig:
        keys = [*KEYS[:3], b"k" * 257, *KEYS[4:8]]
        assert rig.cache.store(keys, range(8)).wait(timeout_seconds=30).ok
        rig.written(7)
        assert rig.cache.lookup(keys).host == 8


def test_a_signal_handler_that_calls_in_and_closes(tmp_path):
    rig = Rig(tmp_path)
    rig.store(range(8))
    calls = []

    def handle(*_):
        if len(calls) < 200:
            calls.append(rig.cache.stats())
            signal.setitimer(signal.ITIMER_REAL, 0.0001 + len(calls) % 7 * 0.00003)
        else:
            rig.cache.close()

    def call_for_ever():
        while True:
            rig.cache.lookup(KEYS[:8])

    before = signal.signal(signal.SIGALRM, handle)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.001)
        with pytest.raises(kv.Closed):
            call_for_ever()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert len(calls) == 200


# Ends while a daemon thread, such as the one that demotes, waits for a disk that is busy.
WAITS_AT_EXIT = """
import sys, threading
from kvoffload import _C
arena = _C.Arena(_C.host_device(), 1 << 20)
tier = _C.DiskTier(arena, [sys.argv[1]], "fingerprint", 0, [16384], [100], 8 << 20)
_C.fault_arm("io_delay", 0, 1 << 40)
slots = list(range(60))
tier.demote(1, 0, slots, slots, [b"key %012d" % i for i in slots], sequence=1, epoch=1, timeout_seconds=60)
began = threading.Event()
def wait():
    began.set()
    while True:
        tier.wait(0.05)
threading.Thread(target=wait, daemon=True).start()
began.wait()
"""


def test_the_interpreter_ends_while_a_thread_waits_for_the_disk(tmp_path):
    ended = subprocess.run([sys.executable, "-c", WAITS_AT_EXIT, tmp_path], capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stderr) == (0, "")


def test_a_prefetch_that_is_dropped_lets_go(tmp_path):
    with Rig(tmp_path) as rig:
        rig.store_all(range(HOST_KEYS))
        prefetch = rig.cache.prefetch(KEYS[:HOST_KEYS])
        assert prefetch.wait(timeout_seconds=30).host == HOST_KEYS
        rig.store(range(HOST_KEYS, HOST_KEYS + 1))
        assert rig.cache.stats()["dropped_keys"] == 1
        del prefetch
        rig.store_all(range(HOST_KEYS, 2 * HOST_KEYS))
        assert rig.cache.stats()["dropped_keys"] == 1


def test_many_threads_and_a_close(tmp_path):
    rig = Rig(tmp_path)
    rig.store_all(range(32))
    wrong = []

    def use(first):
        try:
            while True:
                with rig.cache.prefetch(KEYS[first : first + 4]) as prefetch:
                    prefetch.wait(timeout_seconds=30)
                rig.cache.store(KEYS[first : first + 4], range(first, first + 4)).wait(timeout_seconds=30)
        except kv.Closed:
            pass
        except Exception as error:
            wrong.append(error)

    threads = [threading.Thread(target=use, args=(4 * i,)) for i in range(6)]
    for thread in threads:
        thread.start()
    threading.Event().wait(0.5)
    rig.cache.close()
    for thread in threads:
        thread.join(30)
    assert not any(thread.is_alive() for thread in threads)
    assert wrong == []
    with Rig(tmp_path) as again:
        held = [i for i in range(32) if again.cache.lookup([KEYS[i]]).disk]
        assert all(again.fetch([i]) == 1 for i in held)


def test_a_manifest_that_cannot_be_opened_does_not_keep_the_directory(tmp_path):
    options = {"disk_bytes": 1 << 20, "slot_bytes": (4096,)}
    first = LedgerDir(str(tmp_path), "f" * 32, 0, **options)
    first.close(30)
    manifest = next(tmp_path.glob("*/dp0/ledger/manifest"))
    manifest.unlink()
    manifest.mkdir()
    with pytest.raises(kv.KVOffloadError) as refused:
        LedgerDir(str(tmp_path), "f" * 32, 0, **options)
    manifest.rmdir()
    LedgerDir(str(tmp_path), "f" * 32, 0, **options).close(30)
    assert refused.value
