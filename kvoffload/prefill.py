"""What prefill costs, fitted from an engine's own steps, and how long each of these took."""

from __future__ import annotations

import math
from collections import deque
from typing import NamedTuple

# Steps with prefill before the fit is believed. A step that is 1, 2, ... times so many back counts 1/e, 1/e^2, ...
LEAST_SAMPLES, MEMORY_STEPS = 16, 128
# A step counts as no more than so many times what was expected, and no less than its inverse: it may have been a
# compilation, or a pause of the machine. What has changed for good is followed all the same.
MOST_SURPRISE = 4.0
# Keeps the equations solvable when all steps are alike; what they say is then shared evenly.
RIDGE = 1e-9
KEPT = 1 - 1 / MEMORY_STEPS


class Work(NamedTuple):
    """What one step computes for requests that are in their prefill.

    tokens: new ones. pairs: of a new token with one that it attends to. A step without prefill has neither.

    >>> Work.of(tokens=100, context_tokens=1000)
    Work(tokens=100, pairs=105000.0)
    """

    tokens: int
    pairs: float

    @classmethod
    def of(cls, tokens: int, context_tokens: int) -> Work:
        """`tokens` new ones of one request, behind `context_tokens`."""
        return cls(tokens, tokens * (context_tokens + tokens / 2))


class PrefillFit:
    """seconds = a + b * tokens + c * pairs, none of them negative, by least squares over the latest steps.

    `a` is what a step takes without prefill, so these count too, with a memory of their own: in an engine that decodes
    for long they would else drive out the others. It is not saved by a hit, as the rest of a prompt has a step anyway.

    >>> fit = PrefillFit()
    >>> for tokens in range(100, 2100, 100):
    ...     fit.note(Work.of(tokens, context_tokens=0), seconds=0.01 + tokens * 2e-5)
    >>> round(fit.seconds_of(Work.of(1000, context_tokens=0)), 4)
    0.02
    """

    def __init__(self) -> None:
        self.samples = 0  # steps with prefill
        # Until it is ready, steps without and with prefill: what they took and what they computed.
        self._first: tuple[list[tuple[float, Work]], list[tuple[float, Work]]] = ([], [])
        # Without and with prefill: rows times (row, seconds). Lists, as numpy is slow with so few numbers.
        self._moments = [[[0.0] * 4 for _ in range(3)] for _ in range(2)]
        self._factors: tuple[float, float, float] | None = None  # a, b, c; None: to be computed anew

    @property
    def ready(self) -> bool:
        """Whether there were enough steps."""
        return self.samples >= LEAST_SAMPLES

    def note(self, work: Work, seconds: float) -> None:
        """A step took so long."""
        if not (math.isfinite(seconds) and math.isfinite(work.pairs) and seconds > 0):
            return
        if self.ready:
            self._add(work, seconds, limited=True)
        elif len(self._first[int(work.tokens > 0)]) < LEAST_SAMPLES:
            self._first[int(work.tokens > 0)].append((seconds, work))
        self.samples += work.tokens > 0
        if self.samples == LEAST_SAMPLES and work.tokens > 0:
            self._begin()

    def _begin(self) -> None:
        """The first steps, from the shortest on: an engine compiles in some of them, which are held to the others."""
        for rank, (seconds, work) in enumerate(sorted(self._first[0] + self._first[1])):
            self._add(work, seconds, limited=rank >= LEAST_SAMPLES // 2)
        self._first = ([], [])

    def _add(self, work: Work, seconds: float, *, limited: bool) -> None:
        expected = self.factors()[0] + self.seconds_of(work) if limited else 0.0
        if expected > 0:
            seconds = min(max(seconds, expected / MOST_SURPRISE), expected * MOST_SURPRISE)
        row = (1.0, float(work.tokens), float(work.pairs))
        for left, sums in zip(row, self._moments[int(work.tokens > 0)], strict=True):
            for column, right in enumerate((*row, seconds)):
                sums[column] = sums[column] * KEPT + left * right
        self._factors = None

    def seconds_of(self, work: Work) -> float:
        """How much longer a step takes with this work in it."""
        _, by_token, by_pair = self.factors()
        return by_token * work.tokens + by_pair * work.pairs

    def factors(self) -> tuple[float, float, float]:
        if self._factors is None:
            self._factors = self._solve()
        return self._factors

    def _solve(self) -> tuple[float, float, float]:
        without, with_prefill = self._moments
        moments = [[a + b for a, b in zip(*rows, strict=True)] for rows in zip(without, with_prefill, strict=True)]
        scale = [math.sqrt(moments[i][i]) or 1.0 for i in range(3)]
        right = [moments[i][3] / scale[i] for i in range(3)]
        left = [[moments[i][j] / (scale[i] * scale[j]) + RIDGE * (i == j) for j in range(3)] for i in range(3)]
        kept = [0, 1, 2]
        solution: list[float] = []
        while kept:
            solution = _solve_equations([[*(left[i][j] for j in kept), right[i]] for i in kept])
            if min(solution) >= 0:
                break
            del kept[solution.index(min(solution))]
        factors = [0.0, 0.0, 0.0]
        for index, value in zip(kept, solution if kept else (), strict=True):
            factors[index] = value / scale[index]
        return factors[0], factors[1], factors[2]


def _solve_equations(rows: list[list[float]]) -> list[float]:
    """Of n rows of n coefficients and the right side, by elimination; symmetric and positive definite: no pivoting."""
    count = len(rows)
    for i in range(count):
        for k in range(count):
            if k != i:
                share = rows[k][i] / rows[i][i]
                rows[k] = [a - share * b for a, b in zip(rows[k], rows[i], strict=True)]
    return [row[count] / row[i] for i, row in enumerate(rows)]


class StepTimes:
    """Learns how long steps take from when they are planned.

    in_flight: steps that an engine keeps under way, 1 without asynchronous scheduling: it plans the next one when the
    oldest of these has ended. So between two plans in a row lies one step, the one so many before the later plan, if
    the engine was busy from there on.
    """

    def __init__(self, fit: PrefillFit, in_flight: int = 1) -> None:
        self._fit, self._in_flight = fit, in_flight
        self._steps: deque[tuple[float, Work | None]] = deque(maxlen=in_flight + 1)

    def planned(self, now: float, work: Work | None) -> None:
        """A step is planned at `now`. work: None when it has no tokens at all."""
        self._steps.append((now, work))
        if len(self._steps) <= self._in_flight:
            return
        before = list(self._steps)[:-1]
        oldest = before[0][1]
        if oldest is not None and all(work is not None for _, work in before):
            self._fit.note(oldest, now - before[-1][0])

    def idle(self, now: float) -> None:
        """No request is left: when the next step is planned says nothing about the last one."""
        if self._in_flight == 1:  # the last one has just ended
            self.planned(now, None)
        self._steps.clear()
