"""KVCache with a disk that fails at each stage, writing and reading: misses, counted, and never wrong bytes."""

import threading

import pytest
from disk_scenarios import rig_or_skip
from test_cache_disk import HOST_KEYS, KEYS, Rig

import kvoffload as kv
from kvoffload import _C

STORED, FAULTS = 48, 3
# Where the nth request fails -> how it is counted. Fewer faults in a row than turn the disk off.
ERRORS = {
    "io_eio": "io_error", "io_enospc": "io_error", "io_erofs": "io_error", "io_submit": "io_error",
    "io_end": "cut_short",
}  # fmt: skip
DAMAGE = {"record_payload": "checksum", "record_padding": "checksum", "record_trailer": "checksum"}
HARMLESS = ("io_short", "io_odd", "io_eagain", "io_eintr", "io_delay")


@pytest.fixture(autouse=True)
def _no_faults_left():
    yield
    _C.fault_disarm_all()


@pytest.fixture(params=["io_uring", "threads"])
def open_rig(request, tmp_path):
    return lambda: rig_or_skip(tmp_path, request.param)


def write(open_rig, point=None):
    """Stores and waits until all is written or given up; the fault is in the middle of it. The demotions' counts."""
    with open_rig() as rig:
        for first in range(0, STORED, 8):
            if point and first == 8:
                _C.fault_arm(point, 2, FAULTS)
            rig.store(range(first, first + 8))
            for _ in range(3000):
                stats = rig.cache.stats()
                if not stats["waiting_for_disk_keys"] and not stats["mover"]["disk"]["jobs"]:
                    break
                threading.Event().wait(0.005)
            else:
                pytest.fail(f"still waiting: {stats}")
        _C.fault_disarm_all()
        return {name: count for name, count in stats["mover"]["disk"]["demotions"].items() if count}


def read(open_rig, point=None):
    """How many keys come back in a new process' eyes, and the promotions' counts. `fetch` compares the bytes."""
    with open_rig() as rig:
        if point:
            _C.fault_arm(point, 5, FAULTS)
        found = sum(rig.fetch([i]) for i in range(STORED))
        counts = rig.cache.stats()["mover"]["disk"]["promotions"]
        return found, {name: count for name, count in counts.items() if count}


@pytest.mark.parametrize("point", ERRORS)
def test_writes_that_fail_are_missing_and_nothing_else(open_rig, point):
    assert write(open_rig, point) == {"done": STORED - FAULTS, ERRORS[point]: FAULTS}
    assert read(open_rig) == (STORED - FAULTS, {"done": STORED - FAULTS})


@pytest.mark.parametrize("point", [*ERRORS, *DAMAGE])
def test_reads_that_fail_are_missing_and_nothing_else(open_rig, point):
    write(open_rig)
    outcome = (ERRORS | DAMAGE)[point]
    assert read(open_rig, point) == (STORED - FAULTS, {"done": STORED - FAULTS, outcome: FAULTS})


@pytest.mark.parametrize("point", HARMLESS)
def test_what_can_be_continued_is(open_rig, point):
    assert write(open_rig, point) == {"done": STORED}
    assert read(open_rig, point) == (STORED, {"done": STORED})


@pytest.mark.parametrize(("point", "most_lost"), [("io_lost_write", FAULTS), ("io_misdirect", 2 * FAULTS)])
def test_writes_that_only_seem_done_are_seen(open_rig, point, most_lost):
    assert write(open_rig, point) == {"done": STORED}
    found, _ = read(open_rig)
    assert STORED - most_lost <= found < STORED


def until(done):
    for _ in range(6000):
        if done():
            return
        threading.Event().wait(0.005)
    pytest.fail("it does not come to that")


def off(rig):
    return rig.cache.stats()["mover"]["disk"]["off"]


