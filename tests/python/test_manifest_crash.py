"""A workload on the manifest is killed at random moments (tests/crash); bench/crash.py does it for longer."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

KILLS = Path(__file__).parents[1] / "crash/kills.py"


def kill(directory, kills, seed):
    command = [sys.executable, str(KILLS), "--kills", str(kills), "--seed", str(seed), "--dir", str(directory)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, timeout=280)
    return json.loads(done.stdout)


def check(tally):
    assert {name: tally[name] for name in ("wrong_bytes", "lost_committed", "lost_epochs", "leftovers")} == {
        "wrong_bytes": 0,
        "lost_committed": 0,
        "lost_epochs": 0,
        "leftovers": 0,
    }
    assert tally["checked"] > tally["kills"]
    assert tally["committed_share"] >= 0.5


def test_twenty_kills(tmp_path):
    check(kill(tmp_path, 20, seed=1))


@pytest.mark.long
@pytest.mark.parametrize("seed", range(2, 6))
def test_many_kills(tmp_path, seed):
    tally = kill(tmp_path, 500, seed)
    check(tally)
    assert min(tally["compactions"], tally["resets"], tally["kills_while_opening"]) > 10
