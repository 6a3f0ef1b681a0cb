"""Option names of a widespread recipe for LMCache: translated into ours, or answered with what replaces them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from kvoffload.errors import InvalidInput

DEVICES = ("cpu", "disk", "hybrid")
THREADS = ("max_workers", "num_threads", "io_threads", "disk_io_threads")
RENAMED = {"kv_max_cpu_memory": "host", "disk_path": "disk"}
WORDS = ("kv_device", *RENAMED, *THREADS)
_GB = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*(?:GB?|GiB)?", re.IGNORECASE)


def translate(given: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """The options in our words, and a line for each that has no counterpart here.

    Raises InvalidInput where both vocabularies say something about the same thing, and for values not understood.

    >>> translate({"kv_device": "hybrid", "kv_max_cpu_memory": 80, "disk_path": "/nvme/kv", "disk_size": "1TB"})
    ({'disk_size': '1TB', 'host': 85899345920, 'disk': '/nvme/kv'}, [])
    """
    ours = {name: value for name, value in given.items() if name not in WORDS}
    for theirs, name in RENAMED.items():
        if theirs not in given:
            continue
        if name in ours:
            raise InvalidInput(f"options {theirs!r} and {name!r} say the same thing: give only {name!r}")
        ours[name] = _bytes_of(given[theirs]) if name == "host" else given[theirs]
    notes = _check_device(given, ours) if "kv_device" in given else []
    threads = [name for name in THREADS if name in given]
    if threads:
        notes.append(
            f"{', '.join(threads)} not needed: kvoffload finds the threads for host memory and the depth of disk I/O "
            "by itself (the start line shows what it found)"
        )
    return ours, notes


def _bytes_of(value: Any) -> int:
    """Their GB are 2^30 bytes, also where the unit is written."""
    match = _GB.fullmatch(str(value).strip())
    size = Fraction(match[1]) * (1 << 30) if match else Fraction(0)
    if size < 1:
        raise InvalidInput(
            f"option 'kv_max_cpu_memory' is {value!r}; allowed: a number of GB (2^30 bytes) above 0, such as 80, or "
            "give 'host' with a unit, such as \"80GiB\""
        )
    return int(size)


def _check_device(given: Mapping[str, Any], ours: Mapping[str, Any]) -> list[str]:
    device = given["kv_device"]
    if device not in DEVICES:
        raise InvalidInput(f"option 'kv_device' is {device!r}; allowed: {', '.join(DEVICES)}")
    disk = next((name for name in ("disk_path", "disk") if given.get(name) is not None), None)
    if device == "cpu" and disk is not None:
        raise InvalidInput(f"options 'kv_device' = 'cpu' and {disk!r} contradict each other: leave one of them out")
    if device != "cpu" and disk is None:
        raise InvalidInput(f"option 'kv_device' is {device!r}, which needs 'disk' (or 'disk_path') and 'disk_size'")
    if device == "disk":
        return ["kv_device 'disk': KV passes through host memory, which also keeps what fits into 'host'"]
    return []
