"""How much memory may still be taken: what is free, and what the cgroups that bind this process leave."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

UNKNOWN_BYTES = 8 << 30  # where nothing says what there is
# cgroup v2 and v1: controller, files of the limit and of the usage, fields of memory.stat that the kernel gives back.
_CGROUPS = (
    ("", "memory.max", "memory.current", ("inactive_file", "active_file")),
    ("memory", "memory.limit_in_bytes", "memory.usage_in_bytes", ("total_inactive_file", "total_active_file")),
)


def available_bytes(proc_root: str = "/proc", cgroup_root: str = "/sys/fs/cgroup") -> int:
    """MemAvailable, or what a cgroup's limit leaves where that is less. Advice: the arena checks what it takes.

    >>> available_bytes() > 0
    True
    """
    found = _fields(Path(proc_root, "meminfo"), ":").get("MemAvailable")
    available = UNKNOWN_BYTES if found is None else found << 10
    for controller, limit, usage, file_cache in _CGROUPS:
        for directory in _cgroup_dirs(proc_root, cgroup_root, controller):
            most = _number(directory / limit)
            if most is not None:
                cached = _fields(directory / "memory.stat", "")
                used = (_number(directory / usage) or 0) - sum(cached.get(name, 0) for name in file_cache)
                available = min(available, max(0, most - max(0, used)))
    return available


def _cgroup_dirs(proc_root: str, cgroup_root: str, controller: str) -> Iterator[Path]:
    """The group of this process and all above it; in a container its path may not exist, the root does."""
    top = Path(cgroup_root, controller)
    yield top
    for line in _lines(Path(proc_root, "self", "cgroup")):  # "4:cpu,memory:/a/b"; v2: "0::/a/b"
        _, controllers, path = (*line.split(":", 2), "", "")[:3]
        if controller in controllers.split(","):
            for part in path.strip("/").split("/"):
                top = top / part
                yield top


def _number(path: Path) -> int | None:
    """None for "max", and for v1's "no limit", which is close to 2^63."""
    text = "".join(_lines(path)[:1]).strip()
    return int(text) if text.isdigit() and int(text) < 1 << 60 else None


def _fields(path: Path, end: str) -> dict[str, int]:
    """Lines of "name number" (with `end` behind the name)."""
    words = [line.split() for line in _lines(path)]
    return {word[0].removesuffix(end): int(word[1]) for word in words if len(word) > 1 and word[1].isdigit()}


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:
        return []
