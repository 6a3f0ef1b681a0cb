"""Path tables are measured once and kept; whatever is wrong with the file costs a measurement and nothing else."""

import fcntl
import json
import os
import signal
import stat
import subprocess
import sys
import textwrap
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from path_engines import IDENTITY, FakeEngine, find, ignored_and_replaced, kept_file, measured_once_and_kept, some_rows

from kvoffload import path_file


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """The cache directory; nothing is in it yet."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    return tmp_path / "cache"


def test_what_was_measured_is_used_the_second_time(cache):
    first, second = FakeEngine(), FakeEngine(rows=[])
    table, again = find(first), find(second)
    assert first.measured == 1
    assert second.measured == 0
    assert table.source.endswith("on NVIDIA H200")
    assert again.source.startswith(f"read from {kept_file(cache)}, calibrated 20")
    assert [cell.row for cell in again.rows] == some_rows()
    assert again.rows == table.rows
    assert again.ceilings == (54.0, 55.0)


def test_the_file_is_the_users_own_and_nothing_else_is_left(cache):
    file = measured_once_and_kept(cache)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    assert {path.name for path in file.parent.iterdir()} == {file.name, "lock"}


@pytest.mark.parametrize(
    "other", [{"identity": IDENTITY.replace("PCIe 5", "PCIe 4")}, {"ring_bytes": 128 << 20}], ids=["link", "ring"]
)
def test_another_machine_or_ring_is_measured_anew(cache, other):
    measured_once_and_kept(cache)
    engine = FakeEngine(ring_bytes=other.pop("ring_bytes", 256 << 20))
    find(engine, **other)
    assert engine.measured == 1
    assert len(list((cache / "kvoffload").glob("paths-*.json"))) == 2


def with_row(**changes):
    """The file's content with one value of its first row changed."""

    def change(content):
        row = content["rows"][0]
        for name, value in changes.items():
            row[("store", "span_bytes", "spans", "path", "seconds").index(name)] = value

    return change


def with_field(**changes):
    return lambda content: content.update(changes)


WRONG = {
    "other format": with_field(format="something else"),
    "older version": with_field(version=path_file.VERSION - 1),
    "newer version": with_field(version=path_file.VERSION + 1),
    "of another GPU": with_field(key="NVIDIA A30, driver 13000, PCIe 4 x16, ring of 0 bytes"),
    "no date": with_field(date=20261130),
    "a date with a line break": with_field(date="2026-11-30\n"),
    "one ceiling": with_field(ceilings=[50.0]),
    "a ceiling that is no number": with_field(ceilings=["50", 50.0]),
    "a ceiling that is NaN": with_field(ceilings=[float("nan"), 50.0]),
    "no rows": lambda content: content.pop("rows"),
    "empty rows": with_field(rows=[]),
    "rows that are an object": with_field(rows={"a": 1}),
    "a row that is text": with_field(rows=["abcde"]),
    "a short row": lambda content: content["rows"][0].pop(),
    "a row twice": lambda content: content["rows"].append(content["rows"][0]),
    "a path missing": lambda content: content.update(rows=[row for row in content["rows"] if row[3] != "staged"]),
    "a direction missing": lambda content: content.update(rows=[row for row in content["rows"] if row[0]]),
    "seconds NaN": with_row(seconds=float("nan")),
    "seconds infinite": with_row(seconds=float("inf")),
    "seconds negative": with_row(seconds=-1e-3),
    "seconds 0": with_row(seconds=0),
    "seconds huge": with_row(seconds=10**400),
    "seconds true": with_row(seconds=True),
    "seconds text": with_row(seconds="0.1"),
    "store 1": with_row(store=1),
    "bytes 0": with_row(span_bytes=0),
    "bytes negative": with_row(span_bytes=-4096),
    "bytes a float": with_row(span_bytes=4096.0),
    "bytes beyond a word": with_row(span_bytes=1 << 80),
    "spans true": with_row(spans=True),
    "spans null": with_row(spans=None),
    "an unknown path": with_row(path="teleport"),
    "a path that is a list": with_row(path=["dma"]),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_value_is_ignored_and_replaced(cache, name):
    file = measured_once_and_kept(cache)
    content = json.loads(file.read_text())
    WRONG[name](content)
    file.write_text(json.dumps(content))
    ignored_and_replaced(cache)


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"\xff\xfe\x00", b"null", b"[]", b"[" * 100_000, b"1" * 10_000, b"\x80\x04K\x01."],
    ids=["empty", "cut", "no UTF-8", "null", "a list", "deep", "long number", "a pickle"],
)
def test_what_is_no_table_is_ignored_and_replaced(cache, content):
    measured_once_and_kept(cache).write_bytes(content)
    ignored_and_replaced(cache)


