"""`kvoffload bench disk` and `bench cache`, small: what they measure, write, say and refuse. No times."""

import gzip
import json
import os
import sys
from pathlib import Path

import pytest

pytest.importorskip("typer", reason="the extra `cli` is not installed")

from typer.testing import CliRunner

from kvoffload import _C
from kvoffload.cli import bench_disk, main
from kvoffload.cli.disk_rig import DiskRig
from kvoffload.errors import InvalidInput, KVOffloadError
from kvoffload.traces import conversation, parse

FAKE_FIO = Path(__file__).with_name("fake_fio.py")
TINY = ["--records", "64KiB,1MiB", "--at-once", "1,4", "--size", "4MiB", "--repeats", "2"]


@pytest.fixture(autouse=True)
def wide(monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")  # so that no line of output is broken
    monkeypatch.setattr(bench_disk, "CRC_BYTES", 8 << 20)
    yield
    _C.fault_disarm_all()


@pytest.fixture
def fio(tmp_path, monkeypatch):
    """A program of that name, the only one on PATH; the list of what it was asked."""
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "fio").write_text(f'#!/bin/sh\nexec "{sys.executable}" "{FAKE_FIO}" "$@"\n')
    (programs / "fio").chmod(0o755)
    monkeypatch.setenv("PATH", str(programs))
    monkeypatch.setenv("FAKE_FIO_LOG", str(tmp_path / "asked"))
    return lambda: [json.loads(line) for line in (tmp_path / "asked").read_text().splitlines()]


def bench(*arguments):
    return CliRunner().invoke(main.app, ["bench", *map(str, arguments)])


def figures(tmp_path, *arguments):
    result = bench(*arguments, "--json", tmp_path / "x.json")
    assert result.exit_code == 0, result.output
    return json.loads((tmp_path / "x.json").read_text()), result.output


def test_disk_measures_every_size_queue_and_number_at_once(tmp_path):
    where = tmp_path / "disk"
    where.mkdir()
    found, output = figures(tmp_path, "disk", where, *TINY, "--no-fio")
    io = {cell["io"] for cell in found["cells"]}
    assert io == {"io_uring", "threads"} or "io_uring is not measured" in output
    cells = {(cell["record_bytes"], cell["io"], cell["way"], cell["at_once"]) for cell in found["cells"]}
    assert len(found["cells"]) == len(cells) == 2 * len(io) * 2 * 2
    for cell in found["cells"]:
        assert cell["bytes"] == 4 << 20
        assert cell["seconds"] > 0 and cell["cpu_s_per_gb"] >= 0 and cell["p99_seconds"] >= cell["p50_seconds"] > 0
        assert cell["gb_per_s"] == pytest.approx(cell["bytes"] / cell["seconds"] / 1e9)
    best = max(cell["gb_per_s"] for cell in found["cells"] if cell["record_bytes"] == 1 << 20 and cell["way"] == "read")
    assert found["figures"]["disk.read.gb_per_s"] == best
    assert {"crc.gb_per_s", "disk.write.gb_per_s", "disk.cpu_s_per_gb.read", "disk.cpu_s_per_gb.write"} < set(
        found["figures"]
    )
    assert not any("fio" in key for key in found["figures"]) and "CPU s/GB" in output
    assert list(where.iterdir()) == [], "what was made there is gone"


def test_disk_takes_turns_with_fio_on_one_file(tmp_path, fio):
    found, output = figures(tmp_path, "disk", tmp_path, *TINY, "--io", "threads")
    asked = fio()
    assert {job["filename"].rsplit("/", 1)[1] for job in asked} == {"slab"}
    assert all(job["offset"] == "4096" and job["direct"] in "01" for job in asked)
    real = [job for job in asked if "runtime" not in job]
    assert [(job["rw"], job["ioengine"], job["bs"], job["iodepth"]) for job in real] == [
        (way, "libaio", str(1 << 20), "16") for way in ("write", "write", "read", "read")
    ], "the fastest of its trials, as often as ours"
    for way in ("read", "write"):
        (pairs,) = (pairs for pairs in found["pairs"] if pairs["way"] == way)
        ratios = sorted(a["gb_per_s"] / b["gb_per_s"] for a, b in zip(pairs["ours"], pairs["fio"], strict=True))
        assert len(ratios) == 2
        assert found["figures"][f"disk.{way}.ratio_to_fio"] == pytest.approx(sum(ratios) / 2)
        assert found["figures"][f"disk.cpu_s_per_gb.fio_{way}"] == pytest.approx(0.25)
        assert pairs["fio"][0]["p99_seconds"] == pytest.approx(2000 * 16 / 1e9)
    assert "of fio's best (libaio, 1024 KiB, depth 16), median of 2 pairs" in output


