"""`kvoffload ls`: what caches there are in a directory."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from kvoffload import _C
from kvoffload.cli.namespaces import Namespace, find, user_text
from kvoffload.errors import KVOffloadError

AGES = ((86400, "d"), (3600, "h"), (60, "min"))


@dataclass(frozen=True)
class Row:
    """A namespace in one directory. chunks: None where this directory has no manifest that can be read."""

    directory: str
    namespace: str
    disk_bytes: int
    chunks: int | None
    ranks: int
    opened: float
    users: list[int] | None


def rows(roots: Sequence[str]) -> list[Row]:
    """One for each namespace and directory, the last opened first. Raises InvalidInput."""
    listed = [_row(namespace) for namespace in find(roots)]
    return sorted((row for row in listed if row is not None), key=lambda row: -row.opened)


def _row(namespace: Namespace) -> Row | None:
    try:
        chunks = len(_C.read_manifest(str(namespace.path / "ledger/manifest"))["chunks"])
    except KVOffloadError:
        chunks = None
    try:
        ranks = sum(leaf != "ledger" for leaf in namespace.leaves)
        return Row(
            namespace.root, namespace.name, namespace.disk_bytes, chunks, ranks, namespace.opened, namespace.users()
        )
    except OSError:  # removed meanwhile
        return None


def as_text(listed: Sequence[Row], now: float | None = None) -> str:
    """A table for people.

    >>> print(as_text([Row("/nvme", "ab12cd34/dp0", 3 << 30, 1500, 1, opened=0, users=[77])], now=7300))
    directory  namespace         size  chunks  ranks  opened   in use by
    /nvme      ab12cd34/dp0  3.00 GiB   1,500      1  2 h ago  process 77
    """
    table = [("directory", "namespace", "size", "chunks", "ranks", "opened", "in use by")]
    for row in listed:
        chunks = "-" if row.chunks is None else f"{row.chunks:,}"
        used_by = "" if row.users is None else user_text(row.users)
        opened = age(max((time.time() if now is None else now) - row.opened, 0))
        table.append((row.directory, row.namespace, size(row.disk_bytes), chunks, str(row.ranks), opened, used_by))
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    right = {2, 3, 4}
    return "\n".join(
        "  ".join(
            cell.rjust(width) if i in right else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in table
    )


def as_dicts(listed: Sequence[Row]) -> list[dict[str, object]]:
    return [asdict(row) for row in listed]


def size(count: int) -> str:
    """
    >>> size(5 << 29), size(100)
    ('2.50 GiB', '100 B')
    """
    for power, unit in ((4, "TiB"), (3, "GiB"), (2, "MiB"), (1, "KiB")):
        if count >= 1024**power:
            return f"{count / 1024**power:.2f} {unit}"
    return f"{count} B"


def age(seconds: float) -> str:
    """
    >>> age(100), age(3), age(200_000)
    ('1 min ago', 'just now', '2 d ago')
    """
    return next((f"{int(seconds // each)} {unit} ago" for each, unit in AGES if seconds >= each), "just now")