@settings(max_examples=200)
@given(st.binary(max_size=200), st.integers(0, 10_000), st.integers(0, 10_000))
def test_a_damaged_file_is_never_an_error(tmp_path_factory, junk, start, stop):
    """Junk in place of any part of the file."""
    folder = tmp_path_factory.mktemp("kept")
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("XDG_CACHE_HOME", str(folder))
        file = measured_once_and_kept(folder)
        good = file.read_bytes()
        file.write_bytes(good[: start % len(good)] + junk + good[stop % len(good) :])
        assert all(cell.seconds > 0 for cell in find(FakeEngine()).rows)


def test_a_file_that_is_too_large_is_ignored_and_replaced(cache):
    file = measured_once_and_kept(cache)
    with file.open("a") as out:
        out.write(" " * path_file.MOST_BYTES)
    ignored_and_replaced(cache)


def test_a_link_in_the_files_place_is_neither_read_nor_written_through(cache, tmp_path):
    file = measured_once_and_kept(cache)
    target = tmp_path / "elsewhere.json"
    file.rename(target)  # a good table, but not where it should be
    before = target.read_bytes()
    file.symlink_to(target)
    ignored_and_replaced(cache)
    assert target.read_bytes() == before


@pytest.mark.parametrize("writer", [False, True], ids=["alone", "with a writer"])
def test_a_pipe_in_the_files_place_blocks_nobody(cache, writer):
    file = measured_once_and_kept(cache)
    file.unlink()
    os.mkfifo(file)
    end = os.open(file, os.O_RDWR) if writer else None
    ignored_and_replaced(cache)
    if end is not None:
        os.close(end)


def test_a_folder_in_the_files_place_stays_and_the_table_is_used(cache):
    file = measured_once_and_kept(cache)
    file.unlink()
    file.mkdir()
    assert find(FakeEngine()).source.startswith("calibrated")
    assert {path.name for path in file.parent.iterdir()} == {file.name, "lock"}


def works_without_a_file():
    for _ in range(2):
        engine = FakeEngine()
        assert find(engine).source.startswith("calibrated")
        assert engine.measured == 1


@pytest.mark.parametrize("where", ["/proc/1/none", "/dev/null", "/dev/null/below"])
def test_a_folder_that_cannot_be_made_costs_only_the_file(monkeypatch, where):
    monkeypatch.setenv("XDG_CACHE_HOME", where)
    works_without_a_file()


@pytest.mark.parametrize("value", [None, "", "relative/home"])
def test_no_home_costs_only_the_file(monkeypatch, tmp_path, value):
    monkeypatch.chdir(tmp_path)
    for name in ("XDG_CACHE_HOME", "HOME"):
        if value is None:
            monkeypatch.delenv(name)
        else:
            monkeypatch.setenv(name, value)
    works_without_a_file()
    assert list(tmp_path.rglob("*.json")) == []


def test_without_xdg_it_is_under_home(monkeypatch, tmp_path):
    monkeypatch.delenv("XDG_CACHE_HOME")
    measured_once_and_kept(tmp_path / "home" / ".cache")


def test_a_folder_that_others_may_write_to_is_not_used(cache):
    file = measured_once_and_kept(cache)
    file.parent.chmod(0o777)
    works_without_a_file()


def test_a_link_in_the_folders_place_is_not_followed(cache, tmp_path):
    file = measured_once_and_kept(cache)
    file.parent.rename(tmp_path / "elsewhere")
    (cache / "kvoffload").symlink_to(tmp_path / "elsewhere")
    works_without_a_file()


