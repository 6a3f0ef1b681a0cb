"""Eviction policies on the real traces of bench/policies: the default is good where each fixed policy fails."""

import sys
from pathlib import Path

import pytest

from kvoffload import _C
from kvoffload.errors import InvalidInput

sys.path.insert(0, str(Path(__file__).parents[2] / "bench" / "policies"))

from replay import CAPACITIES, TRACES, leading_hits, optimal_hits, read_trace


@pytest.fixture(scope="module", params=TRACES)
def trace(request):
    requests = read_trace(request.param)
    return request.param, requests, sum(map(len, requests))


WANTED = {
    ("conversation", 1024): 0.08,
    ("conversation", 4096): 0.154,
    ("conversation", 16384): 0.273,
    ("synthetic", 4096): 0.26,
    ("synthetic", 16384): 0.565,
}


@pytest.mark.parametrize("capacity", CAPACITIES)
def test_the_default_is_never_much_under_lru_and_s3fifo(trace, capacity):
    name, requests, blocks = trace
    default = leading_hits("adaptive", capacity, requests) / blocks
    for fixed in ("lru", "s3fifo"):
        assert default >= leading_hits(fixed, capacity, requests) / blocks - 0.01
    assert default >= WANTED.get((name, capacity), 0)


def test_no_policy_beats_the_one_that_knows_the_future(trace):
    _, requests, _ = trace
    best = max(leading_hits(policy, 4096, requests) for policy in ("lru", "s3fifo", "arc", "adaptive"))
    assert best < optimal_hits(4096, requests)


def test_optimal_hits_by_hand():
    # 1 2 are kept for the last request; 3 to 6 are never asked for again.
    requests = [[1, 2], [3, 4], [5, 6], [1, 2]]
    assert optimal_hits(2, requests) == 2
    assert leading_hits("lru", 2, requests) == 0
    # One fits: the start of the prefix is kept, not its end.
    assert optimal_hits(1, [[1, 2], [1, 2]]) == 1
    # A start that is gone makes what follows worthless.
    assert optimal_hits(3, [[1, 2, 3], [9, 2, 3]]) == 0


def test_replay_counts_leading_hits():
    replay = _C.PolicyReplay("adaptive", 4)
    assert replay.request([1, 2, 3]) == 0
    assert replay.request([1, 2, 7]) == 2
    assert replay.request([7]) == 1
    assert len(replay) == 4 and 7 in replay and 8 not in replay
    assert replay.policy_bytes > 0


def test_unknown_policies_are_refused():
    with pytest.raises(InvalidInput, match=r"lru, s3fifo, arc and adaptive"):
        _C.PolicyReplay("belady", 4)
    with pytest.raises(InvalidInput, match="entries = 0"):
        _C.PolicyReplay("lru", 0)
