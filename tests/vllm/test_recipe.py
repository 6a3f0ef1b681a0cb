"""The recipe's option names: what each becomes, what answers it, and what is refused."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("vllm", reason="vLLM is not installed; `make test-vllm` installs it")

from kvoffload.disk import DiskOptions
from kvoffload.errors import InvalidInput
from kvoffload.vllm import recipe, start
from kvoffload.vllm.options import Options

pytestmark = pytest.mark.vllm

GIB = 1 << 30
DISK = {"disk_path": "/d", "disk_size": "1TiB"}


@pytest.mark.parametrize(
    ("given", "options"),
    [
        ({"kv_device": "cpu", "kv_max_cpu_memory": 80}, Options(80 * GIB)),
        ({"kv_max_cpu_memory": 0.5}, Options(GIB // 2)),
        ({"kv_max_cpu_memory": "80"}, Options(80 * GIB)),
        ({"kv_max_cpu_memory": "80GB"}, Options(80 * GIB)),
        ({"kv_max_cpu_memory": " 1.5 gib"}, Options(3 * GIB // 2)),
        ({"kv_device": "cpu"}, Options(None)),
        ({"kv_device": "hybrid", "host": 7 * GIB, **DISK}, Options(7 * GIB, disk=DiskOptions(("/d",), 1 << 40))),
        (
            {"kv_device": "disk", "kv_max_cpu_memory": 1, "disk": "/d", "disk_size": "1TiB", "io_threads": 4},
            Options(GIB, disk=DiskOptions(("/d",), 1 << 40)),
        ),
        ({"kv_max_cpu_memory": 1, **DISK}, Options(GIB, disk=DiskOptions(("/d",), 1 << 40))),
    ],
)
def test_what_the_names_become(given: dict[str, Any], options: Options) -> None:
    assert Options.parse(given) == options


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"kv_max_cpu_memory": 1, "host": "1GiB"}, "'kv_max_cpu_memory' and 'host' say the same thing"),
        ({**DISK, "disk": "/d"}, "'disk_path' and 'disk' say the same thing"),
        ({"kv_device": "cpu", **DISK}, "'kv_device' = 'cpu' and 'disk_path' contradict"),
        ({"kv_device": "cpu", "disk": "/d", "disk_size": 1}, "'kv_device' = 'cpu' and 'disk' contradict"),
        ({"kv_device": "disk"}, "'kv_device' is 'disk', which needs 'disk'"),
        ({"kv_device": "hybrid", "host": "1GiB"}, "'kv_device' is 'hybrid', which needs 'disk'"),
        ({"kv_device": "gpu"}, "'kv_device' is 'gpu'; allowed: cpu, disk, hybrid"),
        ({"kv_device": "hybrid", "disk_path": "/d"}, "disk_size is missing"),
        *(
            ({"kv_max_cpu_memory": value}, "'kv_max_cpu_memory' is .*2\\^30 bytes")
            for value in (0, -1, True, None, [80], "80TB", "a lot", "", float("nan"), float("inf"))
        ),
    ],
)
def test_what_is_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        Options.parse(given)


@pytest.mark.parametrize("word", recipe.THREADS)
def test_what_is_not_needed_is_answered(word: str) -> None:
    options, (note,) = recipe.translate({word: 8, "host": "1GiB"})
    assert options == {"host": "1GiB"}
    assert note.startswith(f"{word} not needed")


def test_every_name_is_explained() -> None:
    page = (Path(__file__).resolve().parents[2] / "docs/vllm.md").read_text()
    rows = [line.split(" | ")[0] for line in page.splitlines() if line.startswith("| `")]
    explained = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    assert explained >= set(recipe.WORDS)


def test_one_line_answers_all(monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[str] = []
    monkeypatch.setattr(start.logger, "warning", lambda text, *values: lines.append(text % values))
    start.log_notes(recipe.translate({"host": "1GiB"})[1])
    assert lines == []
    start.log_notes(recipe.translate({"kv_device": "disk", "max_workers": 1, "io_threads": 2, **DISK})[1])
    (line,) = lines
    assert "kv_device 'disk': KV passes through host memory" in line
    assert "max_workers, io_threads not needed" in line
