"""The command `kvoffload`, before anything is imported that only some of it needs."""

from __future__ import annotations

import sys

from kvoffload.cli import disk_commands


def main() -> None:
    if sys.argv[1:2] and sys.argv[1] in disk_commands.COMMANDS:
        sys.exit(disk_commands.run(sys.argv[1:]))
    from kvoffload.cli.main import app

    app(prog_name="kvoffload")
