"""`kvoffload fsck` and `kvoffload ls`: every kind of damage is found, named, and removed by a repair, and no other."""

import json
import os
import shutil
import struct
import subprocess
import sys

import numpy as np
import pytest
from cache_files import PAYLOAD, SLOT, CacheFiles, key_of
from test_cache_disk import KEYS
from test_cache_disk import Rig as CacheRig

from kvoffload import _C
from kvoffload.cli import disk_commands
from kvoffload.cli.fsck import exit_status, fsck
from kvoffload.cli.ls import rows
from kvoffload.errors import InvalidInput, Unsupported


def check(files, status, **options):
    """The findings of the one namespace there."""
    found = fsck(files.roots, **options)
    assert exit_status(found) == status, found
    (findings,) = found
    return findings


def repaired(files, left):
    """Repairs; afterwards all is well, and so many chunks are left."""
    findings = check(files, 0, repair=True)
    assert findings.repaired and not findings.unchecked
    after = check(files, 0)
    assert (after.problems, after.notes, after.chunks) == ([], [], left)
    return findings


def believed(files):
    return {(group, slot): key for group, key, slot, _ in _C.read_manifest(files.manifest_path)["chunks"]}


@pytest.mark.parametrize(("directories", "ranks"), [(1, 1), (3, 1), (1, 2), (2, 2)])
def test_what_is_sound_is_found_so_and_left_as_it_is(tmp_path, directories, ranks):
    chunks = {(0, slot): slot for slot in range(0, 15, 2)} | {(1, 80 + slot): 100 + slot for slot in range(5)}
    files = CacheFiles([tmp_path / f"d{i}" for i in range(directories)], ranks, chunks)
    os.chmod(files.manifest_path, 0o440)
    before = traces(tmp_path)
    findings = check(files, 0)
    assert traces(tmp_path) == before, "a check touches nothing"
    assert findings.problems == findings.notes == []
    assert findings.chunks == 13 and findings.checked_bytes == ranks * (8 * SLOT[0] + 5 * SLOT[1])
    assert not check(files, 0, repair=True).repaired
    assert believed(files) == {place: key_of(number) for place, number in chunks.items()}
    assert exit_status(fsck(files.roots[::-1])) == 0, "in any order"


def traces(folder):
    """Of all files: what a write, a change of mode, or a new file would change."""
    status = {path: os.lstat(path) for path in folder.rglob("*")}
    return {path: (one.st_mode, one.st_mtime_ns, one.st_ctime_ns, one.st_size) for path, one in status.items()}


def flip_payload(files):
    files.put(0, 3, bytes([files.read(0, 3)[77] ^ 1]), at=77)


def flip_padding(files):
    files.put(0, 3, b"\x01", at=PAYLOAD[0] + 3)


def flip_trailer(files):
    files.put(0, 3, bytes([files.read(0, 3)[-20] ^ 1]), at=SLOT[0] - 20)


def zero(files):
    files.put(0, 3, bytes(SLOT[0]))


def misdirect(files):
    files.put(0, 3, files.read(0, 4))


def put_an_older_one_back(files):
    with files.open() as (_, tiers, epoch):
        files.write(tiers, 0, 3, 3, epoch, sequence=99)


def put_one_of_another_epoch_back(files):
    with files.open() as (_, tiers, epoch):
        files.write(tiers, 0, 3, 3, epoch + 1, sequence=4)


def cut_the_file(files):
    os.truncate(files.slab_path(), files.slot_range(0, 7)[0] + 5)


DAMAGE = [
    (flip_payload, "checksum"),
    (flip_padding, "checksum"),
    (flip_trailer, "checksum"),
    (zero, "none"),
    (misdirect, "identity"),
    (put_an_older_one_back, "stale"),
    (put_one_of_another_epoch_back, "stale"),
    (cut_the_file, "unreadable"),
]


@pytest.mark.parametrize(("damage", "state"), DAMAGE, ids=[damage.__name__ for damage, _ in DAMAGE])
def test_a_record_that_is_not_its_commits(tmp_path, damage, state):
    files = CacheFiles([tmp_path])
    damage(files)
    findings = check(files, 1)
    assert findings.lost == {state: 1} and findings.chunks == 8
    assert check(files, 1).lost == {state: 1}, "a check changes nothing"
    repaired(files, left=7)
    assert set(believed(files)) == {(0, slot) for slot in range(8)} - {(0, 7 if state == "unreadable" else 3)}


