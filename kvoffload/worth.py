"""Whether a hit is worth loading: predicted time of the load against predicted time of computing the same tokens."""

from __future__ import annotations

import difflib
import threading
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from itertools import zip_longest
from typing import Any, Literal, get_args

from kvoffload.errors import InvalidInput
from kvoffload.hits import first_needed_token
from kvoffload.messages import Job, JobResult
from kvoffload.prefill import PrefillFit, Work

WorthLoading = Literal["auto", "always", "never"]

# While others wait for the GPU, a second of its time is worth so many seconds of a request's.
BUSY_WEIGHT = 4.0
# What is slower than computing by less than this is taken all the same: no prediction is better, and no step shorter.
SLACK_SECONDS = 1e-3
# As long as prefill is not known, the disk must bring a token in so short a time.
COLD_TOKEN_SECONDS = 10e-6
# Of a disk that could not be probed.
USUAL_DISK_BYTES_PER_SECOND = 1e9
# One refused hit in so many is taken, or a speed that was bad once would never be measured again.
TRY_ONE_IN = 64
# A tier is as fast as its last jobs were, of which each counts as no more than so many times what was expected: one
# that stalled shall not shut out a tier that is then only tried.
MEMORY_JOBS, MOST_SURPRISE = 8, 4.0


def check_worth_loading(value: Any) -> WorthLoading:
    """`value` if it is allowed for the option `worth_loading`. Raises InvalidInput that names the nearest one.

    >>> check_worth_loading("auto")
    'auto'
    """
    allowed = get_args(WorthLoading)
    if value not in allowed:
        nearest = difflib.get_close_matches(str(value), allowed, n=1)
        hint = f"did you mean {nearest[0]!r}? " if nearest else ""
        raise InvalidInput(f"option 'worth_loading' is {value!r}; {hint}allowed: {', '.join(allowed)}")
    return value


class TierSpeed:
    """How long a tier takes for so many bytes, behind what is queued there; of several ranks the slowest one.

    >>> disk = TierSpeed(bytes_per_second=1e9)
    >>> disk.seconds(1_000_000)
    0.001
    >>> disk.note(0, moved_bytes=1_000_000, seconds=0.004)
    >>> disk.seconds(1_000_000)
    0.004
    """

    def __init__(self, bytes_per_second: float = 0.0) -> None:
        self.queued_bytes = 0
        self._untried = 1 / bytes_per_second if bytes_per_second else 0.0  # seconds a byte
        self._ranks: dict[int, deque[tuple[float, float]]] = {}  # bytes and seconds of the last jobs

    def note(self, rank: int, moved_bytes: float, seconds: float) -> None:
        if moved_bytes > 0 and seconds > 0:
            expected = moved_bytes * self.seconds_per_byte if self._ranks else seconds
            jobs = self._ranks.setdefault(rank, deque(maxlen=MEMORY_JOBS))
            if len(jobs) == 1:  # nobody knew what to expect of the first one
                first_bytes, first_seconds = jobs.pop()
                jobs.append((first_bytes, min(first_seconds, MOST_SURPRISE * first_bytes * seconds / moved_bytes)))
            jobs.append((moved_bytes, min(seconds, expected * MOST_SURPRISE)))

    @property
    def seconds_per_byte(self) -> float:
        """0 while nothing is known."""
        return max(map(_seconds_per_byte, self._ranks.values()), default=self._untried)

    def seconds(self, more_bytes: float) -> float:
        return (self.queued_bytes + more_bytes) * self.seconds_per_byte


def _seconds_per_byte(jobs: Iterable[tuple[float, float]]) -> float:
    moved_bytes, seconds = map(sum, zip(*jobs, strict=True))
    return seconds / moved_bytes


