"""bench/summary.py: the summary is a function of the raw files, and those in the repository agree with it."""

import json
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).parents[2] / "bench"
sys.path.insert(0, str(BENCH))

from results import percentile  # noqa: E402
from summary import main, summarise  # noqa: E402


def raw(folder, name, date, **metrics):
    record = {"metrics": metrics, "date": date, "commit": "c" + date}
    (folder / name).write_text(json.dumps(record))


def test_the_newest_raw_file_counts(tmp_path):
    raw(tmp_path, "b.json", "2026-01-01", x=1, y=2)
    raw(tmp_path, "a.json", "2026-01-02", x=3)
    assert summarise(tmp_path) == {
        "x": {"value": 3, "raw": "a.json", "commit": "c2026-01-02"},
        "y": {"value": 2, "raw": "b.json", "commit": "c2026-01-01"},
    }


def test_check_fails_where_the_summary_was_edited(tmp_path):
    raw(tmp_path, "a.json", "2026-01-02", x=3)
    assert main([str(tmp_path)]) == 0
    assert main(["--check", str(tmp_path)]) == 0
    (tmp_path / "summary.json").write_text((tmp_path / "summary.json").read_text().replace("3", "4"))
    assert main(["--check", str(tmp_path)]) == 1


@pytest.mark.parametrize("folder", sorted((BENCH / "results").glob("*/")), ids=lambda path: path.name)
def test_published_summaries_are_what_their_raw_files_say(folder):
    assert main(["--check", str(folder)]) == 0


@pytest.mark.parametrize(("percent", "expected"), [(50, 50), (99, 99), (99.9, 100), (1, 1)])
def test_percentile(percent, expected):
    assert percentile(list(range(100, 0, -1)), percent) == expected