def test_a_record_lost_on_one_rank_is_lost(tmp_path):
    files = CacheFiles([tmp_path], ranks=3)
    files.put(0, 5, bytes(512), rank=1, at=SLOT[0] - 512)
    assert check(files, 1).lost == {"none": 1}
    repaired(files, left=7)


def test_what_a_repair_does_not_remove_is_byte_for_byte_what_it_was(tmp_path):
    files = CacheFiles([tmp_path])
    before = {slot: files.read(0, slot) for slot in range(8)}
    zero(files)
    files.put(0, 20, before[6])  # a record that no commit names
    findings = repaired(files, left=7)
    assert findings.leftover_records == 1 and findings.lost == {"none": 1}
    assert all(files.read(0, slot) == before[slot] for slot in range(8) if slot != 3)
    assert files.read(0, 20) == before[6][:-512] + bytes(512)


def test_what_only_looks_like_a_record_inside_a_chunk_is_left_alone(tmp_path):
    files = CacheFiles([tmp_path], chunks={(1, 80): 7})
    trailer = files.read(1, 80)[-512:]
    payload = files.payload(1).copy()
    payload[SLOT[1] - 512 : SLOT[1]] = list(trailer)  # where the other group's first slot would have it
    files.payload = lambda number: payload
    with files.open() as (manifest, tiers, epoch):
        files.write(tiers, 0, 0, 1, epoch)
        manifest.commit(epoch, 0, [key_of(1)], [0], [files.sequence])
    assert check(files, 0).notes == []
    os.truncate(files.manifest_path, os.path.getsize(files.manifest_path) + 3)  # something to be repaired
    repaired(files, left=2)


def test_a_torn_tail_costs_nothing(tmp_path):
    files = CacheFiles([tmp_path])
    with open(files.manifest_path, "ab") as file:
        file.write(b"torn!")
    findings = check(files, 0)
    assert findings.problems == [] and "torn tail of 5 bytes" in findings.notes[0]
    repaired(files, left=8)


def test_from_damage_in_the_manifest_on_nothing_is_believed(tmp_path):
    files = CacheFiles([tmp_path])
    with open(files.manifest_path, "r+b") as file:
        file.seek(file.read().index(key_of(5)))
        file.write(b"?")
    findings = check(files, 1)
    assert findings.chunks == 5 and findings.leftover_records == 3
    assert "damaged" in findings.problems[0]
    repaired(files, left=5)


def test_a_manifest_whose_header_is_damaged(tmp_path):
    files = CacheFiles([tmp_path])
    with open(files.manifest_path, "r+b") as file:
        file.write(b"nothing of ours")
    findings = check(files, 1)
    assert "it is no manifest" in findings.problems[0] and findings.leftover_records == 8
    assert check(files, 0, repair=True).repaired
    assert not os.path.exists(files.manifest_path)
    after = check(files, 0)
    assert after.leftover_records == 0 and after.problems == []


def test_a_manifest_of_other_files_is_not_believed(tmp_path):
    a, b = CacheFiles([tmp_path / "a"]), CacheFiles([tmp_path / "b"])
    os.replace(b.manifest_path, a.manifest_path)
    findings = check(a, 1)
    assert "rank 0 has not the files" in findings.problems[0]
    repaired(a, left=0)
    assert "no manifest" in check(b, 0).notes[0]


@pytest.mark.parametrize("damage", ["header", "gone", "short", "link"])
def test_a_slab_that_is_none_loses_all_chunks_of_all_ranks(tmp_path, damage):
    files = CacheFiles([tmp_path], ranks=2)
    path = files.slab_path(rank=0)
    if damage == "header":
        with open(path, "r+b") as file:
            file.seek(300)
            file.write(b"?")
    elif damage == "short":
        os.truncate(path, 100)
    else:
        os.rename(path, tmp_path / "elsewhere")
    if damage == "link":
        os.symlink(tmp_path / "elsewhere", path)
        assert "Too many levels of symbolic links" in check(files, 2).unchecked
        return
    findings = check(files, 1)
    assert any("rank 0 has not the files" in problem for problem in findings.problems)
    repaired(files, left=0)
    assert believed(files) == {} and not os.path.exists(path)


