"""The disk tier through the extension; each way a record can go wrong is tested in C++ (disk_faults_test.cpp)."""

import ctypes
import os
import random
import stat
import threading

import numpy as np
import pytest

from kvoffload import _C
from kvoffload.errors import Closed, InvalidInput, QueueFull, Unsupported, WaitTimeout

SLOT, PAYLOAD = (16384, 8192), (16384 - 512 - 100, 5000)  # two groups
HOST_BYTES = 64 * 16384


@pytest.fixture(autouse=True)
def disarm():
    yield
    _C.fault_disarm_all()


class Rig:
    """An arena and a disk tier over it, with a private directory for each of `directories`."""

    def __init__(self, root, directories=1, cap_bytes=8 << 20, **options):
        self.arena = _C.Arena(_C.host_device(), HOST_BYTES)
        self.plan = _C.plan_extents(HOST_BYTES, SLOT)
        self.paths = [str(root / f"disk{i}") for i in range(directories)]
        for path in self.paths:
            os.makedirs(path, 0o700, exist_ok=True)
        self.tier = _C.DiskTier(self.arena, self.paths, "fingerprint", 0, SLOT, PAYLOAD, cap_bytes, **options)
        self.memory = np.ctypeslib.as_array((ctypes.c_uint8 * HOST_BYTES).from_address(self.arena.address))

    def payload(self, slot, group=0):
        offset = self.plan.offset_of(group, slot)
        return self.memory[offset : offset + PAYLOAD[group]]

    def move(self, way, slots, disk_slots, group=0, **more):
        keys = [b"key %012d" % slot for slot in disk_slots]
        start = {"sequence": 1} if way == "demote" else {}
        arguments = {"epoch": 1, "timeout_seconds": 60, **start, **more}
        getattr(self.tier, way)(1, group, slots, disk_slots, keys, **arguments)
        return self.results()[0]

    def results(self):
        found = []
        while self.tier.stats()["jobs"]:
            assert self.tier.wait(60)
            found += self.tier.poll()
        return found + self.tier.poll()


@pytest.mark.parametrize("io", ["auto", "threads"])
@pytest.mark.parametrize("directories", [1, 3])
def test_a_restart_finds_every_payload(tmp_path, io, directories):
    rig = Rig(tmp_path, directories, io=io, threads=2)
    expected = {}
    for group, slots in ((0, range(8)), (1, range(32, 48))):
        for slot in slots:
            expected[group, slot] = np.random.default_rng(slot).integers(0, 256, PAYLOAD[group], np.uint8)
            rig.payload(slot, group)[:] = expected[group, slot]
        job, moved, seconds, error, failed, _ = rig.move("demote", list(slots), list(slots), group)
        assert (job, moved, error, failed) == (1, len(slots) * SLOT[group], "", []) and seconds > 0
    rig.tier.sync()
    rig.tier.set_identity(2**63 + 5)
    rig.tier.close(60)
    rig = Rig(tmp_path, directories, io=io)
    assert rig.tier.identity == 2**63 + 5
    for group, slots in ((0, range(8)), (1, range(32, 48))):
        targets = [slot + 8 for slot in slots]
        assert rig.move("promote", targets, list(slots), group)[4] == []
        for slot in slots:
            assert (rig.payload(slot + 8, group) == expected[group, slot]).all()


def test_files_are_private_and_within_the_cap(tmp_path):
    umask = os.umask(0)
    try:
        rig = Rig(tmp_path, 2, cap_bytes=5_000_000)
    finally:
        os.umask(umask)
    assert rig.tier.paths == [f"{path}/slab" for path in rig.paths]
    taken = 0
    for path in rig.tier.paths:
        status = os.stat(path)
        assert stat.S_IMODE(status.st_mode) == 0o600
        taken += status.st_blocks * 512
    assert rig.tier.bytes <= taken <= 5_000_000
    assert rig.tier.report()["slab_bytes"] == taken


def test_a_cap_that_holds_nothing_and_one_that_is_not_there(tmp_path):
    with pytest.raises(InvalidInput, match="raise disk_size"):
        Rig(tmp_path, cap_bytes=10_000)
    with pytest.raises(InvalidInput, match=r"disk_size asks for .* are available: lower disk_size"):
        Rig(tmp_path, cap_bytes=1 << 50)


def test_only_the_record_that_fails_is_a_miss(tmp_path):
    rig = Rig(tmp_path)
    rig.move("demote", [0, 1, 2], [0, 1, 2])
    _C.fault_arm("record_payload", 1, 1)
    _, moved, _, error, failed, _ = rig.move("promote", [3, 4, 5], [0, 1, 2])
    assert len(failed) == 1 and moved == 2 * SLOT[0] and error == "the checksum of a record is wrong"
    assert rig.tier.stats()["promotions"] | {"done": 2, "checksum": 1} == rig.tier.stats()["promotions"]
    assert rig.move("promote", [3], [0], epoch=2)[3:5] == ("a record is an older one", [0])
    rig.tier.promote(2, 0, [3], [0], [b"another key"], epoch=1, timeout_seconds=60)
    assert rig.results()[0][3:5] == ("a record is that of another key", [0])


