"""What the scheduler half remembers of one request."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kvoffload.ledger import Hold
from kvoffload.vllm.groups import ChunkGroup, Chunks

if TYPE_CHECKING:
    from vllm.v1.request import Request

Answer = tuple[int | None, bool]  # of get_num_new_matched_tokens
Verdict = tuple[int, int, int, bool]  # tokens worth loading, in host memory, in all, and whether all is tried anyway
Stamp = tuple[int, int, int]  # local tokens, tokens of the request, generation of the ledger


@dataclass(slots=True)
class RequestState:
    """One request, from its first lookup until it is finished.

    `table`: block ids per group. `next_chunk`: per group the first chunk not yet considered for storing; the earliest
    of them is complete at `next_tokens`. `muted`: stores nothing until it starts anew; its KV is older than a reset.
    `prompt_only`: what decoding computes is not stored.
    """

    request: Request
    prompt_only: bool = False
    local_tokens: int = 0
    queried_tokens: int = 0  # of a lookup, until blocks are given out: to be counted once
    table: list[list[int]] = field(default_factory=list)
    next_chunk: list[int] = field(default_factory=list)
    next_tokens: float = math.inf
    computed_tokens: int = 0
    settled_tokens: int = 0  # computed before the step: blocks behind a window that ends here are somebody else's
    muted: bool = False
    holds: list[Hold] = field(default_factory=list)
    loading: list[tuple[int, bytes]] = field(default_factory=list)  # (group, key) of a load until it is admitted
    failed_loads: int = 0  # jobs
    open_loads: set[int] = field(default_factory=set)  # jobs of that load that have not ended on all ranks
    promotions: set[int] = field(default_factory=set)  # jobs that bring keys from disk, which it waits for
    disk_failed: bool = False  # one of these did not end well: what is still on disk is not asked for again
    waiting_since: float | None = None
    stamp: Stamp | None = None
    answer: Answer = (0, False)
    accepted_tokens: int = 0  # a hit up to here was found worth loading
    verdict: Verdict | None = None  # on a hit that was not, in part or as a whole
    offered: bool = False  # vLLM was given an answer to act on, and has not given out blocks since

    def begin(self, groups: Sequence[ChunkGroup], table: Sequence[Sequence[int]]) -> None:
        """The request was given blocks. All its chunks are looked at again: known ones are only touched."""
        self.table = [list(blocks) for blocks in table]
        self.next_chunk = [0] * len(groups)
        self.computed_tokens = 0
        self.next_tokens = math.inf if self.muted else min((g.tokens_per_chunk for g in groups), default=math.inf)

    def extend(self, new_blocks: Sequence[Sequence[int]]) -> None:
        for known, blocks in zip(self.table, new_blocks, strict=False):  # a muted request keeps no table
            known.extend(blocks)

    def forget_blocks(self) -> None:
        """Preempted: its blocks are somebody else's."""
        self.table = []
        self.next_tokens = math.inf

    def mute(self) -> None:
        self.muted = True
        self.forget_blocks()

    def complete_chunks(self, groups: Sequence[ChunkGroup]) -> Chunks:
        """Per group (keys, blocks) of the chunks that were completed since the last call; empty when there are none.

        A chunk is complete when its tokens are computed, or will be at the end of the planned step, and hashed: with
        asynchronous scheduling the hash comes a step later.
        """
        if self.muted or not self.table or not groups:
            return []
        hashes = self.request.block_hashes
        most_tokens = self.request.num_prompt_tokens if self.prompt_only else math.inf
        found: Chunks = []
        found_any = False
        self.next_tokens = math.inf
        for group in groups:
            tokens = int(min(self.computed_tokens, len(hashes) * group.tokens_per_hash, most_tokens))
            end = tokens // group.tokens_per_chunk
            first = max(self.next_chunk[group.index], group.first_needed(0, self.settled_tokens))
            found.append(([], []))
            if end > first:
                found[-1] = group.complete(hashes, self.table[group.index], first, end)
                found_any |= bool(found[-1][0])
            self.next_chunk[group.index] = first = max(first, end)
            next_tokens = (first + 1) * group.tokens_per_chunk
            if next_tokens <= most_tokens:
                self.next_tokens = min(self.next_tokens, next_tokens)
        return found if found_any else []

    def stop_waiting(self) -> None:
        self.release_holds()
        self.promotions.clear()
        self.disk_failed = False
        self.accepted_tokens, self.verdict = 0, None

    def release_holds(self) -> None:
        for hold in self.holds:
            hold.release()
        self.holds = []
