"""One raw result file for each run of a benchmark: the figures, and all that is needed to judge or repeat them."""

import datetime
import json
import math
import os
import platform
import subprocess
import sys
from importlib import metadata
from pathlib import Path


def _line(*command: str) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=30, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return "unknown"


def _versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for name in ("numpy", "torch", "cupy-cuda13x", "vllm", "lmcache"):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def machine() -> dict[str, object]:
    gpu, _, driver = _line("nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader").partition(", ")
    return {
        "gpu": gpu,
        "driver": driver,
        "kernel": platform.release(),
        "cores": os.cpu_count(),
        "versions": _versions(),
    }


def write(name: str, metrics: dict[str, float], **details: object) -> None:
    """Writes $OUT/<name>.json and prints the metrics, one a line. KVO_COMMIT names the commit where .git is absent."""
    commit = os.environ.get("KVO_COMMIT") or _line("git", "rev-parse", "HEAD")
    record = {
        "metrics": {key: round(value, 4) for key, value in metrics.items()},
        "commit": commit,
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "command": " ".join([Path(sys.executable).name, *(Path(a).name if a.startswith("/") else a for a in sys.argv)]),
        "machine": machine(),
        "details": details,
    }
    out = Path(os.environ.get("OUT", "."))
    out.mkdir(parents=True, exist_ok=True)
    (out / f"{name}.json").write_text(json.dumps(record, indent=1) + "\n")
    for key, value in record["metrics"].items():
        print(f"{key:48} {value:>14,.4g}", flush=True)


def percentile(samples: list[float], percent: float) -> float:
    """The smallest sample that at least `percent` of all do not exceed."""
    ordered = sorted(samples)
    return ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)]


def spread(samples: list[float]) -> dict[str, float]:
    """How samples are spread, in place of thousands of numbers."""
    return {f"p{percent}": round(percentile(samples, percent), 2) for percent in (0, 10, 50, 90, 99, 99.9, 100)}
