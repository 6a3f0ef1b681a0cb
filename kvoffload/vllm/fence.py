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
        self._blocks: dict[int, frozenset[int]] = {}  # job -> blocks; no more jobs than a mover queues
        self._fresh: set[int] = set()

    def reading(self, job: int, blocks: Iterable[int]) -> None:
        self._blocks[job] = frozenset(blocks)

    def done(self, job: int) -> None:
        self._blocks.pop(job, None)

    def hand_out(self, blocks: Iterable[int]) -> None:
        """Blocks given out in this schedule(): the step, or a load of this step, writes them."""
        self._fresh.update(blocks)

    def jobs_to_flush(self) -> tuple[int, ...]:
        """Once a step. A flushed job is forgotten: everything later on the device comes after it."""
        jobs = [job for job, blocks in self._blocks.items() if not blocks.isdisjoint(self._fresh)]
        self._fresh.clear()
        for job in jobs:
            self.done(job)
        return tuple(sorted(jobs))

    def __len__(self) -> int:
        return len(self._blocks)
