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
    """

    request: Request
    local_tokens: int = 0
    queried_tokens: int = 0  # of a lookup, until blocks are given out: to be counted once
    table: list[list[int]] = field(default_factory=list)
    next_chunk: list[int] = field(default_factory=list)
    next_tokens: float = math.inf
    computed_tokens: int = 0
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
        found: Chunks = []
        found_any = False
        self.next_tokens = math.inf
        for group in groups:
            tokens = min(self.computed_tokens, len(hashes) * group.tokens_per_hash)
            first, end = self.next_chunk[group.index], tokens // group.tokens_per_chunk
            if end > first:
                blocks = self.table[group.index][first * group.blocks_per_chunk : end * group.blocks_per_chunk]
                found.append((group.keys(hashes, first, end), blocks))
                found_any = True
                self.next_chunk[group.index] = first = end
            else:
                found.append(([], []))
            self.next_tokens = min(self.next_tokens, (first + 1) * group.tokens_per_chunk)
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
