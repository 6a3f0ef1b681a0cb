"""Kills and power cuts, and what was found afterwards: crash.*, powercut.*, disk.crash.* and disk.powercut.*.

    crash.py [--kills 600] [--cuts 2000] [--disk-cuts 400] [--cpp-test build/dev/tests/cpp/ledger_test]

The kills are tests/crash/kills.py's: a process on a real file system, SIGKILL, an oracle outside. The power cuts are
ManifestPower's: a disk in memory that drops and reorders what was not synced. disk.*: a whole KVCache with a disk,
tests/crash/disk_kills.py, half of the runs with io_uring and half with threads.
"""

import argparse
import collections
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import results

REPO = Path(__file__).resolve().parent.parent


def kills(count: int) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as directory:
        command = [sys.executable, str(REPO / "tests/crash/kills.py"), "--kills", str(count), "--dir", directory]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout)


def disk_runs(count: int, *options: str) -> dict[str, int]:
    tally: collections.Counter[str] = collections.Counter()
    for io in ("io_uring", "threads"):
        with tempfile.TemporaryDirectory() as directory:
            given = ["--runs", str(count // 2), "--io", io, "--dir", directory, *options]
            command = [sys.executable, str(REPO / "tests/crash/disk_kills.py"), *given]
            done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=True)
        tally.update(json.loads(done.stdout))
    return tally


def power_cuts(program: Path, count: int) -> dict[str, float]:
    with tempfile.NamedTemporaryFile(suffix=".json") as report:
        command = [str(program), "--gtest_filter=ManifestPower.*", f"--gtest_output=json:{report.name}"]
        subprocess.run(
            command, env={**os.environ, "KVO_POWER_CUTS": str(count)}, stdout=subprocess.DEVNULL, check=False
        )
        (suite,) = json.load(report)["testsuites"]
    (test,) = suite["testsuite"]
    return {name: int(value) for name, value in test.items() if isinstance(value, str) and value.isdigit()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=600)
    parser.add_argument("--cuts", type=int, default=2000)
    parser.add_argument("--disk-cuts", type=int, default=400)
    parser.add_argument("--cpp-test", type=Path, default=REPO / "build/dev/tests/cpp/ledger_test")
    arguments = parser.parse_args()
    killed, cut = kills(arguments.kills), power_cuts(arguments.cpp_test, arguments.cuts)
    metrics = {f"crash.{name}": killed[name] for name in ("kills", "wrong_bytes", "lost_committed", "committed_share")}
    metrics["powercut.runs"] = cut["cuts"]
    metrics |= {f"powercut.{name}": cut[name] for name in ("wrong_bytes", "lost_durable")}
    disk_killed, disk_cut = disk_runs(arguments.kills), disk_runs(arguments.disk_cuts, "--cuts")
    metrics["disk.crash.kills"], metrics["disk.powercut.runs"] = disk_killed["runs"], disk_cut["runs"]
    metrics |= {f"disk.crash.{name}": disk_killed[name] for name in ("wrong_bytes", "lost_committed")}
    metrics |= {f"disk.powercut.{name}": disk_cut[name] for name in ("wrong_bytes", "lost_durable")}
    results.write(
        "crash", metrics, kills=killed, power_cuts=cut, disk_kills=disk_killed, disk_power_cuts=disk_cut
    )  # fmt: skip


if __name__ == "__main__":
    main()
