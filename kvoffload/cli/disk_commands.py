"""`kvoffload fsck` and `kvoffload ls`, which need the wheel alone: options and output by the standard library."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence

from kvoffload.cli import fsck, ls
from kvoffload.errors import KVOffloadError

COMMANDS = ("fsck", "ls")
CANNOT = 2  # as argparse exits


def run(arguments: Sequence[str]) -> int:
    """Runs the command that `arguments` begin with; its exit status.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     run(["fsck", folder])
    no caches there
    0
    """
    options = _parser().parse_args(arguments)
    try:
        return _fsck(options) if options.command == "fsck" else _ls(options)
    except KVOffloadError as error:
        print(f"kvoffload: {error}", file=sys.stderr)
        return CANNOT


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="kvoffload")
    commands = parser.add_subparsers(dest="command", required=True)
    check = commands.add_parser("fsck", help="check what caches keep on disk", description=fsck.__doc__)
    check.add_argument("--repair", action="store_true", help="remove what is not believed")
    listing = commands.add_parser("ls", help="list the caches in a directory", description=ls.__doc__)
    for command in (check, listing):
        command.add_argument("directories", nargs="+", metavar="DIR", help="all directories of the option `disk`")
        command.add_argument("--json", action="store_true", help="print JSON")
    return parser


def _fsck(options: argparse.Namespace) -> int:
    found = fsck.fsck(options.directories, repair=options.repair)
    _print(options, fsck.as_dicts(found), "\n".join(map(fsck.as_text, found)))
    return fsck.exit_status(found)


def _ls(options: argparse.Namespace) -> int:
    rows = ls.rows(options.directories)
    _print(options, ls.as_dicts(rows), ls.as_text(rows) if rows else "")
    return 0


def _print(options: argparse.Namespace, values: list[dict[str, object]], text: str) -> None:
    print(json.dumps(values, indent=1) if options.json else text or "no caches there")