def test_disk_without_fio_says_so(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    found, output = figures(tmp_path, "disk", tmp_path, *TINY, "--io", "threads")
    assert found["pairs"] == [] and "not compared: fio is not on PATH" in output


def test_disk_measures_no_record_that_fails(tmp_path):
    with DiskRig(tmp_path, 65536, 16, 4, "threads") as rig:
        rig.run(True, 4)
        _C.fault_arm("record_payload", 3, 1)
        with pytest.raises(KVOffloadError, match="failed"):
            rig.run(False, 4)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--records", "5000"], "multiple of 4 KiB"),
        (["--records", "2GiB"], "at most 1 GiB"),
        (["--at-once", "0"], "1 to 1024"),
        (["--at-once", "four"], "whole numbers"),
        (["--io", "mmap"], "allowed: io_uring, threads"),
        (["--size", "1000TiB"], "bytes free"),
        (["--repeats", "0"], "from 1 to"),
    ],
)
def test_disk_refuses(tmp_path, arguments, said):
    result = bench("disk", tmp_path, *arguments)
    assert result.exit_code == 2 and said in result.output
    assert "must be one that exists" in bench("disk", tmp_path / "nowhere").output


CACHE = ["--tokens-per-block", "1", "--host", "8MiB", "--disk-size", "256MiB"]


def write_trace(path, requests):
    lines = [
        json.dumps({"timestamp": 0, "input_length": 512 * len(ids), "output_length": 1, "hash_ids": ids})
        for ids in requests
    ]
    path.write_bytes(gzip.compress("\n".join(lines).encode()))
    return path


def test_cache_finds_in_each_tier_what_must_be_there(tmp_path):
    first, others = list(range(20)), [list(range(100 * i, 100 * i + 20)) for i in range(1, 5)]
    trace = write_trace(tmp_path / "trace.gz", [first, first, *others, first])
    where = tmp_path / "disk"
    where.mkdir()
    found, output = figures(tmp_path, "cache", "--trace", trace, "--dir", where, *CACHE, "--write-through", "--settle")
    totals = found["totals"]
    assert totals["requests"] == 7 and totals["tokens"] == 7 * 20 * 512
    # The second finds host memory's. Then that (60 blocks) holds the others, so that the last needs the disk's.
    assert found["host_hit_tokens"] >= 20 * 512 and found["disk_hit_tokens"] > 0
    assert found["host_hit_tokens"] + found["disk_hit_tokens"] == totals["hit_tokens"] == 2 * 20 * 512
    assert found["hit_ratio"] == totals["hit_tokens"] / totals["tokens"]
    assert totals["verified_bytes"] == totals["loaded_bytes"] >= totals["hit_blocks"] * found["block_bytes"]
    assert totals["stored_bytes"] == (7 * 20 - totals["hit_blocks"]) * found["block_bytes"]
    assert found["written_bytes"] > 0 and found["read_bytes"] > 0
    assert totals["wrong_bytes"] == 0 and "every byte verified" in output and "more hit with the disk" in output
    assert list(where.iterdir()) == []


def test_cache_plays_the_excerpt(tmp_path):
    found, _ = figures(tmp_path, "cache", "--requests", "12", *CACHE)
    played = list(conversation())[:12]
    assert found["totals"]["tokens"] == sum(request.input_tokens for request in played)


def test_cache_fails_when_bytes_are_wrong(tmp_path, monkeypatch):
    monkeypatch.setattr("kvoffload.cli.replay.Device.wrong_bytes", lambda *_: 3)
    trace = write_trace(tmp_path / "trace.gz", [[1, 2], [1, 2]])
    result = bench("cache", "--trace", trace, *CACHE)
    assert result.exit_code == 1 and "WRONG BYTES" in result.output and "12 wrong" in result.output


def test_cache_counts_records_that_do_not_verify(tmp_path):
    first, others = list(range(20)), [list(range(100 * i, 100 * i + 20)) for i in range(1, 6)]
    trace = write_trace(tmp_path / "trace.gz", [first, *others, first])
    _C.fault_arm("record_payload", 0, 1)
    found, output = figures(tmp_path, "cache", "--trace", trace, *CACHE, "--write-through", "--settle")
    assert found["bad_records"] == {"checksum": 1} and "records not right: checksum" in output
    assert found["totals"]["wrong_bytes"] == 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--trace", "nowhere"], "No such file"),
        (["--trace", "/dev/null"], "no request"),
        (["--requests", "0"], "from 1 to"),
        (["--dir", "nowhere"], "must be a directory that exists"),
        (["--admission", "most"], "give one of"),
        (["--io", "mmap"], "allowed: auto, io_uring, threads"),
        (["--disk-size", "much"], "disk-size"),
    ],
)
def test_cache_refuses(arguments, said):
    result = bench("cache", *CACHE, *arguments)
    assert result.exit_code == 2 and said in result.output


@pytest.mark.parametrize("content", [b"\x1f\x8bnot packed", b"[1]", b"{}", b'{"timestamp": "x"}', b"\xff"])
def test_a_trace_that_is_none(content):
    with pytest.raises(InvalidInput, match="this trace"):
        list(parse(content))


def test_the_disk_is_left_as_it_was_when_a_tier_cannot_be_opened(tmp_path):
    os.chmod(tmp_path, 0o700)
    _C.fault_arm("slab_open", 0, 1)
    with pytest.raises(KVOffloadError):
        DiskRig(tmp_path, 65536, 16, 4, "threads")
    assert list(tmp_path.iterdir()) == []
