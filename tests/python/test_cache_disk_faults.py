"""KVCache with a disk that fails at each stage, writing and reading: misses, counted, and never wrong bytes."""

import threading

import pytest
from disk_scenarios import rig_or_skip
from test_cache_disk import Rig

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


@pytest.mark.parametrize("point", ["slab_open", "slab_enospc"])
def test_an_opening_that_fails_is_said_and_leaves_the_directory_free(tmp_path, point):
    _C.fault_arm(point, 0, 1)
    with pytest.raises(kv.KVOffloadError, match=r"slab|disk_size"):
        Rig(tmp_path)
    with Rig(tmp_path) as rig:
        rig.store_all(range(8))
