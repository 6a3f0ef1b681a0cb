"""Reading the options of `bench transfer`: an InvalidInput names the value that is wrong and what is allowed."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from kvoffload.cli.models import Shape
from kvoffload.cli.plot import check_matplotlib
from kvoffload.cli.rig import DIRECTIONS, RAW_PATHS
from kvoffload.errors import InvalidInput

PATHS = ("auto", "dma", "kernel", "staged", *RAW_PATHS)
ALL = tuple(DIRECTIONS)


@dataclass(frozen=True)
class Options:
    """What was asked, read and checked. device, host_bytes: None means that it is for us to choose."""

    shapes: list[Shape]
    models: bool
    count: int
    paths: list[str] | None
    directions: list[str]
    repeats: int
    mix: tuple[int, int]  # loads : stores
    interference: bool
    pool: bool
    host_bytes: int | None
    device: str | None


def shapes_of(text: str, read: Callable[[str], Shape], option: str) -> list[Shape]:
    shapes = [read(part) for part in _parts(text, option)]
    return list(dict.fromkeys(shapes))


def _parts(text: str, option: str) -> list[str]:
    parts = [part.strip() for part in text.split(",")]
    if not all(parts):
        raise InvalidInput(f"{option} is {text!r}; give one value, or several with a comma between them")
    return parts


def paths_of(text: str) -> list[str]:
    known = (*PATHS, "host")
    parts = list(dict.fromkeys(_parts(text, "paths")))
    for part in parts:
        if part not in known:
            raise InvalidInput(f"paths holds {part!r}; known: {', '.join(known)}")
    return parts


def directions_of(text: str) -> list[str]:
    if text not in (*ALL, "all"):
        raise InvalidInput(f"direction is {text!r}; it must be one of {', '.join(ALL)}, all")
    return list(ALL) if text == "all" else [text]


def number_of(value: int, most: int, option: str) -> int:
    if not 1 <= value <= most:
        raise InvalidInput(f"{option} is {value}; it must be a whole number from 1 to {most}")
    return value


def mix_of(text: str) -> tuple[int, int]:
    match = re.fullmatch(r"([1-9][0-9]{0,2}):([1-9][0-9]{0,2})", text.strip())
    if match is None:
        raise InvalidInput(f"mix is {text!r}; it must be loads:stores, two whole numbers from 1 to 999, such as '3:1'")
    return int(match[1]), int(match[2])


def check_files(json_file: Path | None, plot: Path | None) -> None:
    """Before minutes of measuring, not after."""
    for option, file in (("json", json_file), ("plot", plot)):
        if file is not None and (file.is_dir() or not file.absolute().parent.is_dir()):
            raise InvalidInput(f"{option} is {str(file)!r}; it must be a file in a folder that exists")
    if plot is not None:
        if plot.suffix not in (".png", ".svg", ".pdf"):
            raise InvalidInput(f"plot is {str(plot)!r}; it must end in .png, .svg or .pdf")
        check_matplotlib()
