"""`kvoffload bench transfer` on the host device, with tiny sizes: what it writes, says and refuses. No times."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("typer", reason="the extra `cli` is not installed")

from typer.testing import CliRunner

from kvoffload import _C
from kvoffload.cli import main
from kvoffload.cli.rig import Rig
from kvoffload.errors import Unsupported

REPO = Path(__file__).resolve().parents[2]
TINY = ["--device", "host", "--sizes", "4KiB,3000", "--count", "8", "--repeats", "2", "--host-memory", "8MiB"]


@pytest.fixture(autouse=True)
def wide(monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")  # so that no line of output is broken


def bench(*arguments):
    return CliRunner().invoke(main.app, ["bench", "transfer", *arguments])


def figures(tmp_path, *arguments):
    result = bench(*TINY, *arguments, "--json", str(tmp_path / "x.json"))
    assert result.exit_code == 0, result.output
    return json.loads((tmp_path / "x.json").read_text())


def test_as_a_command_of_its_own(tmp_path):
    pytest.importorskip("matplotlib", reason="the extra `cli` is not installed")
    command = [sys.executable, "-m", "kvoffload.cli", "bench", "transfer", *TINY, "--json", "x.json", "--plot", "x.png"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "plain memory stands in for a GPU" in done.stdout
    assert "load: host to device (h2d)" in done.stdout
    assert (tmp_path / "x.png").read_bytes().startswith(b"\x89PNG")
    cells = json.loads((tmp_path / "x.json").read_text())["cells"]
    assert len(cells) == 2 * 3 * 2  # sizes, directions, paths


def test_json_holds_what_is_needed_to_judge(tmp_path):
    found = figures(tmp_path, "--paths", "auto,kernel,staged,memcpy-batch")
    assert found["machine"]["device"] == _C.host_device().identity()
    assert found["path_table"]["source"]
    assert set(found["ceilings"]) == {"h2d", "d2h", "both_h2d", "both_d2h", "bytes"}
    assert [(c["page_bytes"], c["direction"], c["path"]) for c in found["cells"]] == [
        (size, way, path)
        for size in (4096, 3000)
        for way in ("h2d", "d2h", "both")
        for path in ("auto", "kernel", "staged", "memcpy-batch")
    ]
    for cell in found["cells"]:
        moved = 8 * cell["page_bytes"]
        assert cell["load_bytes"] == (0 if cell["direction"] == "d2h" else moved)
        assert cell["store_bytes"] == (0 if cell["direction"] == "h2d" else moved)
        assert cell["verified_bytes"] == cell["load_bytes"] + cell["store_bytes"]
        assert cell["taken"] == ("host" if cell["path"] == "auto" else cell["path"])
        assert len(cell["seconds"]["samples"]) == 2
        if cell["path"] == "memcpy-batch":
            assert not cell["reason"] and cell["device_seconds"] is None
        else:
            assert cell["reason"] and len(cell["device_seconds"]["samples"]) == 2
        assert cell["gb_per_s"] == pytest.approx(
            (cell["load_bytes"] + cell["store_bytes"]) / 1e9 / cell["seconds"]["median"]
        )


def test_mix_moves_fewer_of_the_other_direction(tmp_path):
    cells = figures(
        tmp_path, "--paths", "auto", "--direction", "both", "--mix", "1:4", "--sizes", "2MiB", "--host-memory", "64MiB"
    )["cells"]
    assert [(c["load_bytes"], c["store_bytes"]) for c in cells] == [(2 * 2**21, 8 * 2**21)]


def test_models_in_place_of_sizes(tmp_path):
    found = figures(tmp_path, "--model", "llama-3.2-1b:tp8:split, deepseek-v3:b1", "--host-memory", "64MiB")
    shapes = [
        (c["name"], c["page_bytes"], c["tensors"])
        for c in found["cells"]
        if (c["direction"], c["path"]) == ("h2d", "auto")
    ]
    assert shapes == [("llama-3.2-1b:tp8:split", 2048, 32), ("deepseek-v3:b1", 1152, 61)]


def test_fewer_blocks_where_memory_is_short(tmp_path):
    found = figures(
        tmp_path, "--sizes", "1MiB", "--count", "100", "--paths", "auto", "--direction", "h2d", "--host-memory", "32MiB"
    )
    (cell,) = found["cells"]
    assert cell["blocks"] < cell["blocks_asked"] == 100
    assert found["arena_bytes"] <= 32 * 2**20
    assert any(f"1 MiB: {cell['blocks']} blocks, not 100: memory is short" in note for note in found["notes"])


def test_pool_and_interference_say_what_they_did(tmp_path):
    found = figures(tmp_path, "--pool", "--interference", "--direction", "h2d")
    assert found["pool"]["bytes"] == 8 * 2**20
    assert "--interference is not run: there is no GPU to share" in found["notes"]
    assert found["interference"] == []


def test_without_a_gpu_it_runs_on_the_host(monkeypatch, tmp_path):
    def no_gpu(ordinal):
        raise Unsupported("no driver")

    monkeypatch.setattr(_C, "cuda_device", no_gpu)
    result = bench(*TINY[2:], "--direction", "h2d", "--json", str(tmp_path / "x.json"))
    assert result.exit_code == 0, result.output
    assert "no GPU here (no driver): plain memory stands in for a GPU" in result.stdout


def test_a_gpu_that_is_not_there_is_an_error(monkeypatch):
    def no_gpu(ordinal):
        raise Unsupported(f"no GPU {ordinal}")

    monkeypatch.setattr(_C, "cuda_device", no_gpu)
    result = bench("--device", "cuda:7")
    assert result.exit_code == 1
    assert "kvoffload: no GPU 7" in result.output


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--sizes", "4KiB,12 parsecs"], "sizes is '12 parsecs'; it must be a whole number of bytes"),
        (["--sizes", "4KiB,,8KiB"], "sizes is '4KiB,,8KiB'; give one value, or several"),
        (["--sizes", "0"], "sizes is '0'"),
        (["--paths", "auto,teleport"], "paths holds 'teleport'; known: auto, dma, kernel, staged"),
        (
            ["--paths", "dma"],
            "paths: 'dma' is not usable on host; usable here: auto, host, kernel, staged, memcpy-loop",
        ),
        (["--direction", "up"], "direction is 'up'; it must be one of h2d, d2h, both, all"),
        (["--mix", "3"], "mix is '3'; it must be loads:stores"),
        (["--model", "llama-3.1-8c"], "model 'llama-3.1-8c' is not known; did you mean 'llama-3.1-8b'?"),
        (["--model", "llama-3.1-8b:tp3"], "'tp3' is not known; after a colon may come: tp1, tp2, tp4, tp8"),
        (["--model", "deepseek-v3:split"], "one latent"),
        (["--host-memory", "much"], "host-memory is 'much'"),
        (["--device", "tpu"], "device is 'tpu'; it must be 'host' or 'cuda:N'"),
        (["--json", "no/such/folder.json"], "json is 'no/such/folder.json'; it must be a file in a folder that exists"),
        (["--plot", "x.txt"], "plot is 'x.txt'; it must end in .png, .svg or .pdf"),
        (["--count", "0"], "count is 0; it must be a whole number from 1 to 1000000"),
        (["--repeats", "-1"], "repeats is -1; it must be"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_wrong_options_are_named(arguments, expected, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = bench(*TINY, *arguments)
    assert result.exit_code == 2, result.output
    assert expected in result.output


def test_too_little_memory_is_an_error_that_says_how_much_is_needed():
    result = bench(*TINY, "--sizes", "16MiB")
    assert result.exit_code == 1
    assert "host memory 8 MiB is too little for these sizes: at least" in result.output
    assert "--host-memory" in result.output


def test_wrong_bytes_end_the_run(monkeypatch):
    def loads_nothing(self, index, store, path, **options):
        blocks, slots = self.ids(index, True)
        return self.mover.store(blocks, slots, group=index)

    monkeypatch.setattr(Rig, "submit", loads_nothing)
    result = bench(*TINY, "--direction", "h2d")
    assert result.exit_code == 1
    assert "WRONG BYTES: 8 of 8 pages, auto load of 4 KiB" in result.output


def test_a_failed_transfer_ends_the_run():
    _C.fault_arm("copy", 40, 1)  # the first ones prepare and verify
    try:
        result = bench(*TINY)
    finally:
        _C.fault_disarm_all()
    assert result.exit_code == 1
    assert "the transfer failed" in result.output


@pytest.mark.parametrize("command", ["transfer", "disk", "cache"])
def test_help_and_docs_have_the_same_options(command):
    assert command in CliRunner().invoke(main.app, ["bench", "--help"]).output
    text = CliRunner().invoke(main.app, ["bench", command, "--help"]).output
    (section,) = re.findall(
        rf"^## kvoffload bench {command}$(.+?)^## ", (REPO / "docs/cli.md").read_text(), re.M | re.S
    )
    documented = re.findall(r"`--([a-z-]+)`", section)
    offered = set(re.findall(r"--([a-z-]+)", text[text.index("Options:") :])) - {"help"}
    assert set(documented) == offered, "docs/cli.md and the command have different options"
