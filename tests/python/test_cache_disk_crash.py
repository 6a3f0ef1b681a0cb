"""A cache on real files is killed at random moments, and its power is cut (tests/crash); bench/crash.py does more."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from disk_scenarios import rig_or_skip

KILLS = Path(__file__).parents[1] / "crash/disk_kills.py"
IO = ("io_uring", "threads")


def play(directory, io, runs, seed, *options):
    rig_or_skip(directory / "tried", io).cache.close()
    given = ["--io", io, "--runs", str(runs), "--seed", str(seed), "--dir", str(directory), *options]
    done = subprocess.run([sys.executable, str(KILLS), *given], stdout=subprocess.PIPE, text=True, check=True)
    tally = json.loads(done.stdout)
    wrong = ("wrong_bytes", "lost_committed", "lost_durable", "lost_epochs")
    assert {name: tally[name] for name in wrong} == dict.fromkeys(wrong, 0)
    assert tally["committed"] > 3 * runs, "nothing was shown"
    return tally


@pytest.mark.parametrize("io", IO)
def test_some_kills(tmp_path, io):
    assert play(tmp_path, io, 12, 1)["committed_checked"] > 60


@pytest.mark.parametrize("io", IO)
def test_some_power_cuts(tmp_path, io):
    tally = play(tmp_path, io, 12, 2, "--cuts")
    assert min(tally["durable_checked"], tally["sectors_lost"]) > 30


@pytest.mark.long
@pytest.mark.parametrize("io", IO)
@pytest.mark.parametrize("seed", [3, 4])
def test_many_kills(tmp_path, io, seed):
    tally = play(tmp_path, io, 300, seed)
    assert min(tally["killed_while_opening"], tally["reset"]) > 10


@pytest.mark.long
@pytest.mark.parametrize("io", IO)
@pytest.mark.parametrize("seed", [5, 6])
def test_many_power_cuts(tmp_path, io, seed):
    tally = play(tmp_path, io, 200, seed, "--cuts")
    assert min(tally["killed_while_flushing"], tally["reset"]) > 10
