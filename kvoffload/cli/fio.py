"""fio, where it is installed: how fast a file is for somebody else's program."""

from __future__ import annotations

import json
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvoffload.errors import KVOffloadError, Unsupported

ENGINES = ("io_uring", "libaio", "psync")
DEPTHS = (1, 4, 16, 64)
BLOCK_BYTES = (256 << 10, 1 << 20)
TRIAL_SECONDS = 0.5
HEADER_BYTES = 4096  # of a slab: left alone
RUN_SECONDS = 600


@dataclass(frozen=True)
class FioRun:
    """What one run of fio did: GB/s (10^9 bytes), CPU seconds for a GB, percentiles of a request's latency."""

    gb_per_s: float
    cpu_s_per_gb: float
    p50_seconds: float
    p99_seconds: float


@dataclass(frozen=True)
class FioJob:
    """How fio reads or writes."""

    engine: str
    block_bytes: int
    depth: int

    def __str__(self) -> str:
        return f"{self.engine}, {self.block_bytes >> 10} KiB, depth {self.depth}"


class Fio:
    """One file of `total_bytes` behind its header; direct: past the page cache. Raises Unsupported without fio."""

    def __init__(self, path: Path, total_bytes: int, *, direct: bool) -> None:
        program = shutil.which("fio")
        if program is None:
            raise Unsupported("fio is not on PATH")
        self._program, self._path, self._total_bytes, self._direct = program, path, total_bytes, direct

    def best(self, write: bool, record_bytes: int) -> FioJob:
        """The fastest of some short runs."""
        trials = []
        for block_bytes in sorted({*BLOCK_BYTES, record_bytes}):
            for depth in DEPTHS:
                for engine in ENGINES:
                    job = FioJob(engine, block_bytes, depth)
                    try:
                        trials.append((self.run(job, write, seconds=TRIAL_SECONDS).gb_per_s, job))
                        break
                    except Unsupported:  # not this engine, here
                        continue
        if not trials:
            raise Unsupported(f"fio can use none of {', '.join(ENGINES)} here")
        return max(trials, key=lambda trial: trial[0])[1]

    def run(self, job: FioJob, write: bool, seconds: float = 0) -> FioRun:
        """All of the file once, or as much as `seconds` allow. Raises Unsupported."""
        size = self._total_bytes // job.block_bytes * job.block_bytes
        command = [
            self._program, "--name=kvoffload", f"--filename={self._path}", f"--rw={'write' if write else 'read'}",
            f"--ioengine={job.engine}", f"--bs={job.block_bytes}", f"--iodepth={job.depth}", f"--offset={HEADER_BYTES}",
            f"--size={size}", f"--direct={int(self._direct)}", "--output-format=json", "--allow_file_create=0",
            "--invalidate=0", "--refill_buffers=0", "--thread",
        ]  # fmt: skip
        if write and not self._direct:
            command.append("--end_fsync=1")
        if seconds:
            command += [f"--runtime={seconds}", "--time_based=1"]
        return _read(self._call(command), "write" if write else "read")

    def _call(self, command: list[str]) -> dict[str, Any]:
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=RUN_SECONDS, check=False)
            output: dict[str, Any] = json.loads(done.stdout[done.stdout.index("{") :])
        except (OSError, subprocess.TimeoutExpired, ValueError) as error:
            raise Unsupported(f"fio failed: {error}") from error
        if done.returncode or output["jobs"][0]["error"]:
            raise Unsupported(f"fio failed: {done.stderr.strip() or output['jobs'][0]['error']}")
        return output


def _read(output: dict[str, Any], way: str) -> FioRun:
    job = output["jobs"][0]
    found = job[way]
    if not found["io_bytes"]:
        raise KVOffloadError("fio moved nothing")
    cpu_seconds = (job["usr_cpu"] + job["sys_cpu"]) / 100 * job["job_runtime"] / 1000
    percentiles = found["clat_ns"].get("percentile", {})
    return FioRun(
        gb_per_s=found["bw_bytes"] / 1e9,
        cpu_s_per_gb=cpu_seconds / (found["io_bytes"] / 1e9),
        p50_seconds=percentiles.get("50.000000", 0) / 1e9,
        p99_seconds=percentiles.get("99.000000", 0) / 1e9,
    )