class Worth:
    """The rule: how much of a hit is taken. It also learns the tiers' speeds and counts what it refuses.

    slot_bytes, tokens_per_chunk, window_tokens (as GroupKeys'): of each group. disk_read_bytes_per_second: as probed,
    0: unknown. counters: gets `refused_host_tokens`, `refused_disk_tokens`, `tried_anyway_tokens`. Any thread may call.

    >>> worth = Worth("auto", slot_bytes=[4096], tokens_per_chunk=[16], disk_read_bytes_per_second=10**6)
    >>> worth.best_end(start=0, host_end=32, end=320)  # nothing known but a slow disk: what host memory has
    32
    >>> for tokens in range(10, 210, 10):
    ...     worth.fit.note(Work.of(tokens, 0), seconds=tokens * 0.01)  # slower still
    >>> worth.best_end(start=0, host_end=32, end=320)
    320
    """

    def __init__(
        self, mode: WorthLoading, slot_bytes: Sequence[int], tokens_per_chunk: Sequence[int],
        disk_read_bytes_per_second: float = 0, *, fit: PrefillFit | None = None, counters: Counter[str] | None = None,
        window_tokens: Sequence[int | None] = (),
    ) -> None:  # fmt: skip
        self.mode = check_worth_loading(mode)
        self.fit = PrefillFit() if fit is None else fit
        self.counters: Counter[str] = Counter() if counters is None else counters
        self._slot_bytes = tuple(slot_bytes)
        token_bytes = map(float.__truediv__, map(float, slot_bytes), map(float, tokens_per_chunk))
        self._token_bytes = tuple(zip_longest(token_bytes, window_tokens))
        self._probed = disk_read_bytes_per_second or USUAL_DISK_BYTES_PER_SECOND
        self._tiers = {"load": TierSpeed(), "promote": TierSpeed(self._probed)}
        self._open: dict[int, tuple[TierSpeed, int, int]] = {}  # job -> tier, its bytes, those queued before it
        self._refused = 0
        self._lock = threading.RLock()  # a signal handler may call in

    def note(self, work: Work, seconds: float) -> None:
        """What a step of the engine took."""
        with self._lock:
            self.fit.note(work, seconds)

    # ---- what the tiers do

    def began(self, job: Job) -> None:
        """A job was planned. Only loads and promotions matter."""
        tier = self._tiers.get(job.kind)
        if tier is None:
            return
        job_bytes = len(job.slots) * self._slot_bytes[job.group]
        with self._lock:
            self._open[job.id] = tier, job_bytes, tier.queued_bytes
            tier.queued_bytes += job_bytes

    def took(self, rank: int, results: Iterable[JobResult]) -> None:
        """What a rank reports; before `ended`."""
        with self._lock:
            for result in results:
                if result.job not in self._open or not result.ok:
                    continue
                tier, _, ahead_bytes = self._open[result.job]
                # A lane says how long it was at the job, the disk how long it had it.
                waited_bytes = ahead_bytes if tier is self._tiers["promote"] else 0
                tier.note(rank, waited_bytes + result.bytes, result.seconds)

    def ended(self, job_id: int) -> None:
        """Done, failed or given up."""
        with self._lock:
            if job_id in self._open:
                tier, job_bytes, _ = self._open.pop(job_id)
                tier.queued_bytes -= job_bytes

    # ---- the rule

    def best_end(self, start: int, host_end: int, end: int, *, busy: bool = False) -> int:
        """Up to which token a hit should be taken: `end`, which needs the disk, `host_end`, or `start`: not at all.

        start: what the engine has itself. busy: others wait for the GPU. Then its time is what counts; but as a load
        that takes very long helps nobody, it may take no more than `BUSY_WEIGHT` times what it saves.
        """
        host_end = max(start, host_end)
        if self.mode != "auto" or end <= start:
            return start if self.mode == "never" else end
        with self._lock:
            if not self.fit.ready:
                probed_seconds = self._bytes(start, host_end, end) / self._probed
                return end if probed_seconds < COLD_TOKEN_SECONDS * (end - host_end) else host_end
            weight = BUSY_WEIGHT if busy else 1.0
            gains = {
                to: weight * self.fit.seconds_of(Work.of(to - start, start)) - self.load_seconds(start, host_end, to)
                for to in (host_end, end)
                if to > start
            }
        best = max(gains, key=lambda to: gains[to])
        return best if gains[best] > -SLACK_SECONDS else start

    def load_seconds(self, start: int, host_end: int, end: int) -> float:
        """Until the tokens from `start` to `end` are on the GPU; those behind `host_end` are on disk."""
        seconds = self._tiers["load"].seconds(self._bytes(start, start, end))
        if end > host_end:
            seconds += self._tiers["promote"].seconds(self._bytes(start, host_end, end))
        return seconds

    def _bytes(self, start: int, here: int, end: int) -> float:
        """Of what the groups need of a hit from `start` to `end`, those behind `here`."""
        needs = ((per_token, first_needed_token(start, end, window)) for per_token, window in self._token_bytes)
        return sum(per_token * (end - max(first, here)) for per_token, first in needs)

    def try_anyway(self) -> bool:
        """A hit is about to be refused, in part or as a whole. Whether this is the one that is taken to see."""
        if self.mode != "auto":
            return False
        with self._lock:
            self._refused += 1
            return self._refused % TRY_ONE_IN == 0

    def count(self, best_end: int, host_end: int, end: int, *, tried: bool) -> None:
        """A hit up to `end` was cut to `best_end`, or taken all the same."""
        with self._lock:
            if tried:
                self.counters["tried_anyway_tokens"] += end - best_end
                return
            self.counters["refused_host_tokens"] += max(host_end - best_end, 0)
            self.counters["refused_disk_tokens"] += end - max(host_end, best_end)

    def take(self, host_end: int, end: int) -> int:
        """`best_end` from token 0 on, for a caller who asks once for each hit: tries and counts besides."""
        best = self.best_end(0, host_end, end)
        if best >= end:
            return end
        tried = self.try_anyway()
        self.count(best, host_end, end, tried=tried)
        return end if tried else best

    def stats(self) -> dict[str, Any]:
        """What was refused, and what the rule goes by now; speeds in seconds a byte, 0 while not known."""
        with self._lock:
            step, token, pair = self.fit.factors()
            names = ("refused_host_tokens", "refused_disk_tokens", "tried_anyway_tokens")
            return {
                **{name: self.counters[name] for name in names},
                "prefill_samples": self.fit.samples,
                "prefill_seconds_per_step": step,
                "prefill_seconds_per_token": token,
                "prefill_seconds_per_pair": pair,
                "load_seconds_per_byte": self._tiers["load"].seconds_per_byte,
                "promote_seconds_per_byte": self._tiers["promote"].seconds_per_byte,
                "load_queued_bytes": self._tiers["load"].queued_bytes,
                "promote_queued_bytes": self._tiers["promote"].queued_bytes,
            }
