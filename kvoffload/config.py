"""Reading options: sizes, and unknown keys."""

from __future__ import annotations

import difflib
import operator
import re
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from typing import Any

from kvoffload.errors import InvalidInput

_UNITS = {"": 1, "B": 1}
for _power, _letter in enumerate("KMGT", start=1):
    _UNITS[f"{_letter}B"] = 1000**_power
    _UNITS[f"{_letter}iB"] = 1024**_power
_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)")
_MOST_BYTES = 2**63 - 1
# For the manifest: of each slot a record with a key of 64 bytes, six times, since the file doubles before a new one
# takes its place, with some room; and how much it grows at least. Or so much of a small cap.
MANIFEST_SLOT_BYTES, MANIFEST_BYTES, MANIFEST_SHARE = 6 * 96, 16 << 20, 4
_ALLOWED = (
    "a whole number of bytes from 1 to 2^63 - 1, or text such as '64GiB', '1.5 MiB' or '10GB' (KB, MB, GB, TB = 10^3; "
    "KiB, MiB, GiB, TiB = 2^10)"
)


def parse_size(value: Any, option: str, *, or_none: bool = False) -> int:
    """`value` in bytes.

    value: int, whole float, or text: digits with an optional unit out of B, KB, MB, GB, TB (powers of 1,000) and KiB,
    MiB, GiB, TiB (powers of 1,024). option: the name of the option, for the message. or_none: 0 is allowed too.
    Raises InvalidInput for everything else, also for negative sizes, parts of a byte and bool.

    >>> parse_size("1.5 MiB", "host"), parse_size(0, "ring", or_none=True)
    (1572864, 0)
    """
    size = _size_of(value)
    if size is None or size.denominator != 1 or not (0 if or_none else 1) <= size <= _MOST_BYTES:
        raise InvalidInput(f"{option} is {value!r}; it must be {_ALLOWED}{', or 0 for none' if or_none else ''}")
    return int(size)


def format_size(size_bytes: int) -> str:
    """The number of bytes for people, in the largest unit that leaves at most two decimals of it exact.

    >>> format_size(4096), format_size(3 << 19), format_size(1000)
    ('4 KiB', '1.5 MiB', '1000 B')
    """
    for unit in ("TiB", "GiB", "MiB", "KiB"):
        if size_bytes >= _UNITS[unit] and size_bytes * 100 % _UNITS[unit] == 0:
            return f"{size_bytes / _UNITS[unit]:.2f}".rstrip("0").rstrip(".") + f" {unit}"
    return f"{size_bytes} B"


def check_flag(value: Any, option: str) -> bool:
    """`value` if it is True or False. Raises InvalidInput for anything else, text such as "false" above all.

    >>> check_flag(True, "calibrate")
    True
    """
    if not isinstance(value, bool):
        raise InvalidInput(f"{option} is {value!r}; allowed: true or false")
    return value


def _size_of(value: Any) -> Fraction | None:
    if isinstance(value, str):
        match = _SIZE.fullmatch(value.strip())
        if match is None or match[2] not in _UNITS:
            return None
        return Fraction(match[1]) * _UNITS[match[2]]
    if isinstance(value, bool):
        return None
    try:
        return Fraction(value) if isinstance(value, float) else Fraction(operator.index(value))
    except (TypeError, ValueError, OverflowError):  # no number; not a number; infinite
        return None


def check_options(given: Mapping[str, Any], known: Iterable[str], where: str) -> None:
    """Refuses unknown options.

    given: option -> value. known: all names that are allowed. where: what is being configured, for the message.
    Raises InvalidInput that names the unknown option, the nearest known one and all known ones.

    >>> check_options({"host": "1GiB"}, ["host", "disk"], "KVCache")
    """
    names = list(known)
    for option in given:
        if option in names:
            continue
        nearest = difflib.get_close_matches(str(option), names, n=1, cutoff=0.5)
        hint = f"did you mean {nearest[0]!r}? " if nearest else ""
        raise InvalidInput(f"{where} has no option {option!r}; {hint}known: {', '.join(names) or 'none'}")


def manifest_bytes(disk_bytes: int, slot_bytes: Sequence[int]) -> int:
    """How much of a disk of that size is the manifest's, its replacement included.

    >>> manifest_bytes(1 << 40, [1 << 20]) * 1000 < 1 << 40
    True
    """
    slots = disk_bytes // min(slot_bytes)
    return min(MANIFEST_BYTES + slots * MANIFEST_SLOT_BYTES, disk_bytes // MANIFEST_SHARE)
