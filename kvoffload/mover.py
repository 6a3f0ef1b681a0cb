"""The mover: who moves bytes. One for each GPU; it knows tensors, slots and streams, and decides nothing."""

from __future__ import annotations

import ctypes
import logging
import time
import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from kvoffload import _C
from kvoffload.config import check_flag, parse_size
from kvoffload.disk import Disk, DiskOptions
from kvoffload.errors import Forked, InvalidInput, MemoryLimit, Unsupported, WaitTimeout
from kvoffload.layout import KVLayout
from kvoffload.messages import Hello, Job, JobResult
from kvoffload.paths import PathTable, check_path, check_ring, load_or_calibrate
from kvoffload.streams import stream_handle
from kvoffload.transfer import Transfer

logger = logging.getLogger("kvoffload")

Ids = npt.NDArray[np.int64] | Sequence[int]

# What a mover that nobody closed gets, when it is dropped or the process ends, before its memory is left to the copies.
UNCLOSED_SECONDS = 3.0


class Mover:
    """Moves KV blocks between a layout's tensors and a pinned host arena.

    `host` is the arena's size in bytes or as text ("64GiB", "80GB"): exactly that much is taken. The call returns when
    the first GiB is usable; the rest is pinned in the background (`background=False`: before it returns) and shows in
    later `hello()`s. At most `queue_depth` transfers a direction are unfinished at a time, one more is `QueueFull`.
    `path`: the way of every transfer, "auto" (the fastest by `path_table`), "dma", "kernel" or "staged". `ring`: device
    memory that `staged` goes through, 0 for none; less is taken where little is free (`hello().ring_bytes`).
    `calibrate`: measure the paths where no table of an earlier run is kept, which takes about a second.
    `disk`: slabs for demotions and promotions, see `DiskOptions`.
    `huge_pages` and `threads` concern how the arena is filled. Raises `MemoryLimit`, `InvalidInput`, `Unsupported`,
    `DeviceError`.

    >>> import numpy as np, kvoffload as kv
    >>> tensor = np.arange(4 * 1024, dtype=np.uint8).reshape(4, 1024)
    >>> layout = kv.KVLayout.from_tensors(tensor, tokens_per_block=16, blocks_per_chunk=2)
    >>> with kv.Mover(layout, host="1MiB") as mover:
    ...     stored = mover.store([0, 1], [7]).wait(timeout_seconds=5)
    ...     tensor[:2] = 0
    ...     mover.load([7], [0, 1]).before()
    >>> stored.bytes, int(tensor.sum()) == sum(range(256)) * 16
    (2048, True)
    """

    def __init__(
        self,
        layout: KVLayout,
        host: int | str,
        *,
        rank: int = 0,
        queue_depth: int = 256,
        path: str = "auto",
        ring: int | str = "256MiB",
        calibrate: bool = True,
        huge_pages: bool = True,
        background: bool = True,
        threads: int = 16,
        cgroup_root: str = "/sys/fs/cgroup",
        proc_root: str = "/proc",
        disk: DiskOptions | None = None,
    ) -> None:
        self.layout = layout
        self.rank = rank
        host_bytes = parse_size(host, "host")
        _check_options(layout, host_bytes, queue_depth, threads)
        self._path, ring_bytes, calibrate = check_path(path), check_ring(ring), check_flag(calibrate, "calibrate")
        device = _make_device(layout.device)
        self._arena = _C.Arena(
            device, host_bytes, huge_pages=huge_pages, background=background, held=True, threads=threads,
            cgroup_root=cgroup_root, proc_root=proc_root,
        )  # fmt: skip
        geometries = [group.geometry for group in layout.groups]
        self._engine = _C.Engine(device, self._arena, geometries, queue_depth, ring_bytes)
        try:
            self.disk = Disk(self._arena, layout, rank, disk) if disk else None
        except BaseException:  # it keeps this frame
            self._engine.close(UNCLOSED_SECONDS)
            raise
        self._hello: Hello | None = None
        # Its arguments keep the tensors until the copies are done, whatever is dropped first.
        self._finalizer = weakref.finalize(
            self, _shut_down, self._engine, self._arena, self.disk, layout, UNCLOSED_SECONDS
        )
        try:
            self._path_table = self._find_paths(device, calibrate)
        except BaseException:  # Ctrl-C while measuring too
            self.close()
            raise
        self._arena.fill_rest()  # not before: pinning slows down what the driver is asked for, and so the measurement
        chosen = self._path_table.summary() if self._path == "auto" else f"{self._path} for all, as asked"
        self._paths_in_words = f"{self._path_table.source}: {chosen}" if chosen else self._path_table.source

    def hello(self) -> Hello:
        """What this mover offers now. `ready_bytes` grows from call to call while the arena is being pinned."""
        report = self._arena.report()
        self._hello = Hello(
            rank=self.rank,
            slot_bytes=tuple(group.slot_bytes for group in self.layout.groups),
            blocks_per_chunk=tuple(group.blocks_per_chunk for group in self.layout.groups),
            host_bytes=report["bytes"],
            ready_bytes=report["ready_bytes"],
            fingerprint=self.layout.fingerprint,
            pinned=report["pinned"],
            device=self.layout.device,
            failure=report["failure"],
            ring_bytes=self._engine.ring_bytes,
            paths=self._paths_in_words,
            disk_bytes=self.disk.tier.bytes if self.disk else 0,
            slab_identity=self.disk.tier.identity if self.disk else 0,
            disk_read_bytes_per_second=self.disk.tier.report()["read_bytes_per_second"] if self.disk else 0,
        )
        return self._hello

    def hello_if_changed(self) -> Hello | None:
        """A new `hello()` if it differs from the last one given, else None. Cheap while nothing changes."""
        last = self._hello
        if last is not None and (last.failure or last.ready_bytes == last.host_bytes):
            return None  # nothing more will change
        hello = self.hello()
        return None if hello == last else hello

    def mark(self, stream: Any = None) -> _C.Mark:
        """A point in `stream` as of now, for `after=`: the transfer then waits for it and not for what came later."""
        return self._engine.mark(self._stream(stream))

    @property
    def path_table(self) -> PathTable:
        """What `auto` chooses by, and where it comes from."""
        return self._path_table

    def store(
        self, blocks: Ids, slots: Ids, *, group: int = 0, stream: Any = None, after: _C.Mark | None = None,
        job: int = 0, path: str | None = None,
    ) -> Transfer:  # fmt: skip
        """Copy device blocks to host slots, after all that `stream` (or `after`) holds so far. Returns at once.

        `blocks`: len(slots) * blocks_per_chunk block ids, each once. `path`: in place of the mover's. Raises
        `InvalidInput`, `QueueFull`, `Closed`, `Forked`; nothing was submitted then.
        """
        return self._submit(True, group, blocks, slots, 0, stream, after, job, path)

    def load(
        self, slots: Ids, blocks: Ids, *, group: int = 0, stream: Any = None, after: _C.Mark | None = None,
        skip_blocks: int = 0, job: int = 0, path: str | None = None,
    ) -> Transfer:  # fmt: skip
        """Copy host slots to device blocks, after all that `stream` (or `after`) holds so far. Returns at once.

        The first `skip_blocks` blocks of the first chunk are left untouched (their ids are not looked at). Errors as
        for `store`.
        """
        return self._submit(False, group, blocks, slots, skip_blocks, stream, after, job, path)

    def submit(
        self, job: Job, *, stream: Any = None, after: _C.Mark | None = None, path: str | None = None
    ) -> Transfer:
        """Carry out a ledger's job, a store or a load; its result comes by `poll()`."""
        store = job.kind == "store"
        skip_blocks = 0 if store else job.skip_blocks
        return self._submit(store, job.group, job.blocks, job.slots, skip_blocks, stream, after, job.id, path)

    def submit_to_disk(self, job: Job, timeout_seconds: float) -> None:
        """Carry out a demotion or promotion; its result comes by `poll()`. What has not begun by then is a miss.

        Raises `QueueFull`, `Unsupported` (the disk is off, or there is none), `Closed`.
        """
        if self.disk is None:
            raise Unsupported(f"job {job.id} is a {job.kind}: this mover was made without `disk`")
        self.disk.submit(job, timeout_seconds)

    def adopt(self, slab_identity: int) -> None:
        """What the slabs hold from now on is named by the manifest of this identity. Call it before a demotion.

        Writes a header where it is news, else nothing. Raises `KVOffloadError` when that fails: do not demote then.
        """
        if self.disk is not None and self.disk.tier.identity != slab_identity:
            self.disk.tier.set_identity(slab_identity)

    def wait_for_disk(self, timeout_seconds: float) -> None:
        """Until a demotion or promotion has ended, or none is under way, or the time is over."""
        if self.disk is not None:
            self.disk.tier.wait(timeout_seconds)

    def poll(self) -> tuple[JobResult, ...]:
        """Results of jobs that ended since the last call, each once. Never waits."""
        moved = tuple(JobResult(*result) for result in self._engine.poll())
        return moved + self.disk.poll() if self.disk else moved

    def check(self) -> None:
        """Raises `Closed` after close(), `Forked` in a child process; nothing else."""
        self._engine.check()

    def slot_view(self, group: int, slot: int) -> memoryview:
        """A slot's bytes, writable; valid until close(). For checks: nothing orders it with transfers."""
        address = self._engine.slot_address(group, slot)
        slot_bytes = self.layout.groups[group].slot_bytes
        return memoryview((ctypes.c_char * slot_bytes).from_address(address)).cast("B")

    def wait_ready(self, host_bytes: int | None = None, timeout_seconds: float = 60.0) -> None:
        """Wait until `host_bytes` (default: all) of the arena are usable. Raises `WaitTimeout`, or what stopped it."""
        self._arena.wait_ready(self._arena.bytes if host_bytes is None else host_bytes, timeout_seconds)

    def stats(self) -> dict[str, Any]:
        """Counters of each direction (`store`, `load`), the `arena`'s report, and `ring_bytes` of device memory."""
        disk = {"disk": self.disk.stats()} if self.disk else {}
        return {**self._engine.stats(), "arena": self._arena.report(), "ring_bytes": self._engine.ring_bytes, **disk}

    def close(self, timeout_seconds: float = 5.0) -> None:
        """Let transfers finish, then free the arena. Past the deadline its memory is leaked on purpose, with a warning.

        Calling it again does nothing.
        """
        self._engine.check_owner()
        if self._finalizer.detach():
            _shut_down(self._engine, self._arena, self.disk, self.layout, timeout_seconds)

    def _submit(
        self,
        store: bool,
        group: int,
        blocks: Ids,
        slots: Ids,
        skip_blocks: int,
        stream: Any,
        after: _C.Mark | None,
        job: int,
        path: str | None,
    ) -> Transfer:
        handle_of_stream = 0 if after else self._stream(stream)
        block_ids, slot_ids = _ids(blocks, "blocks"), _ids(slots, "slots")
        way = self._path if path is None else check_path(path)
        try:
            handle = self._engine.submit(
                store,
                group,
                block_ids,
                slot_ids,
                skip_blocks,
                handle_of_stream,
                after,
                job,
                "" if way == "auto" else way,
            )
        except TypeError as error:  # what the core cannot take as a number or a mark
            raise InvalidInput(
                f"group {group!r}, skip_blocks {skip_blocks!r}, job {job!r}, after {after!r}: give whole numbers below "
                "2^31, and for after a mark made by mark() or None"
            ) from error
        return Transfer(handle, self.layout)

    def _find_paths(self, device: _C.Device, calibrate: bool) -> PathTable:
        usable = self._engine.paths
        # "dma" is the plain way everywhere; on the host device it has the name "host".
        if self._path not in ("auto", "dma", *usable):
            raise InvalidInput(
                f"path is {self._path!r}, which cannot be used here (the ring has {self._engine.ring_bytes} bytes); "
                f"usable: auto, {', '.join(usable)}; raise `ring`, leave more device memory free, or take another path"
            )
        return load_or_calibrate(self._engine, device.identity(), device.link_gb_per_s(), calibrate=calibrate)

    def _stream(self, stream: Any) -> int:
        self._engine.check()  # a framework asked for its stream in a forked child raises an error of its own
        return stream_handle(stream, self.layout)

    def __enter__(self) -> Mover:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()


