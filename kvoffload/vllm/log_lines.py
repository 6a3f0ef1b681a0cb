"""Lines of the logger `kvoffload` under vLLM, which shows those of its own loggers only."""

from __future__ import annotations

import logging

OURS, SHOWN = "kvoffload", "vllm.kvoffload"


class Forward(logging.Handler):
    """Hands lines on to a logger of vLLM's, whose level and handlers then decide. Touches no handler but this one."""

    def emit(self, record: logging.LogRecord) -> None:
        shown = logging.getLogger(SHOWN)
        if logging.getLogger().handlers:
            return  # the root logger shows it
        if shown.isEnabledFor(record.levelno):
            shown.handle(record)


def show_log_lines() -> None:
    """Once in a process, and not where somebody has configured the logger."""
    ours = logging.getLogger(OURS)
    if ours.handlers:
        return
    ours.addHandler(Forward())
    if ours.level == logging.NOTSET:
        ours.setLevel(logging.getLogger(SHOWN).getEffectiveLevel())
