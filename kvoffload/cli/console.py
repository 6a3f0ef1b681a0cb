"""What the measuring commands have in common on the terminal: a progress bar, and errors in one line."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from kvoffload.errors import InvalidInput, KVOffloadError


@contextmanager
def errors_in_a_line() -> Iterator[None]:
    """A bad option ends the command as typer's own checks do (exit code 2), another KVOffloadError with 1."""
    try:
        yield
    except InvalidInput as error:
        raise typer.BadParameter(str(error)) from error
    except KVOffloadError as error:
        typer.echo(f"kvoffload: {error}", err=True)
        raise typer.Exit(1) from error


def bar(text: str) -> Progress:
    """A progress bar on stderr that is gone when it ends."""
    columns = TextColumn(text), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    return Progress(*columns, console=Console(stderr=True), transient=True)


@contextmanager
def measuring(steps: int) -> Iterator[Callable[[], None]]:
    """A bar of so many steps; what it gives is called after each."""
    with bar("measuring") as progress:
        task = progress.add_task("measuring", total=steps)
        yield lambda: progress.advance(task)
