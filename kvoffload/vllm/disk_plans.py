"""The scheduler half's disk: what is brought to host memory for requests that wait, and what is written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from vllm.logger import init_logger

from kvoffload.cache_disk import WriteBack
from kvoffload.errors import WaitTimeout
from kvoffload.hits import GroupHit, GroupKeys
from kvoffload.ledger import Ledger
from kvoffload.ledger_disk import LedgerDir
from kvoffload.messages import FinishedJob, Hello, Job
from kvoffload.vllm.metadata import StepPlan
from kvoffload.vllm.requests import RequestState
from kvoffload.worth import Worth

logger = init_logger("vllm.kvoffload")

# Of host memory may be on its way from disk at a time, and so many keys: half of what a mover's disk queues.
PROMOTING_SHARE, MOST_PROMOTING_KEYS = 4, 2048
CLOSE_SECONDS = 5.0


class DiskPlans:
    """Plans promotions and demotions, and collects them for the next step. Jobs are told of by `ended`."""

    def __init__(self, ledger: Ledger, directory: LedgerDir, hello: Hello, write_through: bool, worth: Worth) -> None:
        self._ledger, self._directory, self._worth, self._counters = ledger, directory, worth, worth.counters
        self._promotions: list[Job] = []
        self._demotions: list[Job] = []
        self._write_back = WriteBack(ledger, hello, write_through, self._demotions.append)
        self._due = False  # something ended since demotions were planned last
        self.owes = False  # or since all that waits was: the engine should step once more when it has nothing to do
        self._promoting: dict[int, tuple[RequestState, Job]] = {}
        self._promoting_keys = 0
        host_keys = hello.host_bytes // max(hello.slot_bytes)
        self._most_promoting = min(max(host_keys // PROMOTING_SHARE, 1), MOST_PROMOTING_KEYS)

    def bring(self, state: RequestState, groups: Sequence[GroupKeys], hit: GroupHit) -> bool:
        """Whether the request should wait: the keys behind its hit in host memory are on their way there, by a
        promotion of this call or of somebody else, or will be when other promotions have ended.
        """
        on_their_way = False
        for group in groups if not state.disk_failed else ():
            keys = group.beyond(state.local_tokens, hit.host_tokens, hit.tokens)
            on_their_way |= self._promote(state, keys, group.group)
        return on_their_way

    def _promote(self, state: RequestState, keys: Sequence[bytes], group: int) -> bool:
        room = self._most_promoting - self._promoting_keys
        if room <= 0:
            return True
        job = self._ledger.plan_promote(keys[:room], group)
        if job is not None:
            self._promoting[job.id] = (state, job)
            self._worth.began(job)
            self._promoting_keys += len(job.keys)
            self._promotions.append(job)
            state.promotions.add(job.id)
            self._counters["promotions"] += 1
            self._counters["promoted_chunks"] += len(job.keys)
        return "filling" in self._ledger.states(keys, group)

    def ended(self, job: FinishedJob) -> None:
        """Any job: done, failed or given up. What came from disk is kept for the request that waits for it."""
        self._due = self.owes = True
        self._write_back.ended((job,))
        state, promotion = self._promoting.pop(job.id, (None, None))
        if state is None or promotion is None:
            return
        self._promoting_keys -= len(promotion.keys)
        state.disk_failed |= not job.ok
        if job.id in state.promotions:
            state.promotions.discard(job.id)
            state.holds.append(self._ledger.hold(promotion.keys, promotion.group))

    def add_to(self, plan: StepPlan, *, everything: bool) -> StepPlan:
        """The step's plan with what the disk has to do. everything: do not wait for host memory to fill up."""
        if self._due or (everything and self.owes):
            self._write_back.pump(everything=everything)
            self._due, self.owes = False, self.owes and not everything
        if not (self._promotions or self._demotions):
            return plan
        promotions, demotions = tuple(self._promotions), tuple(self._demotions)
        self._promotions.clear()
        self._demotions.clear()
        self._counters["demotions"] += len(demotions)
        self._counters["demoted_chunks"] += sum(len(job.keys) for job in demotions)
        identity = self._directory.manifest.identity if demotions else 0
        return replace(plan, promotions=promotions, demotions=demotions, slab_identity=identity)

    @property
    def busy(self) -> bool:
        """Whether jobs are under way."""
        return bool(self._promoting) or not self._write_back.idle

    def close(self) -> None:
        try:
            self._directory.close(CLOSE_SECONDS)
        except WaitTimeout as error:  # committed it is all the same
            logger.warning("kvoffload: %s", error)
