"""What vLLM's steps compute, and whether they leave the GPU time for more."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, NamedTuple

from kvoffload.prefill import Work

if TYPE_CHECKING:
    from vllm.v1.core.sched.output import SchedulerOutput


class FullStep(NamedTuple):
    """A step of so many tokens, or so many requests, leaves no time for others: those wait."""

    tokens: int = sys.maxsize
    requests: int = sys.maxsize

    def reached(self, scheduled: SchedulerOutput) -> bool:
        counts = scheduled.num_scheduled_tokens
        return len(counts) >= self.requests or sum(counts.values()) >= self.tokens


def prefill_of(scheduled: SchedulerOutput) -> Work | None:
    """What is computed for requests with more than one token (drafts aside) in this step. None: no tokens at all."""
    counts, drafts = scheduled.num_scheduled_tokens, scheduled.scheduled_spec_decode_tokens
    if not counts:
        return None
    total = Work(0, 0.0)
    several = [name for name, count in counts.items() if count > 1 and count - len(drafts.get(name, ())) > 1]
    if not several:
        return total
    running = scheduled.scheduled_cached_reqs
    before = dict(zip(running.req_ids, running.num_computed_tokens, strict=True))
    before.update((new.req_id, new.num_computed_tokens) for new in scheduled.scheduled_new_reqs)
    for request_id in several:
        work = Work.of(counts[request_id], before[request_id])
        total = Work(total.tokens + work.tokens, total.pairs + work.pairs)
    return total
