"""KVCache: one ledger and one mover in one process, for engines that can hand over tensors."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import numpy as np

from kvoffload.config import check_options
from kvoffload.errors import InvalidInput, MissingKey
from kvoffload.layout import KVLayout
from kvoffload.ledger import Ledger, Policy
from kvoffload.messages import Hit, Job, Results
from kvoffload.mover import Ids, Mover
from kvoffload.transfer import Transfer, TransferResult

MOVER_OPTIONS = (
    "queue_depth", "path", "ring", "calibrate", "huge_pages", "background", "threads", "cgroup_root", "proc_root",
)  # fmt: skip
OPTIONS = ("host", "deadline_seconds", "policy", *MOVER_OPTIONS)


class KVCache:
    """Keeps KV chunks in pinned host memory under the caller's keys.

    A key is at least 16 bytes that name a chunk's content (`blocks_per_chunk` blocks of one group). `host` is the size
    of the host tier in bytes or as text; other options are `Mover`'s, and `deadline_seconds`, after which a transfer
    that has not ended counts as failed, and `policy`, by which keys go when the tier is full. Any thread may call.

    >>> import numpy as np, kvoffload as kv
    >>> tensor = np.arange(8 * 4096, dtype=np.uint16).reshape(8, 4096)
    >>> layout = kv.KVLayout.from_tensors(tensor, tokens_per_block=16, blocks_per_chunk=1)
    >>> keys = [b"0123456789abcdef", b"fedcba9876543210"]
    >>> with kv.KVCache(layout, host="1MiB") as cache:
    ...     cache.store(keys, [0, 1]).wait(timeout_seconds=5).ok
    ...     hit = cache.lookup(keys)
    ...     cache.load(keys, [6, 7]).before()
    True
    >>> hit.host, bool((tensor[6:] == tensor[:2]).all())
    (2, True)
    """

    def __init__(
        self, layout: KVLayout, host: int | str, *, deadline_seconds: float = 30.0, policy: Policy = "adaptive",
        **options: Any,
    ) -> None:  # fmt: skip
        check_options(options, OPTIONS, "KVCache")
        self.layout = layout
        self._mover = Mover(layout, host, **options)
        self._ledger = Ledger(ranks=1, deadline_seconds=deadline_seconds, policy=policy)
        self._ledger.hello(self._mover.hello())
        self._settling = threading.Lock()

    def lookup(self, keys: Sequence[bytes], group: int = 0) -> Hit:
        """How many leading keys are ready in host memory (`host`), and how many more follow on disk (`disk`)."""
        self._settle()
        return self._ledger.lookup(keys, group)

    def store(
        self, keys: Sequence[bytes], block_ids: Ids, *, group: int = 0, stream: Any = None, after: Any = None,
        path: str | None = None,
    ) -> Transfer:  # fmt: skip
        """Keep the content of `block_ids` (len(keys) * blocks_per_chunk) under `keys`; returns at once.

        Keys that are there, or on their way, cost nothing. Where there is no room the last ones are dropped and counted
        (`stats()["dropped_keys"]`). A key can be looked up once its bytes are complete. `path`: the way they go, in
        place of the option. Raises `InvalidInput`, `QueueFull` (nothing was stored), `Closed`.
        """
        self._settle()
        job = self._ledger.plan_store(keys, _plain(block_ids), group)
        return self._submit(job, stream, after, path) if job else self._nothing_to_do(group, stream)

    def load(
        self, keys: Sequence[bytes], block_ids: Ids, *, group: int = 0, stream: Any = None, after: Any = None,
        skip_blocks: int = 0, path: str | None = None,
    ) -> Transfer:  # fmt: skip
        """Bring `keys` into `block_ids` (len(keys) * blocks_per_chunk); returns at once, see `Transfer.before`.

        The first `skip_blocks` blocks of the first chunk are left untouched. Raises `MissingKey` when a key is
        not ready in host memory, else as `store`.
        """
        self._settle()
        if not len(keys):
            return self._nothing_to_do(group, stream)
        job = self._ledger.plan_load(keys, _plain(block_ids), group, skip_blocks)
        if job is None:
            held = self._ledger.lookup(keys, group).host
            raise MissingKey(
                f"load of {len(keys)} keys: only the first {held} are ready in host memory; look keys up first"
            )
        return self._submit(job, stream, after, path)

    def reset(self) -> None:
        """Forget everything. Stores in flight never become visible."""
        self._settle()
        self._ledger.reset()

    def stats(self) -> dict[str, Any]:
        """The ledger's counters and gauges, and the mover's under `mover`."""
        self._settle()
        return {**self._ledger.stats(), "mover": self._mover.stats()}

    def mark(self, stream: Any = None) -> Any:
        """A point in `stream` as of now, for `after=`."""
        return self._mover.mark(stream)

    def close(self, timeout_seconds: float = 5.0) -> None:
        """Let transfers finish and free the memory, see `Mover.close`. Calling it again does nothing."""
        self._mover.close(timeout_seconds)

    def __enter__(self) -> KVCache:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def _submit(self, job: Job, stream: Any, after: Any, path: str | None) -> Transfer:
        try:
            return self._mover.submit(job, stream=stream, after=after, path=path)
        except Exception:  # whatever it was (a framework's own error for its stream, say), nothing was submitted
            self._ledger.abandon(job.id)
            raise

    def _nothing_to_do(self, group: int, stream: Any) -> Transfer:
        none = np.empty(0, dtype=np.int64)
        return self._mover.store(none, none, group=group, stream=stream)

    def _settle(self) -> None:
        """Tell the ledger what ended and what of the arena is ready. Every call does, so nothing waits for a poll().

        Raises `Closed` and `Forked`.
        """
        self._mover.check()
        with self._settling:
            results = Results(rank=0, results=self._mover.poll(), hello=self._mover.hello_if_changed())
            if results.results or results.hello:
                self._ledger.apply(results)
            self._ledger.expire()


def _plain(block_ids: Ids) -> list[int]:
    array = np.asarray(block_ids)
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        raise InvalidInput(
            f"block_ids: give a flat sequence of whole numbers, not {array.dtype} of shape {array.shape}"
        )
    return array.tolist()


__all__ = ["OPTIONS", "KVCache", "TransferResult"]
