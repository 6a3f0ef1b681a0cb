"""Finding the caches in a directory, and who uses them. Needs nothing but Python (see docs/file-format.md)."""

from __future__ import annotations

import fcntl
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from kvoffload.errors import InvalidInput

MARK = b"kvoffload"  # a lock file of ours begins with it
LOCK_BYTES = 64
STAT_BLOCK_BYTES = 512
UNIT, RANK = re.compile(r"dp([0-9]{1,9})"), re.compile(r"rank([0-9]{1,9})")


@dataclass(frozen=True)
class Namespace:
    """What one engine keeps in one directory of its option `disk`."""

    root: str
    fingerprint: str
    dp: int

    @property
    def name(self) -> str:
        return f"{self.fingerprint}/dp{self.dp}"

    @property
    def path(self) -> Path:
        return Path(self.root, self.fingerprint, f"dp{self.dp}")

    @property
    def leaves(self) -> list[str]:
        """`ledger` and `rank<j>`, as far as they are there, ranks in order."""
        names = [entry.name for entry in _directories(self.path)]
        ranks = sorted((name for name in names if RANK.fullmatch(name)), key=lambda name: int(name[4:]))
        return [name for name in ("ledger", *ranks) if name in names]

    @property
    def opened(self) -> float:
        """When it was last opened, in seconds since 1970."""
        return (self.path / "lock").lstat().st_mtime

    @property
    def disk_bytes(self) -> int:
        """What it takes on disk."""
        return sum(_disk_bytes(path) for path in [self.path, *self.path.rglob("*")])

    def users(self) -> list[int] | None:
        """None: nobody has it open. Else the processes that have, as far as their lock files tell."""
        try:
            lock = _open(self.path / "lock")
        except OSError:  # it is gone
            return None
        with lock:
            if _free(lock.fileno()):
                return None
        pids = {_pid(self.path / leaf / "lock") for leaf in self.leaves} | {_pid(self.path / "lock")}
        return sorted(pid for pid in pids if pid and _lives(pid))


def find(roots: Sequence[str | os.PathLike[str]]) -> list[Namespace]:
    """All namespaces in these directories, in order. Raises InvalidInput for what cannot be read.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     find([folder])
    []
    """
    found = []
    for root in roots:
        try:
            os.scandir(root).close()
        except OSError as error:
            raise InvalidInput(f"{os.fspath(root)!r} is not a directory that can be read: {error.strerror}") from error
        for fingerprint in _directories(Path(root)):
            for unit in _directories(Path(fingerprint.path)):
                match = UNIT.fullmatch(unit.name)
                if match and _text(Path(unit.path, "lock")).startswith(MARK):
                    found.append(Namespace(os.fspath(root), fingerprint.name, int(match[1])))
    return found


def user_text(pids: Sequence[int]) -> str:
    """
    >>> user_text([12, 15]), user_text([])
    ('process 12, 15', 'an unknown process')
    """
    return f"process {', '.join(map(str, pids))}" if pids else "an unknown process"


def _open(path: Path) -> BinaryIO:
    flags = os.O_NOFOLLOW | os.O_NONBLOCK
    return open(path, "rb", buffering=0, opener=lambda name, mode: os.open(name, mode | flags))


def _free(fd: int) -> bool:
    """Takes it, until `fd` is closed: who opens the namespace just then tries again."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _text(path: Path) -> bytes:
    try:
        with _open(path) as lock:
            return lock.read(LOCK_BYTES)
    except OSError:
        return b""


def _pid(path: Path) -> int:
    digits = re.search(rb"[0-9]{1,9}", _text(path))
    return int(digits[0]) if digits else 0


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:  # another user's
        pass
    return True


def _directories(path: Path) -> Iterator[os.DirEntry[str]]:
    """In order of their names; nothing where it cannot be read. Links are not followed."""
    try:
        with os.scandir(path) as entries:
            yield from sorted((e for e in entries if e.is_dir(follow_symlinks=False)), key=lambda e: e.name)
    except OSError:
        return


def _disk_bytes(path: Path) -> int:
    try:
        return path.lstat().st_blocks * STAT_BLOCK_BYTES
    except OSError:  # gone meanwhile
        return 0
