"""A body that runs in a process of its own, tells an oracle what it does, and is killed."""

import os
import select
import signal
import sys
import time
import traceback
from collections.abc import Callable

Tell = Callable[..., None]


def run(body: Callable[[Tell], None], seconds: float | None = None, after: str = "") -> list[str]:
    """What `body(tell)` told until its end, or until SIGKILL so many seconds after it said `after`, or began.

    A body that raises is an error.
    """
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.close(reader)
            body(lambda *words: _write(writer, words))
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(status)
    os.close(writer)
    said = _listen(reader, seconds, after.encode())
    if seconds is not None:
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    while piece := os.read(reader, 1 << 16):
        said += piece
    os.close(reader)
    if status != (0 if seconds is None else signal.SIGKILL):
        raise SystemExit(f"the process ended by itself with status {status}; the last it said: {said[-200:]!r}")
    return said.decode().splitlines()


def _write(pipe: int, words: tuple[object, ...]) -> None:
    os.write(pipe, " ".join(map(str, words)).encode() + b"\n")  # whole lines, from any thread


def _listen(reader: int, seconds: float | None, after: bytes) -> bytearray:
    said, end = bytearray(), None
    while True:
        if end is None and seconds is not None and after in said:
            end = time.monotonic() + seconds
        left = None if end is None else max(end - time.monotonic(), 0)
        if left == 0 or select.select([reader], [], [], left)[0] == []:
            return said
        if not (piece := os.read(reader, 1 << 16)):
            return said
        said += piece
