"""Lines of the logger `kvoffload` come out where vLLM's do."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

pytest.importorskip("vllm", reason="vLLM is not installed; `make test-vllm` installs it")

from kvoffload.vllm.log_lines import OURS, SHOWN, show_log_lines

pytestmark = pytest.mark.vllm


class Keeping(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> Iterator[Keeping]:
    """As in a process of vLLM's: a handler at `vllm`. pytest's own are at the root."""
    keeping = Keeping()
    ours, theirs = logging.getLogger(OURS), logging.getLogger("vllm")
    monkeypatch.setattr(theirs, "handlers", [keeping])
    monkeypatch.setattr(theirs, "propagate", False)
    monkeypatch.setattr(ours, "handlers", [])
    level = ours.level, theirs.level, logging.getLogger(SHOWN).level
    ours.setLevel(logging.NOTSET)
    theirs.setLevel(logging.INFO)
    logging.getLogger(SHOWN).setLevel(logging.NOTSET)
    yield keeping
    ours.setLevel(level[0])
    theirs.setLevel(level[1])
    logging.getLogger(SHOWN).setLevel(level[2])


def test_lines_are_shown_once_by_vllms_handlers(shown: Keeping, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    log = logging.getLogger(OURS)
    log.info("before")
    assert shown.lines == []
    show_log_lines()
    show_log_lines()
    log.info("%d bytes", 5)
    log.debug("too fine")
    logging.getLogger(SHOWN).setLevel(logging.ERROR)
    log.warning("not wanted")
    assert shown.lines == ["5 bytes"]


def test_where_the_root_logger_shows_them_they_are_not_shown_twice(shown: Keeping) -> None:
    at_root = Keeping()
    show_log_lines()
    logging.getLogger().addHandler(at_root)
    logging.getLogger(OURS).info("one")
    assert (shown.lines, at_root.lines) == ([], ["one"])


def test_a_logger_that_somebody_configured_stays_as_it_is(shown: Keeping) -> None:
    theirs = Keeping()
    log = logging.getLogger(OURS)
    log.addHandler(theirs)
    log.setLevel(logging.WARNING)
    show_log_lines()
    log.info("fine")
    log.warning("one")
    assert (log.handlers, shown.lines, theirs.lines) == ([theirs], [], ["one"])
