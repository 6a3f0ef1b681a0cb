"""KVCache: one ledger and one mover in one process, for engines that can hand over tensors."""

from __future__ import annotations

import contextlib
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from kvoffload.cache_disk import KEPT_SHARE, Prefetch, WriteBack, pump_in_background
from kvoffload.config import check_flag, check_options
from kvoffload.disk import DiskOptions, Paths
from kvoffload.errors import InvalidInput, KVOffloadError, MissingKey, WaitTimeout
from kvoffload.layout import KVLayout
from kvoffload.ledger import Admission, Ledger, Policy
from kvoffload.ledger_disk import LedgerDir
from kvoffload.messages import Hello, Hit, Job, Results
from kvoffload.mover import Ids, Mover
from kvoffload.prefill import Work
from kvoffload.transfer import Transfer, TransferResult
from kvoffload.worth import Worth, WorthLoading, check_worth_loading

MOVER_OPTIONS = (
    "queue_depth", "path", "ring", "calibrate", "huge_pages", "background", "threads", "cgroup_root", "proc_root",
)  # fmt: skip
DISK_OPTIONS = ("namespace", "dp", "disk_io", "disk_network")
OPTIONS = (
    "host", "disk", "disk_size", "write_through", "admission", "disk_writes_per_day", "deadline_seconds", "policy",
    "worth_loading", *DISK_OPTIONS, *MOVER_OPTIONS,
)  # fmt: skip