def test_a_slab_of_another_rank_is_none(tmp_path):
    files = CacheFiles([tmp_path], ranks=2)
    shutil.copy(files.slab_path(rank=1), files.slab_path(rank=0))
    assert "is of rank 1 of 0123456789abcdef" in check(files, 1).problems[0]
    repaired(files, left=0)


def test_a_manifest_whose_slots_are_other_ones_is_not_believed(tmp_path):
    files = CacheFiles([tmp_path])
    with open(files.manifest_path, "r+b") as file:
        header = bytearray(file.read(512))
        assert header[64:].startswith(b"0123456789abcdef %d\0" % files.extent_bytes)
        header[64 + 17] ^= 1  # another size of an extent
        struct.pack_into("<I", header, 12, 0)
        struct.pack_into("<I", header, 12, _C.crc32c(bytes(header)))
        file.seek(0)
        file.write(header)
    findings = check(files, 1)
    assert "it is of other files" in findings.problems[0] and findings.leftover_records == 8
    assert check(files, 0, repair=True).repaired
    assert not os.path.exists(files.manifest_path)


def test_without_all_its_directories_a_cache_is_not_judged(tmp_path):
    files = CacheFiles([tmp_path / "a", tmp_path / "b"])
    found = fsck(files.roots[:1], repair=True)
    assert exit_status(found) == 2 and "give all directories" in found[0].unchecked
    assert len(believed(files)) == 8


def test_what_an_opening_left_behind_goes(tmp_path):
    files = CacheFiles([tmp_path])
    left = [files.manifest_path + ".new", files.slab_path()[:-4] + "probe"]
    for path in left:
        open(path, "w").close()
    assert len(check(files, 0).notes) == 2
    repaired(files, left=8)
    assert not any(map(os.path.exists, left))


@pytest.mark.parametrize("repair", [False, True])
def test_what_is_in_use_is_refused(tmp_path, repair, capsys):
    with CacheRig(tmp_path) as rig:
        rig.store_all(range(8))
        assert disk_commands.run(["fsck", str(tmp_path)] + ["--repair"] * repair) == 2
        assert f"not checked: it is in use by process {os.getpid()}" in capsys.readouterr().out
        rig.store_all(range(8, 12))
    assert disk_commands.run(["fsck", str(tmp_path)]) == 0


def test_what_is_opened_meanwhile_is_not_judged(tmp_path, monkeypatch):
    files = CacheFiles([tmp_path])
    read = _C.read_manifest

    def read_while_another_opens_it(path):
        with files.open():
            return read(path)

    monkeypatch.setattr(_C, "read_manifest", read_while_another_opens_it)
    assert "meanwhile" in check(files, 2).unchecked


def test_after_a_repair_the_cache_serves_what_is_left(tmp_path, capsys):
    with CacheRig(tmp_path) as rig:
        rig.store_all(range(24))
        (slab,) = rig.cache.stats()["mover"]["disk"]["paths"]
    with open(slab, "r+b") as file:
        for slot in (2, 9):
            file.seek(4096 + 8192 * slot + 1000)
            file.write(b"not what was there")
    assert disk_commands.run(["fsck", "--json", str(tmp_path)]) == 1
    assert json.loads(capsys.readouterr().out)[0]["lost"] == {"checksum": 2}
    assert disk_commands.run(["fsck", "--repair", str(tmp_path)]) == 0
    assert "2 chunks do not verify" in capsys.readouterr().out
    with CacheRig(tmp_path) as rig:
        held = [i for i in range(24) if rig.cache.lookup([KEYS[i]]).disk]
        assert len(held) == 22
        assert all(rig.fetch([i]) == 1 for i in held)


