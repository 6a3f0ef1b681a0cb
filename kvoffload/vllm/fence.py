"""Which stores in flight read a block that a step is about to write.

vLLM frees blocks (at finish, abort, preemption) without waiting for our stores and hands them out again at once. So
each step's newly handed out blocks are compared with those that unfinished stores read; the step then waits, on the
device, for the stores found.
"""

from __future__ import annotations

from collections.abc import Iterable


class Fence:
    """Block ids of all groups share one pool, so an id alone names a block.

    >>> fence = Fence()
    >>> fence.reading(7, (1, 2))
    >>> fence.hand_out([2, 3])
    >>> fence.jobs_to_flush()
    (7,)
    """

    def __init__(self) -> None:
        self._readers: dict[int, list[int]] = {}  # block -> jobs
        self._blocks: dict[int, tuple[int, ...]] = {}  # job -> blocks
        self._fresh: list[int] = []

    def reading(self, job: int, blocks: tuple[int, ...]) -> None:
        self._blocks[job] = blocks
        for block in blocks:
            self._readers.setdefault(block, []).append(job)

    def done(self, job: int) -> None:
        for block in self._blocks.pop(job, ()):
            readers = self._readers[block]
            readers.remove(job)
            if not readers:
                del self._readers[block]

    def hand_out(self, blocks: Iterable[int]) -> None:
        """Blocks given out in this schedule(): the step, or a load of this step, writes them."""
        self._fresh.extend(blocks)

    def jobs_to_flush(self) -> tuple[int, ...]:
        """Once a step. A flushed job is forgotten: everything later on the device comes after it."""
        jobs: set[int] = set()
        if self._readers:
            for block in self._fresh:
                jobs.update(self._readers.get(block, ()))
        self._fresh.clear()
        for job in jobs:
            self.done(job)
        return tuple(sorted(jobs))

    def __len__(self) -> int:
        return len(self._blocks)