@contextmanager
def failing(monkeypatch, name, wanted=lambda *_: True):
    """`os.name` fails as on a full disk where `wanted` says so."""
    real = getattr(os, name)

    def fail(*args, **options):
        if wanted(*args):
            raise OSError(28, "No space left on device")
        return real(*args, **options)

    with monkeypatch.context() as patch:
        patch.setattr(path_file.os, name, fail)
        yield


@pytest.mark.parametrize(
    ("call", "wanted"),
    [("open", lambda name, flags, *_: flags & os.O_EXCL), ("rename", lambda *_: True)],
    ids=["create", "rename"],
)
def test_a_disk_that_is_full_costs_only_the_file(cache, monkeypatch, call, wanted):
    with failing(monkeypatch, call, wanted):
        works_without_a_file()
    assert [path.name for path in (cache / "kvoffload").iterdir()] == ["lock"]


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full")
def test_a_write_that_fails_leaves_nothing_behind(cache, monkeypatch):
    real = os.open

    def onto_a_full_disk(name, flags, *rest, **options):
        fd = real(name, flags, *rest, **options)
        if flags & os.O_EXCL:
            full = real("/dev/full", os.O_WRONLY)
            os.dup2(full, fd)
            os.close(full)
        return fd

    monkeypatch.setattr(path_file.os, "open", onto_a_full_disk)
    works_without_a_file()
    assert [path.name for path in (cache / "kvoffload").iterdir()] == ["lock"]


def test_a_lock_that_another_process_never_gives_back_costs_only_the_file(cache, monkeypatch):
    monkeypatch.setattr(path_file, "LOCK_SECONDS", 0.01)
    (cache / "kvoffload").mkdir(parents=True, mode=0o700)
    with open(cache / "kvoffload" / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        works_without_a_file()
    assert list((cache / "kvoffload").glob("*.json")) == []
    ignored_and_replaced(cache)  # it was given back


def test_a_file_system_without_locks_costs_only_the_file(monkeypatch):
    def refuse(*_):
        raise OSError(37, "No locks available")

    monkeypatch.setattr(path_file.fcntl, "flock", refuse)
    works_without_a_file()


CHILD = """
import os, sys, time
from pathlib import Path
sys.path.insert(0, {tests!r})
from path_engines import FakeEngine
from kvoffload.paths import load_or_calibrate

class Engine(FakeEngine):
    def calibrate(self):
        busy = Path({busy!r})
        os.close(os.open(busy, os.O_CREAT | os.O_EXCL))  # fails while the other process measures
        time.sleep(0.4)
        busy.unlink()
        return super().calibrate()

engine = Engine()
print("ready", flush=True)
sys.stdin.readline()
load_or_calibrate(engine, sys.argv[1])
print(engine.measured, len(engine.table))
"""


@pytest.mark.parametrize(("identities", "measurements"), [(("A, 1", "A, 1"), 1), (("A, 1", "B, 1"), 2)])
def test_two_processes_measure_one_after_the_other(tmp_path, identities, measurements):
    """The second one of the same kind of GPU uses what the first one kept."""
    script = textwrap.dedent(CHILD.format(tests=str(Path(__file__).parent), busy=str(tmp_path / "busy")))
    root = str(Path(__file__).resolve().parents[2])
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([root, os.environ.get("PYTHONPATH", "")])}
    children = [
        subprocess.Popen(
            [sys.executable, "-c", script, identity],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment,
        )
        for identity in identities
    ]  # fmt: skip
    try:
        for child in children:
            assert child.stdout.readline() == "ready\n", child.communicate()[1]
        for child in children:
            child.stdin.write("go\n")
            child.stdin.flush()
        answers = [child.communicate(timeout=60) for child in children]
    finally:
        for child in children:
            child.send_signal(signal.SIGKILL)
    assert [child.returncode for child in children] == [0, 0], answers
    measured, rows = zip(*(map(int, out.split()) for out, _ in answers), strict=True)
    assert sum(measured) == measurements
    assert set(rows) == {len(some_rows())}