def _check_options(layout: KVLayout, host_bytes: int, queue_depth: int, threads: int) -> None:
    for name, value in (("queue_depth", queue_depth), ("threads", threads)):
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= 65536:
            raise InvalidInput(f"{name} {value!r}: give a whole number from 1 to 65536")
    least = len(layout.groups) * max(group.slot_bytes for group in layout.groups)
    if host_bytes < least:
        raise MemoryLimit(
            f"host {host_bytes} bytes cannot hold one chunk of each group: at least {least} bytes are needed; "
            "raise `host`, or lower `blocks_per_chunk`"
        )


def _make_device(name: str) -> _C.Device:
    return _C.host_device() if name == "host" else _C.cuda_device(int(name.removeprefix("cuda:")))


def _ids(values: Ids, name: str) -> npt.NDArray[np.int64]:
    array = np.asarray(values)
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        raise InvalidInput(f"{name}: give a flat sequence of whole numbers, not {array.dtype} of shape {array.shape}")
    return array.astype(np.int64, copy=False)


def _shut_down(engine: _C.Engine, arena: _C.Arena, disk: Disk | None, layout: KVLayout, timeout_seconds: float) -> None:
    deadline = time.monotonic() + timeout_seconds
    try:
        engine.check_owner()
        try:
            if disk is not None:
                disk.close(timeout_seconds)
        except WaitTimeout:
            arena.leak()  # the engine must not free what the disk still uses
            raise
        finally:
            engine.close(max(deadline - time.monotonic(), 0))
    except Forked:  # not ours to close
        pass
    except WaitTimeout:
        kept = (engine, arena, disk, layout)
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(kept))  # for ever, also when the process ends
        logger.warning(
            "kvoffload: transfers still ran after %.1f s; %d bytes of host memory are theirs until it ends",
            timeout_seconds,
            arena.bytes,
        )