class KVCache:
    """Keeps KV chunks in pinned host memory, and on disk, under the caller's keys.

    A key is at least 16 bytes that name a chunk's content (`blocks_per_chunk` blocks of one group). `host` is the size
    of the host tier in bytes or as text; other options are `Mover`'s, and `deadline_seconds`, after which a transfer
    that has not ended counts as failed, and `policy`, by which keys go when the tier is full. Any thread may call.

    `disk`: a directory, or several of several drives, of which `disk_size` in all is taken; see `DiskOptions` for
    `namespace`, `dp`, `disk_io`, `disk_network`. What is stored goes there before host memory needs the room
    (`write_through`: at once), as far as `admission` and `disk_writes_per_day` allow (see `Ledger`); `prefetch` brings
    it back; and a restart knows it. `close` writes what is not there yet, as far as its time goes.

    `worth_loading`: "auto" lets `lookup` leave out what takes longer to load than to compute, by the speeds measured
    here and what `note_prefill` was told (nothing, as long as it is told nothing); "always" leaves out nothing, "never"
    everything.

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
        self, layout: KVLayout, host: int | str, *, disk: Paths | None = None, disk_size: int | str | None = None,
        write_through: bool = False, admission: Admission = "all", disk_writes_per_day: int | str | None = None,
        deadline_seconds: float = 30.0, policy: Policy = "adaptive", worth_loading: WorthLoading = "auto",
        **options: Any,
    ) -> None:  # fmt: skip
        check_options(options, OPTIONS, "KVCache")
        disk_options = {name: options.pop(name) for name in DISK_OPTIONS if name in options}
        if disk is None and (disk_size is not None or disk_options):
            raise InvalidInput(f"{', '.join(['disk_size', *disk_options])}: these need the option `disk`, a directory")
        check_flag(write_through, "write_through")
        check_worth_loading(worth_loading)
        self.layout, self._deadline_seconds = layout, deadline_seconds
        self._settling = threading.RLock()  # a signal handler may call in
        self._settling_now = False
        self._prefill_told = False
        self._prefetches: dict[int, Callable[[], Prefetch | None]] = {}  # by job, as long as somebody has them
        self._directory: LedgerDir | None = None
        self._write_back: WriteBack | None = None
        self._stop_pump = threading.Event()
        where = None if disk is None else DiskOptions.parse(disk, disk_size, **disk_options)
        self._mover = Mover(layout, host, disk=where, **options)
        try:
            hello = self._mover.hello()
            self._worth = Worth(
                worth_loading, hello.slot_bytes,
                [group.tokens_per_chunk for group in layout.groups], hello.disk_read_bytes_per_second,
            )  # fmt: skip
            if where is not None:
                self._directory = LedgerDir(
                    where.directories[0], where.fingerprint(layout), where.dp, disk_bytes=hello.disk_bytes,
                    slot_bytes=hello.slot_bytes, data_files=self._tier.paths,
                )  # fmt: skip
            self._ledger = Ledger(
                ranks=1, deadline_seconds=deadline_seconds, policy=policy, admission=admission,
                disk_writes_per_day=disk_writes_per_day, manifest=self._directory.manifest if self._directory else None,
            )  # fmt: skip
            self._ledger.hello(hello)
            if self._directory is not None:
                self._begin_with_disk(self._directory, hello, write_through, deadline_seconds)
        except BaseException:  # it keeps this frame, and so all that is open
            self.close()
            raise

    def lookup(self, keys: Sequence[bytes], group: int = 0) -> Hit:
        """How many leading keys are ready in host memory (`host`), and how many more follow on disk (`disk`).

        Of these, those that are worth loading (see `worth_loading`) for a prompt that begins with the first key.
        """
        self._settle()
        hit = self._ledger.lookup(keys, group)
        if self._worth.mode == "auto" and not self._prefill_told:
            return hit
        chunk_tokens = self.layout.groups[group].tokens_per_chunk
        end = self._worth.take(hit.host * chunk_tokens, (hit.host + hit.disk) * chunk_tokens) // chunk_tokens
        host = min(end, hit.host)
        return Hit(host, end - host)

    def note_prefill(self, tokens: int, seconds: float, context_tokens: int = 0) -> None:
        """A step of the engine computed `tokens` of prompts, behind `context_tokens`, and took so long.

        0 tokens: a step that only decoded. From the first call on `lookup` obeys the rule, and after 16 steps with
        tokens it goes by what they took.
        """
        if tokens < 0 or context_tokens < 0:
            raise InvalidInput(f"tokens {tokens!r}, context_tokens {context_tokens!r}: give numbers from 0 on")
        self._prefill_told = True
        self._worth.note(Work.of(tokens, context_tokens), seconds)

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

    def prefetch(self, keys: Sequence[bytes], group: int = 0) -> Prefetch:
        """Bring leading keys from disk to host memory, each verified; returns at once.

        They end where a key is in no tier, host memory has no room, or three quarters of it wait for the disk. `wait`
        says how many are there; they stay until `release`. Without a disk it is a hold on what host memory has.
        """
        self._settle()
        job = self._ledger.plan_promote(keys[: self._most_prefetched(keys, group)], group)
        prefetch = Prefetch(self._ledger, keys, group, self._settle, self._wait_for_disk)
        if job is None:
            return prefetch
        self._prefetches[job.id] = weakref.ref(prefetch)
        try:
            self._worth.began(job)
            self._mover.submit_to_disk(job, self._deadline_seconds)
        except KVOffloadError:  # the disk is off or has too much to do: what is there now is the answer
            self._prefetches.pop(job.id, None)
            self._worth.ended(job.id)
            self._ledger.abandon(job.id)
        return prefetch

    def reset(self) -> None:
        """Forget everything, durably. Stores in flight never become visible."""
        self._settle()
        self._ledger.reset()

    def stats(self) -> dict[str, Any]:
        """The ledger's counters and gauges, the mover's under `mover`, and those of the rule under `worth_loading`."""
        self._settle()
        return {**self._ledger.stats(), "mover": self._mover.stats(), "worth_loading": self._worth.stats()}

    def mark(self, stream: Any = None) -> Any:
        """A point in `stream` as of now, for `after=`."""
        return self._mover.mark(stream)

    def close(self, timeout_seconds: float = 5.0) -> None:
        """Let transfers finish and free the memory, see `Mover.close`. Calling it again does nothing.

        With a disk, what is not written yet is written first; what is not on it when time is over will be a miss.
        """
        deadline = time.monotonic() + timeout_seconds
        self._stop_pump.set()
        self._flush(deadline - timeout_seconds / 4)  # the rest is for what is under way then
        self._mover.close(max(deadline - time.monotonic(), 0))
        if self._directory is not None:
            with contextlib.suppress(WaitTimeout):  # committed it is all the same
                self._directory.close(max(deadline - time.monotonic(), 1))

    def __enter__(self) -> KVCache:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def _submit(self, job: Job, stream: Any, after: Any, path: str | None) -> Transfer:
        self._worth.began(job)
        try:
            return self._mover.submit(job, stream=stream, after=after, path=path)
        except Exception:  # whatever it was (a framework's own error for its stream, say), nothing was submitted
            self._worth.ended(job.id)
            self._ledger.abandon(job.id)
            raise

    def _nothing_to_do(self, group: int, stream: Any) -> Transfer:
        none = np.empty(0, dtype=np.int64)
        return self._mover.store(none, none, group=group, stream=stream)

    @property
    def _tier(self) -> Any:
        assert self._mover.disk is not None
        return self._mover.disk.tier

    def _begin_with_disk(
        self, directory: LedgerDir, hello: Hello, write_through: bool, deadline_seconds: float
    ) -> None:
        mover = self._mover  # the callback must not keep this cache
        mover.adopt(directory.manifest.identity)  # where it is another one the ledger has dropped what the slab held
        self._write_back = WriteBack(
            self._ledger, hello, write_through, lambda job: mover.submit_to_disk(job, deadline_seconds)
        )
        self._stop_pump = pump_in_background(self, _step, self._tier.wait)

    def _most_prefetched(self, keys: Sequence[bytes], group: int) -> int:
        """So many leading keys are there, or may be asked of the disk."""
        stats = self._ledger.stats()["groups"][group]
        most = stats["capacity_slots"] - stats["capacity_slots"] // KEPT_SHARE
        room = most - stats["filling_keys"] - stats["quarantined_slots"]
        states = self._ledger.states(keys, group)
        there = next((i for i, state in enumerate(states) if state != "ready"), len(states))
        return there + max(room, 0)

    def _wait_for_disk(self, seconds: float) -> None:
        if self._mover.disk is not None and self._tier.stats()["jobs"]:
            self._tier.wait(seconds)
        else:
            time.sleep(0.001)  # a store that is still running

    def _flush(self, deadline: float) -> None:
        """Demote all that waits, until the deadline."""
        if self._write_back is None:
            return
        with contextlib.suppress(KVOffloadError):  # closed before
            while time.monotonic() < deadline:
                storing = self._mover.stats()["store"]["unfinished"]  # before: what ends meanwhile is seen below
                self._settle(flush=True)
                if self._write_back.idle and not storing:
                    return
                self._wait_for_disk(min(deadline - time.monotonic(), 0.05))

    def _settle(self, *, pump: bool = False, flush: bool = False) -> None:
        """Tell the ledger what ended and what of the arena is ready. Every call does, so nothing waits for a poll().

        Raises `Closed` and `Forked`.
        """
        self._mover.check()
        with self._settling:
            if self._settling_now:  # interrupted in the midst of this by a signal handler, which calls in
                return
            self._settling_now = True
            try:
                self._take_results(pump, flush)
            finally:
                self._settling_now = False

    def _take_results(self, pump: bool, flush: bool) -> None:
        results = Results(rank=0, results=self._mover.poll(), hello=self._mover.hello_if_changed())
        self._worth.took(0, results.results)
        ended = self._ledger.apply(results) if results.results or results.hello else []
        ended += self._ledger.expire()
        for job in ended:
            self._worth.ended(job.id)
            if prefetch := self._prefetches.pop(job.id, _nobody)():
                prefetch.look()  # before anything is planned that could push its keys out
        if self._write_back is not None and (ended or pump or flush):
            self._write_back.ended(ended)
            self._write_back.pump(everything=flush)


def _nobody() -> None:
    """Of a job that no prefetch waits for."""


def _step(cache: KVCache) -> bool:
    """For the pump: whether the disk has something to do."""
    cache._settle(pump=True)
    return bool(cache._tier.stats()["jobs"])


def _plain(block_ids: Ids) -> list[int]:
    array = np.asarray(block_ids)
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        raise InvalidInput(
            f"block_ids: give a flat sequence of whole numbers, not {array.dtype} of shape {array.shape}"
        )
    return array.tolist()


__all__ = ["OPTIONS", "KVCache", "TransferResult"]