def test_a_disk_that_works_again_is_used_again(open_rig, monkeypatch, caplog):
    monkeypatch.setattr(kv.disk, "RETRY_SECONDS", 0.01)
    with open_rig() as rig:
        rig.store_all(range(HOST_KEYS))
        _C.fault_arm("io_eio", 0, 1 << 40)
        rig.store(range(16, 24))
        until(lambda: off(rig))
        rig.store(range(24, 32))
        assert rig.fetch(list(range(24, 32))) == 8, "host memory goes on"
        _C.fault_disarm_all()

        def works():
            rig.cache.reset()
            rig.store(range(8))
            return not off(rig)

        until(works)
        rig.store_all(range(8, 48))
        before = rig.cache.stats()["promoted_keys"]
        assert rig.fetch(list(range(8, 16))) == 8
        assert rig.cache.stats()["promoted_keys"] == before + 8
    said = [record.getMessage() for record in caplog.records if "kvoffload: the disk" in record.getMessage()]
    assert len(said) == 2
    assert "is off" in said[0] and "Input/output error" in said[0] and said[1] == "kvoffload: the disk works again"


def test_what_a_disk_that_is_off_was_not_asked_for_is_there_when_it_works_again(open_rig):
    with open_rig() as rig:
        rig.store_all(range(2 * HOST_KEYS))
        _C.fault_arm("io_eio", 0, 1 << 40)
        rig.fetch(list(range(8)))
        until(lambda: off(rig))
        for i in range(HOST_KEYS):
            assert rig.fetch([i]) == 0
        lost = rig.cache.stats()["mover"]["disk"]["promotions"]["io_error"]
        assert sum(rig.cache.lookup([key]).disk for key in KEYS[:HOST_KEYS]) == HOST_KEYS - lost


def test_a_read_that_the_disk_did_not_come_to_in_time_can_be_had_later(open_rig):
    with open_rig() as rig:
        rig.store_all(range(2 * HOST_KEYS))
        rig.cache._deadline_seconds = 0.0
        assert rig.fetch(list(range(8))) == 0
        rig.cache._deadline_seconds = 30.0
        assert rig.fetch(list(range(8))) == 8


def test_a_write_that_failed_is_tried_again_when_the_key_is_used(open_rig):
    with open_rig() as rig:
        _C.fault_arm("io_eio", 0, 4)
        rig.store(range(4))
        until(lambda: sum(rig.cache.stats()["mover"]["disk"]["demotions"].values()) == 4)
        rig.cache.lookup(KEYS[:4])
        rig.written(4)
    with open_rig() as rig:
        assert rig.fetch(list(range(4))) == 4


def test_keys_in_use_while_the_disk_was_off_are_written_when_it_works_again(open_rig, monkeypatch):
    monkeypatch.setattr(kv.disk, "RETRY_SECONDS", 0.01)
    with open_rig() as rig:
        _C.fault_arm("io_eio", 0, 1 << 40)
        rig.store(range(8))
        for _ in range(20):
            rig.cache.lookup(KEYS[:8])
            rig.cache._settle(pump=True)
            threading.Event().wait(0.02)
        assert off(rig)
        _C.fault_disarm_all()

        def works():
            rig.cache._ledger.forget(KEYS[8:9])
            rig.store([8])
            return not off(rig)

        until(works)
        until(lambda: rig.cache.lookup(KEYS[:9]).host == 9 and rig.cache.stats()["disk"]["ready_keys"] == 9)
    with open_rig() as rig:
        assert rig.fetch(list(range(9))) == 9


@pytest.mark.parametrize("point", ["slab_open", "slab_enospc"])
def test_an_opening_that_fails_is_said_and_leaves_the_directory_free(tmp_path, point):
    _C.fault_arm(point, 0, 1)
    with pytest.raises(kv.KVOffloadError, match=r"slab|disk_size"):
        Rig(tmp_path)
    with Rig(tmp_path) as rig:
        rig.store_all(range(8))


def test_a_disk_whose_reads_hang_leaves_a_quarter_of_host_memory(tmp_path):
    with Rig(tmp_path, policy="lru", deadline_seconds=0.2) as rig:
        rig.store_all(range(STORED))
        submit = rig.cache._mover.submit_to_disk
        rig.cache._mover.submit_to_disk = lambda *_: None
        for first in range(0, 32, 8):
            rig.cache.prefetch(KEYS[first : first + 8])
        stats = rig.cache.stats()
        assert stats["filling_keys"] == HOST_KEYS * 3 // 4
        while stats["filling_keys"]:
            threading.Event().wait(0.05)
            stats = rig.cache.stats()
        rig.cache._mover.submit_to_disk = submit
        before = stats["dropped_keys"]
        rig.store(range(STORED, STORED + HOST_KEYS // 4))
        assert rig.cache.stats()["dropped_keys"] == before
