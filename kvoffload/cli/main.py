"""The command `kvoffload`: a list of what there is. `python -m kvoffload.cli` is the same."""

from __future__ import annotations

import sys

try:
    import typer

    from kvoffload.cli.bench_transfer import transfer
except ImportError as missing:
    sys.exit(f"kvoffload's command line needs {missing.name}: pip install 'kvoffload[cli]'")

# Plain errors and help: lines that can be copied and searched.
app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, pretty_exceptions_enable=False, add_completion=False)
bench = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Measure this machine.")
app.add_typer(bench, name="bench")
bench.command("transfer")(transfer)


@app.callback()
def main() -> None:
    """KV-cache offload for LLM inference."""


if __name__ == "__main__":
    app()
