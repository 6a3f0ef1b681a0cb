"""The ledger: who knows keys. It plans what movers do and believes only what every rank has reported."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal, get_args

from kvoffload import _C
from kvoffload.config import parse_size
from kvoffload.errors import InvalidInput
from kvoffload.hello_check import check_hello
from kvoffload.hits import GroupHit, GroupKeys
from kvoffload.ledger_disk import RESET_SECONDS, DiskNotes
from kvoffload.messages import FinishedJob, Hello, Hit, Job, JobKind, Results

log = logging.getLogger("kvoffload")

State = Literal["absent", "filling", "ready"]
Policy = Literal["adaptive", "lru", "s3fifo", "arc"]
POLICIES = get_args(Policy)
Admission = Literal["all", "second_touch", "tinylfu"]


class Hold:
    """Keeps ready keys from eviction while a request waits; made by `Ledger.hold`. It has one owner, who releases it.

    `keys_held` is how many keys it holds. It is a context manager too.
    """

    __slots__ = ("_directory", "_id", "keys_held")

    def __init__(self, directory: _C.Directory, hold_id: int, keys_held: int) -> None:
        self._directory, self._id, self.keys_held = directory, hold_id, keys_held

    def release(self) -> None:
        """Lets the keys go; again is a no-op."""
        hold_id, self._id = self._id, 0
        if hold_id:
            self._directory.release(hold_id)

    def __enter__(self) -> Hold:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


class Ledger:
    """Knows which keys are in host memory, in which slots, and who reads them; never sees a tensor, never blocks.

    A key is `bytes`, at least 16 long, and names one chunk of one KV group: `blocks_per_chunk` blocks. The keys of one
    call are of one group. A key is a hit once every one of the `ranks` movers has reported its store as done. A job
    that has not ended `deadline_seconds` after it was planned is given up by `expire`. Any thread may call.

    With a `manifest`, keys go to disk too (`plan_demote`), come back from it (`plan_promote`) and are known again after
    a restart. `policy` says which keys go when a tier is full. `admission` says which go to disk: "all" that are
    stored, those asked for again ("second_touch"), or, once the disk is full, those used as often as what would have to
    go ("tinylfu"); of these no more than `disk_writes_per_day` bytes (or "1TB") of each rank in any 24 hours.

    Raises `InvalidInput` (a ValueError) on bad keys, groups or lengths. When the tier is slow, full or failing, the
    answer is a miss or None, and a counter in `stats()`.

    >>> ledger = Ledger()
    >>> ledger.hello(Hello(rank=0, slot_bytes=(4096,), blocks_per_chunk=(2,), host_bytes=65536, ready_bytes=65536,
    ...                    fingerprint="f", pinned=False, device="host"))
    >>> keys = [bytes([i]) * 32 for i in range(2)]
    >>> job = ledger.plan_store(keys, block_ids=[4, 5, 8, 9])
    >>> ledger.lookup(keys).host    # not before the mover has reported
    0
    >>> from kvoffload.messages import JobResult
    >>> ledger.apply(Results(0, (JobResult(job.id, ok=True, bytes=8192, seconds=0.001),)))
    [FinishedJob(id=1, kind='store', ok=True, late=False)]
    >>> ledger.lookup(keys)
    Hit(host=2, disk=0)
    >>> ledger.plan_load(keys, block_ids=[0, 1, 2, 3]).slots == job.slots
    True
    """

    def __init__(
        self, *, ranks: int = 1, deadline_seconds: float = 30.0, clock: Callable[[], float] = time.monotonic,
        manifest: _C.Manifest | None = None, policy: Policy = "adaptive", admission: Admission = "all",
        disk_writes_per_day: int | str | None = None,
    ) -> None:  # fmt: skip
        if isinstance(ranks, bool) or not isinstance(ranks, int) or ranks < 1:
            raise InvalidInput(f"ranks = {ranks!r}: the number of movers that must report, at least 1")
        if not deadline_seconds > 0:
            raise InvalidInput(f"deadline_seconds = {deadline_seconds!r}: must be above 0")
        self._ranks = ranks
        self._deadline_seconds = float(deadline_seconds)
        self._clock = clock
        if admission not in get_args(Admission):
            raise InvalidInput(f"admission = {admission!r}: give one of {', '.join(get_args(Admission))}")
        if policy not in POLICIES:
            raise InvalidInput(f"policy = {policy!r}: give one of {', '.join(POLICIES)}")
        writes = 0 if disk_writes_per_day is None else parse_size(disk_writes_per_day, "disk_writes_per_day")
        self._directory = _C.Directory(ranks, admission, policy, writes)
        self._disk = DiskNotes(self._directory, manifest) if manifest is not None else None
        self._hellos: dict[int, Hello] = {}
        self._lock = threading.Lock()  # of _hellos and the flags for log lines
        self._blocks_per_chunk: tuple[int, ...] = ()  # set when all ranks have said hello
        self._tier_off = self._disk_off = False
        self._failure_logged = self._refusal_logged = False

    def hello(self, hello: Hello) -> None:
        """Takes note of what a mover is; nothing is served until all ranks have said so.

        Capacity is the least `ready_bytes` of all ranks and grows with later Hellos; one with `failure` is its rank's
        last word. `InvalidInput` names the rank and both values when ranks disagree.
        """
        with self._lock:
            before = self._hellos.get(hello.rank)
            check_hello(hello, self._hellos, self._ranks)
            if before and before.failure:
                return
            if hello.failure:
                log.warning(
                    "rank %d: no more host memory will become ready (%s): its capacity stays at %d of %d bytes",
                    hello.rank, hello.failure, hello.ready_bytes, hello.host_bytes,
                )  # fmt: skip
            self._hellos[hello.rank] = hello
            if len(self._hellos) == self._ranks:
                self._serve(hello)

    def _serve(self, hello: Hello) -> None:
        first = not self._blocks_per_chunk
        if first:
            self._directory.open(hello.host_bytes, list(hello.slot_bytes))
            self._blocks_per_chunk = hello.blocks_per_chunk  # before there are slots: other threads may plan at once
            if self._disk is not None and hello.disk_bytes:
                self._disk.open(hello.disk_bytes, list(self._hellos.values()))
        self._directory.grow(min(other.ready_bytes for other in self._hellos.values()))
        if not first:
            return
        pinned = [other.rank for other in self._hellos.values() if other.pinned]
        log.info(
            "ledger: serving %d rank(s), %d bytes of host memory per rank, %s, %d group(s)",
            self._ranks,
            hello.host_bytes,
            f"pinned on all ranks but {sorted(set(range(self._ranks)) - set(pinned))}"
            if 0 < len(pinned) < self._ranks
            else ("pinned" if pinned else "not pinned"),
            len(hello.slot_bytes),
        )

    def _check_call(self, keys: Sequence[bytes], block_ids: Sequence[int], group: int) -> int:
        """blocks_per_chunk of the group; 0 before all Hellos."""
        self._check_group(group)
        if not self._blocks_per_chunk:
            return 0
        per_chunk = self._blocks_per_chunk[group]
        if len(block_ids) != len(keys) * per_chunk:
            raise InvalidInput(
                f"{len(keys)} keys and {len(block_ids)} block ids: group {group} has {per_chunk} blocks per chunk, so "
                f"{len(keys) * per_chunk} block ids are needed"
            )
        return per_chunk

    def _check_group(self, group: int) -> None:
        if self._blocks_per_chunk and not 0 <= group < len(self._blocks_per_chunk):
            raise InvalidInput(f"group = {group}: this ledger has groups 0 to {len(self._blocks_per_chunk) - 1}")

    def lookup(self, keys: Sequence[bytes], group: int = 0) -> Hit:
        """How many leading keys are ready in host memory, and how many more after them in one of the tiers.

        They become the most recently used, the first key last.
        """
        self._check_group(group)
        return Hit(*self._directory.lookup(group, keys))

    def states(self, keys: Sequence[bytes], group: int = 0, *, on_disk: bool = False) -> list[State]:
        """Per key "absent", "filling" (a store is in flight) or "ready"; all "absent" while nothing is served."""
        self._check_group(group)
        return self._directory.states(group, keys, on_disk)

    def plan_store(self, keys: Sequence[bytes], block_ids: Sequence[int], group: int = 0) -> Job | None:
        """A job that stores the keys not there yet, or None. `block_ids`: blocks_per_chunk for each key.

        A key without a free or evictable slot is dropped and counted, as is everything while nothing is served. Keys
        touched or accepted by one call are never evicted by it.
        """
        per_chunk = self._check_call(keys, block_ids, group)
        planned = self._directory.plan_store(group, keys, self._clock() + self._deadline_seconds)
        if planned is None:
            return None
        job_id, accepted, slots = planned
        blocks = _as_tuple(block_ids)
        if len(accepted) < len(keys):
            blocks = tuple(block for i in accepted for block in blocks[i * per_chunk : (i + 1) * per_chunk])
        return Job(job_id, "store", group, blocks, slots)

    def plan_load(
        self, keys: Sequence[bytes], block_ids: Sequence[int], group: int = 0, skip_blocks: int = 0
    ) -> Job | None:
        """A job that loads all keys, or None if any is not ready. Their slots are kept until every rank has reported.

        `skip_blocks`: that many blocks of the first chunk are left untouched, fewer than blocks_per_chunk; their ids
        are in `block_ids` all the same.
        """
        per_chunk = self._check_call(keys, block_ids, group)
        if per_chunk and not 0 <= skip_blocks < per_chunk:
            raise InvalidInput(f"skip_blocks = {skip_blocks}: must be 0 to {per_chunk - 1}, below blocks_per_chunk")
        planned = self._directory.plan_load(group, keys, self._clock() + self._deadline_seconds)
        if planned is None:
            return None
        job_id, _, slots = planned
        return Job(job_id, "load", group, _as_tuple(block_ids), slots, skip_blocks)

    def plan_promote(self, keys: Sequence[bytes], group: int = 0) -> Job | None:
        """A job that brings leading keys from disk to host memory, or None if there is nothing to bring.

        Keys that host memory has or is getting, for whomever, are passed over; at the first key that is in no tier, or
        for which host memory has no room, it ends.
        """
        self._check_group(group)
        planned = self._directory.plan_promote(group, keys, self._clock() + self._deadline_seconds)
        if planned is None:
            return None
        job_id, accepted, slots, disk_slots, epoch = planned
        moved = tuple(keys[i] for i in accepted)
        return Job(job_id, "promote", group, (), slots, disk_slots=disk_slots, keys=moved, epoch=epoch)

    def plan_demote(self, most_keys: int, group: int = 0) -> Job | None:
        """A job that writes up to `most_keys` of the keys waiting for it to disk, in their order, or None.

        Keys that are passed over wait no longer: gone or without a slot (`undemoted_keys`), not worth what would have
        to go (`unadmitted_keys`), over the day's bytes (`over_budget_keys`: no more than `most_keys`). When it returns
        the manifest no longer counts on what the disk slots of the job held.
        """
        self._check_group(group)
        now = self._clock()
        planned = self._directory.plan_demote(group, most_keys, now, now + self._deadline_seconds)
        if self._disk is not None:
            self._disk.note()
        if planned is None:
            return None
        job_id, keys, slots, disk_slots, sequence, epoch = planned
        return Job(job_id, "demote", group, (), slots, disk_slots=disk_slots, keys=keys, sequence=sequence, epoch=epoch)

    def hold(self, keys: Sequence[bytes], group: int = 0) -> Hold:
        """Keeps the leading ready keys from eviction until the Hold is released."""
        self._check_group(group)
        return Hold(self._directory, *self._directory.hold(group, keys))

    def lookup_groups(self, groups: Sequence[GroupKeys], start_tokens: int = 0) -> GroupHit:
        """How far a prefix is there for all groups: up to the last end of a chunk in each of them, which is a multiple
        of all `tokens_per_chunk`, where every group has what it needs. `start_tokens` when there is none behind it.

        `start_tokens`: tokens that the caller has already, in all groups. The keys that are needed, and only these,
        become the most recently used.

        >>> ledger = Ledger()
        >>> ledger.lookup_groups([GroupKeys(0, [b"first chunk's key"], 64), GroupKeys(1, [b"a state's key..."], 64, 1)])
        GroupHit(host_tokens=0, tokens=0)
        """
        return self._lookup_groups(groups, start_tokens, hold=False)[1]

    def hold_groups(self, groups: Sequence[GroupKeys], start_tokens: int = 0) -> tuple[Hold, GroupHit]:
        """`lookup_groups`, and exactly the keys that the hit in host memory needs are kept until the Hold is released.

        >>> Ledger().hold_groups([GroupKeys(0, [b"first chunk's key"], 64)])[0].keys_held
        0
        """
        return self._lookup_groups(groups, start_tokens, hold=True)

    def _lookup_groups(self, groups: Sequence[GroupKeys], start_tokens: int, hold: bool) -> tuple[Hold, GroupHit]:
        for given in groups:
            self._check_group(given.group)
        host_tokens, tokens, keys, hold_id = self._directory.lookup_groups(groups, start_tokens, hold)
        return Hold(self._directory, hold_id, keys), GroupHit(host_tokens, tokens)

    def apply(self, results: Results) -> list[FinishedJob]:
        """Takes one mover's report; the jobs that ended with it, which is when every rank has reported.

        A failure makes the job's keys a miss at once. A report that is late (the job was given up) only frees slots;
        unknown and repeated ones are counted. A Hello that `hello` would refuse is logged, once, and changes nothing.
        """
        finished = []
        if results.results:
            if not self._failure_logged:
                self._log_failure(results)
            reports = [(result.job, result.ok, result.failed, result.untried) for result in results.results]
            finished = self._finished(self._directory.report(results.rank, reports))
            if self._disk is not None:
                self._disk.note()
        if results.hello is not None:
            try:
                self.hello(results.hello)
            except InvalidInput as error:  # the jobs have ended all the same: the caller must hear of it
                if not self._refusal_logged:
                    log.warning("%s; it is ignored", error)
                self._refusal_logged = True
        return finished

    def _log_failure(self, results: Results) -> None:
        failed = next((result for result in results.results if not result.ok), None)
        if failed is not None:
            self._failure_logged = True
            log.warning(
                "job %d failed on rank %d: %s; its keys are a miss. Further failures are only counted (failed_jobs)",
                failed.job, results.rank, failed.error or "no reason given",
            )  # fmt: skip

    def _finished(self, jobs: Iterable[tuple[int, JobKind, bool, bool]]) -> list[FinishedJob]:
        off = self._directory.tier_off
        if off != self._tier_off:
            self._tier_off = off
            log.warning("%s", _TIER_OFF if off else "host tier on again: reports came in for the quarantined slots")
        finished = [FinishedJob(*job) for job in jobs]
        if any(job.late or not job.ok for job in finished):
            self._log_disk()
        return finished

    def _log_disk(self) -> None:
        off = self._directory.stats()["disk"]["tier_off"]
        if off != self._disk_off:
            self._disk_off = off
            log.warning("%s", _DISK_OFF if off else "disk tier on again: reports came in for the quarantined slots")

    def abandon(self, job_id: int) -> None:
        """Undoes a job whose plan was sent to no rank (its queue was full): stores are dropped and counted.

        `InvalidInput` if the job has ended or any rank has reported it.
        """
        self._directory.abandon(job_id)
        self._finished(())

    def expire(self, now: float | None = None) -> list[FinishedJob]:
        """Gives up the jobs past their deadline at `now` (seconds of `clock`) and returns them, not ok.

        Their keys are a miss at once. Their slots stay quarantined until the last rank has reported; then `apply`
        returns the job once more, `late`. While stores and loads have over 5 % of host memory in quarantine, nothing is
        served; while demotions and promotions have over 5 % of either tier, the disk is neither written nor read.
        """
        return self._finished(self._directory.expire(self._clock() if now is None else now))

    def forget(self, keys: Sequence[bytes], group: int = 0) -> int:
        """Makes keys a miss, also those being stored; how many were there."""
        self._check_group(group)
        found = self._disk.forget(group, keys) if self._disk is not None else 0
        forgotten = self._directory.forget(group, keys)
        if self._disk is not None:
            self._disk.note()
        return found + forgotten

    def reset(self, timeout_seconds: float = RESET_SECONDS) -> None:
        """A new epoch: nothing stored or being stored before is ever visible again, also after a restart.

        With a disk it waits until that is durable: the one call that may. Raises `WaitTimeout`; it is hidden all the
        same, for as long as this process lives.
        """
        if self._disk is not None:
            self._disk.reset(timeout_seconds)
        else:
            self._directory.reset()

    def stats(self) -> dict[str, Any]:
        """Counters since the start and gauges now, all exact; names say the unit. `groups` has one dict per group.

        Slots count once their extent is lent to a group (at once if there is only one group): free + used + quarantined
        = capacity. `free_extents` are not lent yet.
        """
        return self._directory.stats()

    def check(self) -> None:
        """Recounts everything; AssertionError names the first invariant that does not hold. For tests."""
        broken = self._directory.check()
        if broken:
            raise AssertionError(broken)


_TIER_OFF = (
    "host tier off: over 5 % of it is quarantined, in slots of stores and loads that some rank has not reported in "
    "time; lookups miss and stores are dropped until the reports come"
)
_DISK_OFF = (
    "disk tier off: over 5 % of it, or of host memory, is quarantined, in slots of demotions and promotions that some "
    "rank has not reported in time; it is neither written nor read until the reports come"
)


def _as_tuple(block_ids: Sequence[int]) -> tuple[int, ...]:
    tolist = getattr(block_ids, "tolist", None)  # numpy and torch: plain ints, which pickle small
    return tuple(block_ids if tolist is None else tolist())