def test_ls_lists_what_is_there(tmp_path, capsys):
    a, b = CacheFiles([tmp_path / "x"]), CacheFiles([tmp_path / "x"], ranks=2, chunks={(1, 0): 0}, dp=3)
    with b.open():
        listed = {row.namespace.rsplit("/")[1]: row for row in rows(a.roots)}
        assert disk_commands.run(["ls", *a.roots]) == 0
    assert set(listed) == {"dp0", "dp3"}
    assert (listed["dp0"].chunks, listed["dp0"].ranks, listed["dp0"].users) == (8, 1, None)
    assert (listed["dp3"].chunks, listed["dp3"].ranks, listed["dp3"].users) == (1, 2, [os.getpid()])
    slab_bytes = os.stat(a.slab_path()).st_blocks * 512
    assert slab_bytes <= listed["dp0"].disk_bytes < slab_bytes + (1 << 16)
    assert f"process {os.getpid()}" in capsys.readouterr().out


def test_what_is_not_ours_is_not_looked_at(tmp_path, capsys):
    (tmp_path / "model/dp0").mkdir(parents=True)
    (tmp_path / "model/dp0/lock").write_text("somebody else's")
    (tmp_path / "a file").write_text("")
    files = CacheFiles([tmp_path / "elsewhere"])
    os.symlink(os.path.dirname(os.path.dirname(os.path.dirname(files.manifest_path))), tmp_path / "linked")
    os.symlink(os.path.dirname(files.manifest_path), tmp_path / "model/dp1")
    (tmp_path / "model/dp2").mkdir()
    os.symlink(os.path.dirname(files.manifest_path) + "/../lock", tmp_path / "model/dp2/lock")
    assert disk_commands.run(["ls", str(tmp_path)]) == disk_commands.run(["fsck", str(tmp_path)]) == 0
    assert capsys.readouterr().out == "no caches there\n" * 2


def test_a_directory_that_is_none_is_an_error(tmp_path, capsys):
    assert disk_commands.run(["ls", str(tmp_path / "nowhere")]) == 2
    assert "No such file or directory" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        disk_commands.run(["fsck"])


# As an installation of the wheel alone has it.
ALONE = """
import sys
for name in ("numpy", "typer", "rich", "matplotlib"):
    sys.modules[name] = None
sys.argv = ["kvoffload", *sys.argv[1:]]
from kvoffload.cli.entry import main
main()
"""


