"""The rule by which hits are taken or refused. No clock: speeds and times are made up."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvoffload.errors import InvalidInput
from kvoffload.messages import Job, JobResult
from kvoffload.prefill import LEAST_SAMPLES, Work
from kvoffload.worth import (
    BUSY_WEIGHT,
    COLD_TOKEN_SECONDS,
    MOST_SURPRISE,
    SLACK_SECONDS,
    TRY_ONE_IN,
    USUAL_DISK_BYTES_PER_SECOND,
    TierSpeed,
    Worth,
)  # fmt: skip

SLOT, CHUNK = 1 << 20, 16
TOKEN_BYTES = SLOT // CHUNK


def job(number, kind="load", chunks=1):
    return Job(number, kind, 0, (), tuple(range(chunks)))


def move(worth, kind, bytes_per_second, chunks=16, ranks=1, number=1):
    """A load or promotion that went at this speed."""
    worth.began(job(number, kind, chunks))
    for rank in range(ranks):
        worth.took(rank, [JobResult(number, True, chunks * SLOT, chunks * SLOT / bytes_per_second)])
    worth.ended(number)


def make(mode="auto", prefill=None, load=None, promote=None, probed=0):
    """prefill: seconds a token; load, promote: bytes a second, seen often enough to be believed. None: not known."""
    worth = Worth(mode, [SLOT], [CHUNK], probed)
    if prefill is not None:
        for tokens in range(1, LEAST_SAMPLES + 1):
            worth.note(Work.of(tokens * 100, 0), tokens * 100 * prefill)
    for kind, speed in (("load", load), ("promote", promote)):
        for _ in range(40 if speed is not None else 0):
            move(worth, kind, speed)
    return worth


def test_before_there_are_samples_the_probed_speed_decides_for_the_disk_and_host_hits_are_taken():
    limit = TOKEN_BYTES / COLD_TOKEN_SECONDS
    assert make(probed=limit * 1.01).best_end(0, 32, 64) == 64
    assert make(probed=limit * 0.99).best_end(0, 32, 64) == 32
    assert make(probed=limit * 0.99).best_end(0, 0, 64) == 0
    assert make(probed=limit * 1.01, promote=1.0, load=1.0).best_end(0, 32, 64) == 64  # measured, but against what?
    assert limit > USUAL_DISK_BYTES_PER_SECOND and make().best_end(0, 32, 64) == 32


def test_of_a_window_only_its_end_is_loaded():
    worth = Worth("auto", [SLOT, SLOT], [CHUNK, CHUNK], window_tokens=[None, 2 * CHUNK])
    for kind in ("load", "promote"):
        for _ in range(40):
            move(worth, kind, 1.0)
    assert worth.load_seconds(0, 10 * CHUNK, 10 * CHUNK) == pytest.approx((10 + 2) * SLOT)
    assert worth.load_seconds(9 * CHUNK, 10 * CHUNK, 10 * CHUNK) == pytest.approx((1 + 1) * SLOT)
    assert worth.load_seconds(0, 9 * CHUNK, 10 * CHUNK) == pytest.approx((10 + 2 + 1 + 1) * SLOT)


@pytest.mark.parametrize(
    ("load", "promote", "end"),
    [
        pytest.param(10, 10, 640, id="both faster than computing"),
        pytest.param(10, 1, 320, id="cut: the disk is slower than computing, host memory is not"),
        pytest.param(0.5, 10, 0, id="the link is slower than computing"),
        pytest.param(1.9, 1.9, 320, id="through both tiers it takes the sum of both"),
        pytest.param(2.1, 1e9, 640, id="all of it by the link alone"),
    ],
)
def test_the_best_of_all_host_and_nothing(load, promote, end):
    """Speeds in tokens a unit of time in which one is computed."""
    rate = TOKEN_BYTES / 1e-3
    assert make(prefill=1e-3, load=load * rate, promote=promote * rate).best_end(0, 320, 640) == end


def test_a_disk_hit_needs_what_host_memory_has_before_it():
    worth = make(prefill=1e-3, load=1.2 * TOKEN_BYTES / 1e-3, promote=100 * TOKEN_BYTES / 1e-3)
    assert worth.best_end(0, 0, 640) == 640
    assert worth.best_end(0, 320, 640) == 640


def test_only_what_the_engine_lacks_comes_from_the_disk():
    rate = TOKEN_BYTES / 1e-3
    assert make(prefill=1e-3, load=1e15, promote=1.5 * rate).best_end(320, 0, 640) == 640


@pytest.mark.parametrize(("late", "end"), [(0.5, 640), (1.5, 0)])
def test_what_is_slower_by_less_than_the_slack_is_taken(late, end):
    seconds = 640 * 1e-6 + late * SLACK_SECONDS
    assert make(prefill=1e-6, load=640 * TOKEN_BYTES / seconds).best_end(0, 640, 640) == end


def test_what_is_queued_comes_first_and_is_gone_once_it_has_ended():
    rate = 10 * TOKEN_BYTES / 1e-3
    worth = make(prefill=1e-3, load=rate, promote=rate)
    worth.began(job(8, "promote", 1000))
    assert worth.best_end(0, 320, 640) == 320
    worth.began(job(9, "load", 1000))
    assert worth.best_end(0, 320, 640) == 0
    worth.ended(9)
    assert worth.best_end(0, 320, 640) == 320
    worth.ended(8)
    worth.ended(8)
    assert worth.best_end(0, 320, 640) == 640
    worth.began(job(10, "store", 1000))
    worth.began(job(11, "demote", 1000))
    assert worth.best_end(0, 320, 640) == 640


def test_a_disk_job_that_waited_behind_others_does_not_make_the_disk_slow():
    worth, seconds = make(), SLOT / 1e9
    for number in range(1, 5):
        worth.began(job(number, "promote"))
    for number in range(1, 5):
        worth.took(0, [JobResult(number, True, SLOT, number * seconds)])
        worth.ended(number)
    assert worth.stats()["promote_seconds_per_byte"] == pytest.approx(1e-9)


def test_a_load_is_timed_from_when_it_begins():
    worth = make()
    for number in (1, 2):
        worth.began(job(number))
    for number in (1, 2):
        worth.took(0, [JobResult(number, True, SLOT, SLOT / 1e9)])
        worth.ended(number)
    assert worth.stats()["load_seconds_per_byte"] == pytest.approx(1e-9)


def test_the_slowest_rank_is_what_a_load_waits_for():
    worth = make()
    worth.began(job(1))
    worth.took(0, [JobResult(1, True, SLOT, 0.001)])
    worth.took(1, [JobResult(1, True, SLOT, 0.004)])
    assert worth.stats()["load_seconds_per_byte"] == pytest.approx(0.004 / SLOT)


def test_failed_and_late_jobs_say_nothing_about_speed():
    worth = make()
    worth.began(job(1))
    worth.took(0, [JobResult(1, False, SLOT, 100.0, "an error")])
    worth.ended(1)
    worth.took(0, [JobResult(1, True, SLOT, 100.0)])
    assert worth.stats()["load_seconds_per_byte"] == 0


def test_a_speed_that_changes_is_followed():
    worth = make(load=1e9)
    for speed in (1e7, 1e9):
        for number in range(20):
            move(worth, "load", speed, number=number)
        assert worth.stats()["load_seconds_per_byte"] == pytest.approx(1 / speed)


def test_one_stall_does_not_shut_out_a_disk():
    worth = make(prefill=1e-3, load=1e15, promote=10 * TOKEN_BYTES / 1e-3)
    move(worth, "promote", 1.0)
    assert worth.best_end(0, 0, 640) == 640
    for _ in range(8):
        move(worth, "promote", 1.0)
    assert worth.best_end(0, 0, 640) == 0


def test_a_first_load_that_stalled_is_held_to_the_second():
    tier = TierSpeed()
    tier.note(0, 1e6, 60.0)
    assert tier.seconds(1e6) == 60.0
    tier.note(0, 2e6, 2e-4)
    assert tier.seconds(1e6) <= MOST_SURPRISE * 1e-4


def test_a_busy_gpu_makes_longer_loads_worth_it_but_not_any():
    for slower, end in ((0.9, 640), (1.1, 0), (BUSY_WEIGHT * 0.9, 0), (BUSY_WEIGHT * 1.1, 0)):
        worth = make(prefill=1e-3, load=TOKEN_BYTES / 1e-3 / slower)
        assert worth.best_end(0, 640, 640) == end
        assert worth.best_end(0, 640, 640, busy=True) == (640 if slower < BUSY_WEIGHT else 0)


@pytest.mark.parametrize("prefill", [None, 1e-12, 1e3])
def test_always_and_never_are_exact(prefill):
    for _ in range(3 * TRY_ONE_IN):
        assert make("always", prefill, load=1.0, promote=1.0).take(32, 64) == 64
    never = make("never", prefill, load=1e15, promote=1e15)
    assert {never.take(32, 64) for _ in range(3 * TRY_ONE_IN)} == {0}
    assert never.stats()["tried_anyway_tokens"] == 0
    assert never.stats()["refused_host_tokens"] == never.stats()["refused_disk_tokens"] == 3 * TRY_ONE_IN * 32


def test_one_refusal_in_so_many_is_tried_all_the_same_and_counted_apart():
    worth = make(prefill=1e-3, load=1e15, promote=1.0)
    ends = [worth.take(32, 96) for _ in range(2 * TRY_ONE_IN)]
    assert ends == 2 * [*[32] * (TRY_ONE_IN - 1), 96]
    stats = worth.stats()
    assert stats["tried_anyway_tokens"] == 2 * 64
    assert stats["refused_disk_tokens"] == 2 * (TRY_ONE_IN - 1) * 64 and stats["refused_host_tokens"] == 0


def test_a_try_that_goes_well_ends_the_refusals():
    worth = make(prefill=1e-3, load=1e15, promote=1e6)
    assert worth.take(0, 640) == 0
    for number in range(9 * TRY_ONE_IN):
        if worth.take(0, 640):
            move(worth, "promote", 1e12, number=number)
    assert worth.take(0, 640) == 640


def test_a_wrong_word_is_an_error_that_names_the_nearest_one():
    with pytest.raises(InvalidInput, match=r"worth_loading' is 'allways'; did you mean 'always'\? allowed: auto"):
        Worth("allways", [SLOT], [CHUNK])


speeds = st.floats(1e3, 1e13)
tokens = st.integers(0, 1 << 17)


@given(
    prefill=st.floats(1e-9, 1.0), load=speeds, promote=speeds, busy=st.booleans(), start=tokens, host=tokens,
    disk=tokens, queued=st.integers(0, 1000),
)  # fmt: skip
def test_nothing_clearly_slower_is_taken_and_nothing_clearly_faster_refused(
    prefill, load, promote, busy, start, host, disk, queued
):
    host_end, end = start + host, start + host + disk
    worth = make(prefill=prefill, load=load, promote=promote)
    worth.began(job(5, "promote", queued))
    worth.began(job(6, "load", queued))
    best = worth.best_end(start, host_end, end, busy=busy)
    assert best in (start, host_end, end)
    weight = BUSY_WEIGHT if busy else 1.0

    def by_hand(to):
        """Seconds of the load, and of computing the same."""
        seconds = (queued * SLOT + (to - start) * TOKEN_BYTES) / load
        if to > host_end:
            seconds += (queued * SLOT + (to - host_end) * TOKEN_BYTES) / promote
        return seconds, (to - start) * prefill

    if best > start:
        load_seconds, prefill_seconds = by_hand(best)
        assert load_seconds <= 1.1 * weight * prefill_seconds + SLACK_SECONDS * 1.01
    else:
        for to in {host_end, end} - {start}:
            load_seconds, prefill_seconds = by_hand(to)
            assert load_seconds >= 0.9 * weight * prefill_seconds
