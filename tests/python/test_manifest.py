"""The manifest and its directory through the extension; what a file may hold is tested in C++ (manifest_test.cpp)."""

import os
import subprocess
import sys

import pytest

from kvoffload import _C
from kvoffload.errors import Closed, InvalidInput, Unsupported

KEYS = [b"sixteen bytes %02d" % i for i in range(20)]


@pytest.fixture(autouse=True)
def disarm():
    yield
    _C.fault_disarm_all()


def open_manifest(directory, slots=(20, 20), **options):
    manifest = _C.Manifest(str(directory), "a model", slots, sync_seconds=60, **options)
    return manifest, manifest.take_opening()


def commit(manifest, *indexes, group=0, epoch=1):
    manifest.commit(epoch, group, [KEYS[i] for i in indexes], list(indexes), [i + 1 for i in indexes])


def test_found_again_after_a_restart(tmp_path):
    manifest, opening = open_manifest(tmp_path)
    assert opening["chunks"] == [] and opening["not_believed"] == ""
    assert manifest.take_opening()["chunks"] == []
    commit(manifest, 1, 2, 3)
    commit(manifest, 4, group=1)
    manifest.free(0, [2])
    identity = manifest.identity
    del manifest
    manifest, opening = open_manifest(tmp_path)
    assert opening["chunks"] == [(0, KEYS[1], 1, 2), (0, KEYS[3], 3, 4), (1, KEYS[4], 4, 5)]
    assert (manifest.identity, manifest.first_sequence) == (identity, 6)


def test_reset_starts_an_epoch_and_stats_tell_it(tmp_path):
    manifest, _ = open_manifest(tmp_path)
    commit(manifest, 1)
    manifest.reset(60)
    commit(manifest, 2)
    stats = manifest.stats()
    assert (stats["epoch"], stats["commits"], stats["stale_commits"]) == (2, 1, 1)
    commit(manifest, 3, epoch=2)
    del manifest
    assert [key for _, key, _, _ in open_manifest(tmp_path)[1]["chunks"]] == [KEYS[3]]


def test_data_files_are_synced_first(tmp_path):
    slab = tmp_path / "slab"
    manifest, _ = open_manifest(tmp_path, data_files=[str(slab), str(tmp_path / "not made yet")])
    slab.write_bytes(b"x")
    commit(manifest, 1)
    _C.fault_arm("file_sync", 0, 1)  # the slab's: the manifest is not to blame
    with pytest.raises(Unsupported, match=r"cannot sync .*slab"):
        manifest.flush(60)
    stats = manifest.stats()
    assert (stats["undurable_records"], stats["failed_syncs"], stats["off"]) == (1, 1, "")
    manifest.flush(60)
    assert manifest.stats()["undurable_records"] == 0
    _C.fault_arm("file_sync", 1, 1)  # the manifest's own
    commit(manifest, 2)
    with pytest.raises(Unsupported, match=r"cannot sync .*manifest"):
        manifest.flush(60)
    assert "everything on disk is a miss" in manifest.stats()["off"]


def test_a_full_disk_is_one_line_and_no_exception(tmp_path):
    manifest, _ = open_manifest(tmp_path)
    commit(manifest, 1)
    _C.fault_arm("file_write", 0, 1)
    commit(manifest, 2)
    manifest.free(0, [1])
    stats = manifest.stats()
    assert "No space left" in stats["off"]
    assert stats["dropped_records"] == 2
    del manifest
    assert open_manifest(tmp_path)[1]["chunks"] == []


def test_close_ends_it(tmp_path):
    manifest, _ = open_manifest(tmp_path)
    manifest.close(60)
    manifest.close(60)
    commit(manifest, 1)
    assert manifest.stats()["dropped_records"] == 1
    with pytest.raises(Closed):
        manifest.flush(60)


def test_one_of_each_for_a_chunk(tmp_path):
    manifest, _ = open_manifest(tmp_path)
    with pytest.raises(InvalidInput, match="2 keys, 1 slots and 2 sequences"):
        manifest.commit(1, 0, KEYS[:2], [1], [1, 2])
    assert manifest.stats()["commits"] == 0


def test_crc32c():
    assert _C.crc32c(b"123456789") == 0xE3069283
    assert _C.crc32c(b"6789", _C.crc32c(b"12345")) == 0xE3069283


HOLD = """
import sys
from kvoffload import _C
directory = _C.NamespaceDir(sys.argv[1], "fingerprint", 0, "ledger", 10)
print("held", flush=True)
sys.stdin.read()
"""


def test_two_processes_of_one_namespace(tmp_path):
    command = [sys.executable, "-c", HOLD, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout.readline() == "held\n"
        with pytest.raises(InvalidInput, match=f"in use by process {other.pid}: stop it, or choose another"):
            _C.NamespaceDir(str(tmp_path), "fingerprint", 0, "ledger", 0)
        neighbour = _C.NamespaceDir(str(tmp_path), "neighbour", 0, "ledger", 0)
        room = neighbour.make_room(1, 0, 10)
        assert room["in_use"] == [str(tmp_path / "fingerprint/dp0")] and room["removed"] == []
        other.kill()
    assert _C.NamespaceDir(str(tmp_path), "fingerprint", 0, "ledger", 0).path == f"{tmp_path}/fingerprint/dp0/ledger"
    room = neighbour.make_room(1, 0, 10)
    assert room["removed"] == [str(tmp_path / "fingerprint/dp0")] and room["foreign_bytes"] == 0
    assert sorted(os.listdir(tmp_path)) == ["kvoffload.lock", "neighbour"]