@pytest.mark.parametrize("command", ["fsck", "ls"])
def test_they_need_the_wheel_alone(tmp_path, command):
    CacheFiles([tmp_path])
    done = subprocess.run([sys.executable, "-c", ALONE, command, str(tmp_path)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "8" in done.stdout
    other = subprocess.run([sys.executable, "-c", ALONE, "bench", "disk"], capture_output=True, text=True)
    assert "pip install 'kvoffload[cli]'" in other.stderr


def test_they_are_commands_beside_the_others(tmp_path):
    main = pytest.importorskip("kvoffload.cli.main", reason="the extra `cli` is not installed")
    testing = pytest.importorskip("typer.testing")
    files = CacheFiles([tmp_path])
    zero(files)
    result = testing.CliRunner().invoke(main.app, ["fsck", "--json", str(tmp_path)])
    assert result.exit_code == 1 and json.loads(result.stdout)[0]["lost"] == {"none": 1}
    shown = testing.CliRunner().invoke(main.app, ["--help"]).stdout
    assert all(name in shown for name in ("fsck", "ls", "bench"))


def test_a_reader_refuses_what_cannot_be_meant(tmp_path):
    files = CacheFiles([tmp_path])
    slab = _C.SlabReader([files.slab_path()])
    assert (slab.rank, slab.fingerprint, slab.slot_bytes) == (0, "0123456789abcdef", list(SLOT))
    assert slab.check(2, 0, key_of(0), 1, 1) == slab.check(0, -1, key_of(0), 1, 1) == "unreadable"
    assert slab.check(0, 1 << 40, key_of(0), 1, 1) == "unreadable"
    assert slab.check(0, 0, b"k" * 1000, 1, 1) == "identity", "a manifest may name longer keys than a record has"
    assert slab.records(-1, 0, 1) == slab.records(0, 1 << 61, 1 << 62) == []
    assert slab.records(0, 0, 1 << 62) == list(range(8))
    with pytest.raises(InvalidInput, match="no slot"):
        slab.erase(0, [1 << 40])
    with pytest.raises(InvalidInput, match="not a plain file"):
        _C.SlabReader(["/dev/null"])
    with pytest.raises(Unsupported):
        slab.erase(0, [0])  # opened for reading
    with pytest.raises(InvalidInput, match="does not belong"):
        _C.SlabReader([files.slab_path(), files.slab_path()])


@pytest.mark.parametrize(
    ("form", "at", "value"), [("<q", 40, -1), ("<q", 40, 1 << 60), ("<H", 20, 129), ("<H", 22, 257)]
)
def test_a_trailer_of_numbers_that_cannot_be_is_none(tmp_path, form, at, value):
    files = CacheFiles([tmp_path])
    files.put(0, 3, struct.pack(form, value), at=SLOT[0] - 512 + at)
    assert check(files, 1).lost == {"none": 1}
    repaired(files, left=7)


# Where a number lies in a slab's header, and what it may not be.
HEADER_NUMBERS = [
    ("<I", 8, 2), ("<q", 24, 0), ("<q", 24, -1), ("<q", 24, 1 << 62), ("<i", 40, 0), ("<i", 40, 1 << 30),
    ("<i", 44, -1), ("<i", 44, 1), ("<I", 52, 1 << 31), ("<i", 216, 0), ("<i", 216, 257), ("<q", 224, 0),
    ("<q", 224, 4095), ("<q", 224, 1 << 60), ("<q", 232, -4096), ("<q", 240, 4096), ("<B", 4000, 1),
]  # fmt: skip


@pytest.mark.parametrize(("form", "at", "value"), HEADER_NUMBERS)
def test_a_header_of_numbers_that_cannot_be_is_none_however_well_signed(tmp_path, form, at, value):
    files = CacheFiles([tmp_path])
    with open(files.slab_path(), "r+b") as file:
        header = bytearray(file.read(4096))
        struct.pack_into(form, header, at, value)
        struct.pack_into("<I", header, 12, 0)
        struct.pack_into("<I", header, 12, _C.crc32c(bytes(header)))
        file.seek(0)
        file.write(header)
    with pytest.raises(InvalidInput, match="header is damaged"):
        _C.SlabReader([files.slab_path()])


def test_what_was_not_synced_before_the_machine_went_down_is_not_believed(tmp_path):
    manifest = _C.Manifest(str(tmp_path), "f", [100], sync_seconds=1000)
    manifest.commit(1, 0, [key_of(i) for i in range(3)], [0, 1, 2], [1, 2, 3])
    manifest.flush(10)
    manifest.commit(1, 0, [key_of(i) for i in range(5)], [5, 6, 7, 8, 0], [4, 5, 6, 7, 8])
    manifest.free(0, [6])
    now = _C.read_manifest(str(tmp_path / "manifest"))
    assert [slot for _, _, slot, _ in now["chunks"]] == [0, 1, 2, 5, 7, 8] and now["unsynced_chunks"] == 0
    later = _C.read_manifest(str(tmp_path / "manifest"), boot=12345)
    assert [slot for _, _, slot, _ in later["chunks"]] == [1, 2] and later["unsynced_chunks"] == 4
    assert now["epoch"] == 1 and now["fingerprint"] == "f" and now["identity"] == manifest.identity
    manifest.close(10)
    with pytest.raises(InvalidInput, match="is not there"):
        _C.read_manifest(str(tmp_path / "nowhere"))


def test_files_of_random_bytes_are_judged_and_never_more(tmp_path):
    random = np.random.default_rng(5)
    for attempt in range(40):
        files = CacheFiles([tmp_path / str(attempt)], chunks={(0, 0): 1, (1, 80): 2})
        for path in (files.manifest_path, files.slab_path()):
            with open(path, "r+b") as file:
                size = os.path.getsize(path)
                for _ in range(random.integers(0, 4)):
                    file.seek(int(random.integers(0, min(size, 4096))))
                    file.write(random.bytes(int(random.integers(1, 9))))
        found = fsck(files.roots)
        assert exit_status(fsck(files.roots, repair=True)) == 0, found
        (after,) = fsck(files.roots)
        assert not after.unchecked and not after.problems, found
