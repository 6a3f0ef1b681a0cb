"""What is learnt of prefill from the times of an engine's steps. No clock: times are made up."""

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvoffload.prefill import LEAST_SAMPLES, MOST_SURPRISE, PrefillFit, StepTimes, Work

BASE, BY_TOKEN, BY_PAIR = 0.008, 2e-5, 1e-9


def seconds_of(work, base=BASE):
    return base + BY_TOKEN * work.tokens + BY_PAIR * work.pairs


def taught(steps=200, noise=0.0, decode=True, seed=0):
    chance, fit = random.Random(seed), PrefillFit()
    for _ in range(steps):
        work = Work.of(chance.randrange(2, 8192), chance.randrange(0, 100_000))
        fit.note(work, seconds_of(work) * chance.uniform(1 - noise, 1 + noise))
        if decode:
            fit.note(Work(0, 0.0), BASE)
    return fit


@pytest.mark.parametrize("noise", [0.0, 0.2])
@pytest.mark.parametrize("decode", [False, True])
def test_the_fit_finds_what_the_steps_were_made_of(noise, decode):
    fit = taught(noise=noise, decode=decode)
    for work in (Work.of(512, 0), Work.of(8192, 0), Work.of(2048, 100_000)):
        assert fit.seconds_of(work) == pytest.approx(seconds_of(work, base=0), rel=0.01 + noise / 2)


def test_steps_without_prefill_say_what_a_step_takes_anyway():
    """All prompts are alike, so that prefill alone cannot tell."""
    work, fit = Work.of(512, 0), PrefillFit()
    for _ in range(100):
        fit.note(work, 0.030)
        fit.note(Work(0, 0.0), 0.020)
    assert fit.seconds_of(work) == pytest.approx(0.010, rel=0.01)


def test_a_long_decode_does_not_drive_out_what_is_known_of_prefill():
    fit = taught(steps=32)
    for _ in range(100_000):
        fit.note(Work(0, 0.0), BASE)
    assert fit.seconds_of(Work.of(1000, 0)) == pytest.approx(seconds_of(Work.of(1000, 0), base=0), rel=0.01)


def test_one_long_pause_hardly_counts_and_a_lasting_change_is_followed():
    fit, work = taught(steps=1000), Work.of(1000, 0)
    before = fit.seconds_of(work)
    fit.note(work, 100.0)
    assert fit.seconds_of(work) == pytest.approx(before, rel=0.1)
    for _ in range(1000):
        fit.note(work, 10 * MOST_SURPRISE * seconds_of(work))
        fit.note(Work(0, 0.0), BASE)
    assert fit.seconds_of(work) == pytest.approx(10 * MOST_SURPRISE * seconds_of(work) - BASE, rel=0.05)


def test_it_is_ready_after_so_many_steps_with_prefill():
    fit = PrefillFit()
    for _ in range(100):
        fit.note(Work(0, 0.0), BASE)
    for _ in range(LEAST_SAMPLES):
        assert not fit.ready
        fit.note(Work.of(10, 0), 1.0)
    assert fit.ready


@given(
    st.lists(
        st.tuples(st.integers(0, 200_000), st.integers(0, 1_000_000), st.floats(allow_nan=True, allow_infinity=True)),
        max_size=60,
    )
)
def test_whatever_it_is_told_no_factor_is_negative_or_unreal(steps):
    fit = PrefillFit()
    for tokens, context, seconds in steps:
        fit.note(Work.of(tokens, context), min(seconds, 1e6))
    assert all(0 <= factor < float("inf") for factor in fit.factors())


class Notes:
    """In place of a fit."""

    def __init__(self):
        self.seen = []

    def note(self, work, seconds):
        self.seen.append((work, pytest.approx(seconds)))


A, B, C, D = (Work.of(n, 0) for n in (10, 20, 30, 40))


def test_a_step_lasts_until_the_next_one_is_planned():
    notes = Notes()
    times = StepTimes(notes)
    for now, work in ((0.0, A), (1.0, B), (3.0, None), (9.0, C), (10.0, D)):
        times.planned(now, work)
    assert notes.seen == [(A, 1.0), (B, 2.0), (C, 1.0)]


def test_time_in_which_nothing_is_asked_for_counts_for_no_step():
    notes = Notes()
    times = StepTimes(notes)
    times.planned(0.0, A)
    times.idle(1.0)  # its answer has come, and that was the last request
    times.planned(100.0, B)
    times.planned(102.0, C)
    assert notes.seen == [(A, 1.0), (B, 2.0)]


def test_steps_that_overlap():
    """Two under way: the plan of the third comes when the first has ended, and they run one after the other."""
    notes = Notes()
    times = StepTimes(notes, in_flight=2)
    for now, work in ((0.0, A), (0.001, B), (1.0, C), (3.0, D), (6.0, D)):
        times.planned(now, work)
    assert notes.seen == [(A, 0.999), (B, 2.0), (C, 3.0)]
    times.idle(10.0)  # the answer of one of two: which of them is not known
    times.planned(20.0, A)
    times.planned(20.001, None)  # nothing to do beside it
    times.planned(21.0, B)
    times.planned(21.001, C)
    assert len(notes.seen) == 3
    times.planned(22.0, D)
    assert notes.seen[3:] == [(B, 0.999)]


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_what_is_no_number_is_left_out(number):
    fit = taught()
    learnt = fit.factors()
    fit.note(Work.of(100, 0), number)
    fit.note(Work.of(number, 0), 1.0)
    fit.note(Work.of(100, number), 1.0)
    assert fit.factors() == learnt


@pytest.mark.parametrize("slow", [(0,), (5, 6, 7), (15,)])
@pytest.mark.parametrize("seconds", [1.0, 3600.0])
def test_first_steps_that_compiled_are_held_to_the_others(slow, seconds):
    chance, fit = random.Random(1), PrefillFit()
    for i in range(LEAST_SAMPLES):
        work = Work.of(chance.randrange(16, 4096), chance.randrange(0, 8192))
        fit.note(Work(0, 0.0), seconds if i in slow else BASE)
        fit.note(work, seconds if i in slow else seconds_of(work))
    assert fit.ready
    work = Work.of(2048, 0)
    assert 0.3 < fit.seconds_of(work) / seconds_of(work, base=0) < 3
