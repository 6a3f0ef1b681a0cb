"""The command `kvoffload`: a list of what there is. `python -m kvoffload.cli` is the same."""

from __future__ import annotations

import sys

try:
    import typer

    from kvoffload.cli.bench_cache import cache
    from kvoffload.cli.bench_disk import disk
    from kvoffload.cli.bench_transfer import transfer
except ImportError as missing:
    sys.exit(f"kvoffload's command line needs {missing.name} (fsck and ls do not): pip install 'kvoffload[cli]'")

from kvoffload.cli import disk_commands

# Plain errors and help: lines that can be copied and searched.
app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, pretty_exceptions_enable=False, add_completion=False)
bench = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Measure this machine.")
app.add_typer(bench, name="bench")
bench.command("transfer")(transfer)
bench.command("disk")(disk)
bench.command("cache")(cache)

# These read their options themselves (disk_commands.py).
_AS_THEY_ARE = {"allow_extra_args": True, "ignore_unknown_options": True}


@app.command("fsck", context_settings=_AS_THEY_ARE, add_help_option=False)
def fsck(context: typer.Context) -> None:
    """Check what caches keep on disk, and repair it."""
    raise typer.Exit(disk_commands.run(["fsck", *context.args]))


@app.command("ls", context_settings=_AS_THEY_ARE, add_help_option=False)
def ls(context: typer.Context) -> None:
    """List the caches in a directory."""
    raise typer.Exit(disk_commands.run(["ls", *context.args]))


@app.callback()
def main() -> None:
    """KV-cache offload for LLM inference."""


if __name__ == "__main__":
    app()