def test_an_older_record_of_the_same_key_is_as_good(tmp_path):
    """A key names its content, so a write that was lost over a record of the same key leaves the same payload."""
    rig = Rig(tmp_path)
    rig.payload(0)[:] = 7
    rig.move("demote", [0], [0], sequence=1)
    _C.fault_arm("io_lost_write", 0, 1)
    rig.move("demote", [0], [0], sequence=9)
    assert rig.move("promote", [3], [0])[4] == []
    assert (rig.payload(3) == 7).all()


def test_what_the_disk_was_never_asked_for_is_told_apart(tmp_path):
    rig = Rig(tmp_path, most_failures=2, retry_seconds=3600)
    rig.move("demote", [0, 1, 2, 3], [0, 1, 2, 3])
    assert rig.move("promote", [4, 5], [0, 1], timeout_seconds=0)[3:] == (
        "the disk did not come to it in time", [0, 1], [0, 1]
    )  # fmt: skip
    _C.fault_arm("io_eio", 0, 2)
    result = rig.move("promote", [4, 5, 6, 7], [0, 1, 2, 3])
    assert set(result[5]) == set(result[4]) - {0, 1} and "Input/output error" in result[3]


def test_what_cannot_be_meant_is_refused(tmp_path):
    rig = Rig(tmp_path, most_waiting=4)
    with pytest.raises(InvalidInput, match="there is no slot 64 in host memory"):
        rig.move("demote", [64], [0])
    with pytest.raises(InvalidInput, match="there is no slot -1 on disk"):
        rig.move("demote", [0], [-1])
    with pytest.raises(InvalidInput, match="there is no group 2"):
        rig.move("demote", [0], [0], group=2)
    with pytest.raises(InvalidInput, match="2 slots, 1 disk_slots and 1 keys"):
        rig.move("demote", [0, 1], [0])
    with pytest.raises(InvalidInput, match="choose auto, io_uring or threads"):
        Rig(tmp_path / "other", io="aio")
    with pytest.raises(QueueFull, match="0 demotions wait for the disk, at most 4 may"):
        rig.move("demote", list(range(5)), list(range(5)))
    assert rig.tier.stats()["dropped"] == 5


def test_a_disk_that_fails_is_off_and_says_why(tmp_path):
    rig = Rig(tmp_path, most_failures=2, retry_seconds=60, depth=1)
    _C.fault_arm("io_enospc", 0, 2)
    assert rig.move("demote", [0, 1, 2], [0, 1, 2])[4] == [0, 1, 2]
    with pytest.raises(Unsupported, match=r"the disk is off: writing to .*: No space left on device, 2 times in a row"):
        rig.move("demote", [0], [0])
    assert (rig.tier.stats()["times_off"], rig.tier.stats()["dropped"]) == (1, 1)


def test_close_has_an_end(tmp_path):
    rig = Rig(tmp_path)
    _C.fault_arm("io_delay", 0, 1)
    rig.tier.demote(1, 0, [0], [0], [b"k"], sequence=1, epoch=1, timeout_seconds=60)
    while rig.tier.stats()["waiting_demotions"]:  # until it has begun
        pass
    with pytest.raises(WaitTimeout, match="the memory they use is left to them"):
        rig.tier.close(0)
    rig.tier.close(60)
    rig.tier.close(60)
    assert len(rig.tier.poll()) == 1
    with pytest.raises(Closed):
        rig.move("demote", [0], [0])


def test_many_threads_and_somebody_who_damages_the_file(tmp_path):
    """Every payload that a promotion says it brought carries its own number."""
    rig = Rig(tmp_path, 2, threads=2)
    for slot in range(8):
        rig.payload(slot)[:] = slot
    rig.move("demote", list(range(8)), list(range(8)))
    done = threading.Event()
    wrong, failed = [], []

    def damage():
        rng = random.Random(1)
        while not done.is_set():
            with open(rng.choice(rig.tier.paths), "r+b", buffering=0) as file:
                file.seek(rng.randrange(4096, os.path.getsize(file.name)))
                file.write(b"x")

    vandal = threading.Thread(target=damage)
    vandal.start()
    rng = random.Random(2)
    for _ in range(200):
        slots = rng.sample(range(8), 4)
        result = rig.move("promote", [8 + slot for slot in slots], slots)
        failed += result[4]
        kept = [slot for position, slot in enumerate(slots) if position not in result[4]]
        wrong += [slot for slot in kept if (rig.payload(8 + slot) != slot).any()]
    done.set()
    vandal.join()
    assert wrong == []
    assert failed


@pytest.mark.parametrize("wrong", [{"directories": []}, {"arena": None}])
def test_what_would_end_the_process_is_refused(tmp_path, wrong):
    given = {"arena": _C.Arena(_C.host_device(), 1 << 20), "directories": [str(tmp_path)], **wrong}
    with pytest.raises((InvalidInput, TypeError)):
        _C.DiskTier(**given, fingerprint="f", rank=0, slot_bytes=SLOT, payload_bytes=PAYLOAD, cap_bytes=8 << 20)
