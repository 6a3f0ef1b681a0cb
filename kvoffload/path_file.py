"""Where measured path tables are kept between runs, and the lock that lets one process measure at a time.

A folder of the user's own that others cannot write to; files in it are opened relative to it and never through a link.
What cannot be read, or is not what this version writes, counts as not there. Nothing here raises.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import logging
import os
import re
import secrets
import stat
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

logger = logging.getLogger("kvoffload")

FORMAT = "kvoffload paths"
VERSION = 2  # raise it when a path's speed changes: what older versions measured is then measured again
MOST_BYTES = 1 << 20
LOCK_SECONDS = 10.0
_LOCK_POLL_SECONDS = 0.05
_MOST_GB_PER_S = 1e5
_SAFE = os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK  # the last so that a planted FIFO blocks nobody


@dataclass(frozen=True, slots=True)
class Kept:
    """What a file says. `date` and `ceilings` have been checked, `rows` is whatever JSON it holds."""

    date: str
    ceilings: tuple[float, float]
    rows: object


@dataclass(slots=True)
class Folder:
    """The folder of kept tables, or none where there can be none: then nothing is read or written.

    `path`: where it is. A context manager.
    """

    path: str = ""
    _fd: int = field(default=-1, init=False)

    def __enter__(self) -> Folder:
        try:
            self.path = self.path or _default_path()
            os.makedirs(self.path, mode=0o700, exist_ok=True)
            self._fd = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | _SAFE)
            about = os.fstat(self._fd)
            if about.st_uid != os.geteuid() or about.st_mode & 0o022:
                self.__exit__()
                raise PermissionError(f"{self.path} can be written by other users")
        except (OSError, ValueError) as error:  # ValueError: a null byte in the name
            logger.info("kvoffload: path tables are not kept: %s", error)
        return self

    def __exit__(self, *_: object) -> None:
        if self._fd >= 0:
            os.close(self._fd)
        self._fd = -1

    def path_of(self, key: str) -> str:
        return os.path.join(self.path, _name_of(key))

    @contextlib.contextmanager
    def alone(self) -> Iterator[bool]:
        """Holds the lock of this folder; False when it could not be had within `LOCK_SECONDS`, or there is none."""
        fd = -1
        try:
            if self._fd >= 0:
                fd = os.open("lock", os.O_RDWR | os.O_CREAT | _SAFE, 0o600, dir_fd=self._fd)
            locked = fd >= 0 and _lock(fd)
        except OSError as error:
            logger.info("kvoffload: no lock in %s: %s", self.path, error)
            locked = False
        try:
            yield locked
        finally:
            if fd >= 0:
                os.close(fd)  # and with it the lock

    def read(self, key: str) -> Kept | None:
        """What is kept under `key`; None when there is nothing that this version wrote for this key."""
        if self._fd < 0:
            return None
        try:
            return _parse(self._read_bytes(_name_of(key)), key)
        except FileNotFoundError:
            return None
        except (OSError, ValueError, RecursionError) as error:
            logger.info("kvoffload: %s is ignored: %s", self.path_of(key), error)
            return None

    def write(self, key: str, kept: Kept) -> None:
        """Keep it under `key`, in place of whatever is there: written anew and renamed, so never half a file."""
        if self._fd < 0:
            return
        content = {"format": FORMAT, "version": VERSION, "key": key, "date": kept.date, "ceilings": kept.ceilings}
        text = json.dumps({**content, "rows": kept.rows}) + "\n"
        new = f"new-{secrets.token_hex(8)}"
        try:
            fd = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _SAFE, 0o600, dir_fd=self._fd)
            try:
                with open(fd, "w", encoding="utf-8") as file:
                    file.write(text)
                os.rename(new, _name_of(key), src_dir_fd=self._fd, dst_dir_fd=self._fd)
            except OSError:
                os.unlink(new, dir_fd=self._fd)
                raise
        except OSError as error:
            logger.info("kvoffload: %s is not kept: %s", self.path_of(key), error)

    def _read_bytes(self, name: str) -> bytes:
        fd = os.open(name, os.O_RDONLY | _SAFE, dir_fd=self._fd)
        with open(fd, "rb") as file:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                raise ValueError("it is no regular file")
            content = file.read(MOST_BYTES + 1)
        if len(content) > MOST_BYTES:
            raise ValueError(f"it is larger than {MOST_BYTES} bytes")
        return content


def _default_path() -> str:
    """Raises FileNotFoundError when the environment names no home. A relative XDG_CACHE_HOME does not count."""
    cache, home = os.environ.get("XDG_CACHE_HOME", ""), os.environ.get("HOME", "")
    if os.path.isabs(cache):
        return os.path.join(cache, "kvoffload")
    if os.path.isabs(home):
        return os.path.join(home, ".cache", "kvoffload")
    raise FileNotFoundError("neither XDG_CACHE_HOME nor HOME names a folder")


def _name_of(key: str) -> str:
    return f"paths-{hashlib.sha256(key.encode()).hexdigest()[:16]}.json"


def _lock(fd: int) -> bool:
    deadline = time.monotonic() + LOCK_SECONDS
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if time.monotonic() >= deadline:
                return False
            time.sleep(_LOCK_POLL_SECONDS)


def _parse(content: bytes, key: str) -> Kept:
    """Raises ValueError that says what is wrong."""
    found = json.loads(content)
    if not isinstance(found, dict):
        raise ValueError("it holds no JSON object")
    for name, expected in (("format", FORMAT), ("version", VERSION), ("key", key)):
        if found.get(name) != expected:
            raise ValueError(f"{name} is {str(found.get(name))[:80]!r}, not {expected!r}")
    date, ceilings = found.get("date"), found.get("ceilings")
    if not isinstance(date, str) or not re.fullmatch(r"[0-9]{4}-[0-9]{2}-[0-9]{2}", date):
        raise ValueError("it has no date")
    if not isinstance(ceilings, list) or len(ceilings) != 2 or not all(map(_is_rate, ceilings)):
        raise ValueError("ceilings are no two rates in GB/s")
    return Kept(date, (float(ceilings[0]), float(ceilings[1])), found.get("rows"))


def _is_rate(value: Any) -> bool:
    return type(value) in (int, float) and 0 <= value <= _MOST_GB_PER_S
