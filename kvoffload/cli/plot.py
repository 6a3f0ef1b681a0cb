"""Speed by block size as a picture."""

from __future__ import annotations

import importlib
from pathlib import Path

from kvoffload.cli.report import TITLES, Report
from kvoffload.errors import Unsupported


def check_matplotlib() -> None:
    """Raises Unsupported where matplotlib is missing, before anything is measured."""
    try:
        importlib.import_module("matplotlib")
    except ImportError:
        raise Unsupported("--plot needs matplotlib: pip install 'kvoffload[cli]'") from None


def save_plot(report: Report, file: Path) -> None:
    """One panel for each direction, one line for each path; the format follows the file's suffix. Raises OSError."""
    # The object interface: pyplot would look for a display.
    from matplotlib.figure import Figure

    directions = list(dict.fromkeys(cell.direction for cell in report.cells))
    figure = Figure(figsize=(5.5 * len(directions), 4.5), layout="constrained")
    for place, direction in enumerate(directions, 1):
        axes = figure.add_subplot(1, len(directions), place)
        cells = [cell for cell in report.cells if cell.direction == direction]
        names = list(dict.fromkeys(cell.row.shape.name for cell in cells))
        for path in dict.fromkeys(cell.path for cell in cells):
            line = [cell for cell in cells if cell.path == path]
            places = [names.index(cell.row.shape.name) for cell in line]
            wide = 2.5 if path == "auto" else 1.2
            axes.plot(places, [cell.gb_per_s for cell in line], marker="o", linewidth=wide, label=path)
        axes.axhline(cells[0].ceiling_gb_per_s, color="gray", linestyle="--", linewidth=1, label="ceiling")
        axes.set_xticks(range(len(names)), names, rotation=45, ha="right")
        axes.set_title(TITLES[direction])
        axes.set_xlabel("block")
        axes.set_ylabel("GB/s, call to last byte")
        axes.set_ylim(bottom=0)
        axes.grid(alpha=0.3)
        axes.legend(fontsize="small")
    figure.suptitle(str(report.machine["device"]))
    figure.savefig(file, dpi=130)
