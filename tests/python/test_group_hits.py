"""Hits over several KV groups, against a model that asks for every token whether its chunk is there."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvoffload import _C
from kvoffload.errors import InvalidInput
from kvoffload.hits import GroupHit, GroupKeys
from kvoffload.ledger import Ledger
from kvoffload.messages import Hello, JobResult, Results

SLOT_BYTES = 4096
CHUNKS = 12
EXTENTS = 8  # of a tier, for each group; one has a slot for each of CHUNKS
FULL = None


@dataclass
class Group:
    index: int
    tokens_per_chunk: int
    window_tokens: int | None
    places: list[str]  # of its chunks, from the one that start_tokens lies in: a word of h(ost), d(isk), f(illing)
    keys: list[bytes] = field(init=False)

    def __post_init__(self) -> None:
        self.keys = [f"group {self.index} chunk {i}".ljust(32).encode() for i in range(len(self.places))]

    def given(self) -> GroupKeys:
        return GroupKeys(self.index, self.keys, self.tokens_per_chunk, self.window_tokens)

    def keys_in(self, place: str) -> list[bytes]:
        return [key for key, places in zip(self.keys, self.places, strict=True) if place in places]

    def needed(self, start: int, end: int) -> set[int]:
        """The chunks for a hit up to `end`, token by token."""
        first = start if self.window_tokens is None else max(start, end - self.window_tokens)
        return {token // self.tokens_per_chunk - start // self.tokens_per_chunk for token in range(first, end)}


def hit_end(groups: list[Group], start: int, places: str) -> int:
    """The last token up to which every group has in one of `places` all that it needs."""
    most = min((start // group.tokens_per_chunk + len(group.places)) * group.tokens_per_chunk for group in groups)
    unit = math.lcm(*(group.tokens_per_chunk for group in groups))
    for end in range(most, start, -1):
        chunks = [group.places[i] for group in groups for i in group.needed(start, end)]
        if end % unit == 0 and all(set(chunk) & set(places) for chunk in chunks):
            return end
    return start


def make_directory(groups: list[Group]) -> _C.Directory:
    directory = _C.Directory(1, policy="lru")
    tier_bytes = len(groups) * EXTENTS * CHUNKS * SLOT_BYTES
    directory.open(tier_bytes, [SLOT_BYTES] * len(groups))
    directory.grow(tier_bytes)
    directory.open_disk(tier_bytes, epoch=0, next_sequence=1)
    for group in groups:
        for i, key in enumerate(group.keys_in("d")):
            assert directory.restore(group.index, group.index * CHUNKS + i, key, sequence=1)
        store(directory, group.index, group.keys_in("h"))
        directory.plan_store(group.index, group.keys_in("f"), 10.0)
    return directory


def store(directory: _C.Directory, group: int, keys: list[bytes]) -> None:
    planned = directory.plan_store(group, keys, 10.0)
    if planned:
        directory.report(0, [(planned[0], True, [], [])])


def new_keys(count: int) -> list[bytes]:
    return [f"new {i}".ljust(32).encode() for i in range(count)]


places = st.sampled_from(["h", "h", "h", "hd", "d", "f", "fd", ""])
one_group = st.tuples(
    st.sampled_from([1, 2, 3, 4, 6]),
    st.one_of(st.none(), st.just(1), st.integers(0, 20)),
    st.lists(places, max_size=CHUNKS),
)
start_tokens = st.one_of(st.just(0), st.integers(0, 20))


@settings(max_examples=300, deadline=None)
@given(drawn=st.lists(one_group, min_size=1, max_size=3), start=start_tokens)
def test_hits_are_those_of_the_model(drawn: list[tuple[int, int | None, list[str]]], start: int) -> None:
    groups = [Group(i, *group) for i, group in enumerate(drawn)]
    directory = make_directory(groups)
    in_host, anywhere = (hit_end(groups, start, tiers) for tiers in ("h", "hd"))
    needed = [group.needed(start, in_host) for group in groups]
    host_tokens, tokens, keys, hold = directory.lookup_groups([group.given() for group in groups], start, True)
    assert (host_tokens, tokens) == (in_host, anywhere)
    assert keys == sum(map(len, needed))
    assert (hold > 0) == (keys > 0)

    beyond = sum(len(group.needed(start, anywhere) - there) for group, there in zip(groups, needed, strict=True))
    stats = directory.stats()
    counted = stats["lookup_keys"], stats["hit_keys"], stats["disk_hit_keys"]
    assert counted == (sum(len(group.keys) for group in groups), keys, beyond)

    # All that is not held goes when other keys need its slots.
    for group in groups:
        store(directory, group.index, new_keys(len(groups) * EXTENTS * CHUNKS))
        states = directory.states(group.index, group.keys)
        assert {i for i, state in enumerate(states) if state == "ready"} == needed[group.index]
    directory.release(hold)
    assert directory.stats()["holds"] == 0
    assert directory.check() == ""


# Attention's KV is there for every chunk, the recurrent layers' state only where some request ended.
@given(st.integers(0, 40), st.integers(1, 40), st.sampled_from([1, 3, 4]), st.sampled_from([FULL, 1, 2, 5, 8, 99]))
def test_python_names_the_keys_that_the_directory_holds(start, chunks, per_chunk, window):
    group = Group(0, per_chunk, window, ["h"] * chunks)
    keys = group.given()
    end = (start // per_chunk + chunks) * per_chunk
    if end > start:
        assert list(keys.needed(start, end)) == [group.keys[i] for i in sorted(group.needed(start, end))]
        beyond = keys.beyond(start, end - per_chunk, end) if end - per_chunk > start else keys.needed(start, end)
        assert beyond[-1] == group.keys[-1] and (window is not None or end - per_chunk <= start or len(beyond) == 1)


@pytest.mark.parametrize(
    ("attention", "states", "expected"),
    [
        ("hhhhhh", "  h  h", 24),
        ("hhhhhh", "  h   ", 12),  # missing at the end, there before it
        ("hhhhhh", "     h", 24),
        ("hhhhhh", "      ", 0),  # all of the attention's is worth nothing without a state
        ("hhhh h", "     h", 0),
        ("hhhh h", " h   h", 8),
        ("dddddd", "  h  d", 0),
    ],
)
def test_attention_and_recurrent_layers(attention: str, states: str, expected: int) -> None:
    groups = [
        Group(0, 4, FULL, [place.strip() for place in attention]),
        Group(1, 4, 1, [place.strip() for place in states]),
    ]
    assert make_directory(groups).lookup_groups([group.given() for group in groups], 0, False)[0] == expected


def make_ledger() -> Ledger:
    ledger = Ledger(policy="lru")
    ledger.hello(Hello(0, (SLOT_BYTES,) * 2, (1, 1), 32 * SLOT_BYTES, 32 * SLOT_BYTES, "f", False, "host"))
    return ledger


def test_a_hold_keeps_what_the_hit_needs_until_it_is_released() -> None:
    groups = [Group(0, 4, FULL, ["h"] * 4), Group(1, 8, 1, ["h"] * 2)]
    given = [group.given() for group in groups]
    ledger = make_ledger()
    assert ledger.hold_groups(given)[0].keys_held == 0
    for group in groups:
        job = ledger.plan_store(group.keys, [0] * len(group.keys), group.index)
        assert job is not None
        ledger.apply(Results(0, (JobResult(job.id, True, 0, 0.0),)))
    assert ledger.lookup_groups(given) == GroupHit(16, 16)
    assert ledger.stats()["holds"] == 0
    behind = [group._replace(keys=group.keys[8 // group.tokens_per_chunk :]) for group in given]
    hold, hit = ledger.hold_groups(behind, start_tokens=8)
    assert (hold.keys_held, hit) == (3, GroupHit(16, 16))
    assert ledger.stats()["holds"] == 1
    hold.release()
    assert ledger.stats()["holds"] == 0
    ledger.check()


def test_a_tier_that_is_off_has_no_hits() -> None:
    group = Group(0, 4, FULL, ["hd", "h", "d"])
    directory = make_directory([group])
    assert directory.lookup_groups([group.given()], 0, False)[:2] == (8, 12)
    directory.plan_store(0, new_keys(6), 10.0)
    directory.expire(11.0)
    assert directory.tier_off
    for asked in (group.given(), GroupKeys(0, group.keys_in("d"), 4)):
        assert directory.lookup_groups([asked], 0, True) == (0, 0, 0, 0)


def test_only_what_is_needed_becomes_the_most_recently_used() -> None:
    group = Group(0, 4, 8, ["h"] * CHUNKS)
    directory = make_directory([group])
    directory.lookup_groups([group.given()], 0, False)
    store(directory, 0, new_keys(EXTENTS * CHUNKS - 2))
    assert directory.states(0, group.keys) == ["absent"] * (CHUNKS - 2) + ["ready"] * 2


@pytest.mark.parametrize(
    ("given", "start", "message"),
    [
        (GroupKeys(0, [], 0), 0, "tokens_per_chunk = 0: give 1 to"),
        (GroupKeys(0, [], 2**31 + 1), 0, "tokens_per_chunk = 2147483649: give 1 to"),
        (GroupKeys(0, [], 4, -1), 0, "window_tokens = -1: give 0 to"),
        (GroupKeys(0, [], 4), -1, "start_tokens = -1: give 0 to"),
        (GroupKeys(2, [], 4), 0, "group = 2: this ledger has groups 0 to 1"),
        (GroupKeys(0, [b"short"], 4), 0, r"keys\[0\] is 5 bytes long"),
    ],
)
def test_refusals(given: GroupKeys, start: int, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        make_ledger().lookup_groups([given], start)
