"""Sizes and unknown options."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import kvoffload as kv
from kvoffload.config import check_options, parse_size


@pytest.mark.parametrize(
    ("value", "size"),
    [
        (1, 1),
        (2**63 - 1, 2**63 - 1),
        (4096.0, 4096),
        (np.int64(7), 7),
        ("123", 123),
        ("64GiB", 64 * 2**30),
        (" 1.5 MiB ", 3 * 2**19),
        ("10GB", 10**10),
        ("0.1 GB", 10**8),
        ("12 B", 12),
        ("2TiB", 2**41),
        ("3KB", 3000),
    ],
)
def test_sizes(value, size):
    assert parse_size(value, "host") == size


@pytest.mark.parametrize(
    "value",
    [
        *(None, True, False, 0, -1, 0.0, 1.5, math.nan, math.inf, 2**63, [], b"1GiB", np.True_),
        *("", "GiB", "10g", "1gib", "10 G", "-1GiB", "1e9", "0GiB", "0.3 KiB", "1 000", "1GiB 2", "1_000", "٣GiB"),
    ],
)
def test_what_is_no_size_is_refused_with_the_option_and_what_is_allowed(value):
    with pytest.raises(kv.InvalidInput) as error:
        parse_size(value, "host")
    assert "host is " + repr(value) in str(error.value)
    assert "64GiB" in str(error.value)


@given(st.integers(1, 2**20), st.sampled_from(["KB", "MB", "GB", "TB", "KiB", "MiB", "GiB", "TiB"]))
def test_units_are_exact(number, unit):
    base = 1024 if "i" in unit else 1000
    assert parse_size(f"{number}{unit}", "host") == number * base ** ("KMGT".index(unit[0]) + 1)


def test_known_options_pass():
    check_options({}, [], "Mover")
    check_options({"host": 1, "disk": None}, iter(("host", "disk", "threads")), "Mover")


def test_an_unknown_option_names_the_nearest_and_all_known_ones():
    with pytest.raises(kv.InvalidInput, match=r"Mover has no option 'hots'; did you mean 'host'.*known: disk, host"):
        check_options({"disk": 1, "hots": 2}, ["disk", "host", "threads"], "Mover")
    with pytest.raises(kv.InvalidInput, match="no option 'zzzz'; known: disk, host"):
        check_options({"zzzz": 1}, ["disk", "host"], "Mover")
