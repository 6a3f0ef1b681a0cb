"""What the two halves say to each other: the ledger sends a `Plan`, each mover answers `Hello` and `Results`.

Plain frozen dataclasses of ints, strings and tuples: they ride on vLLM's connector metadata and are pickled every step,
so they hold nothing else. Slot numbers and job ids are the same on every rank.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

JobKind = Literal["store", "load", "demote", "promote"]


@dataclass(frozen=True, slots=True)
class Job:
    """One batch to move, of one group.

    store, load: `blocks` has blocks_per_chunk entries for each entry of `slots` (host slots), in their order.
    `skip_blocks` (loads only) is how many blocks at the start of the first chunk are left untouched.
    demote, promote: no blocks; between `slots` and `disk_slots`, the record of each named by one of `keys`. What a
    demotion writes has the sequence numbers from `sequence` on, and `epoch`; a promotion takes only records of `epoch`.

    >>> Job(id=1, kind="store", group=0, blocks=(4, 5, 8, 9), slots=(0, 7)).slots
    (0, 7)
    """

    id: int
    kind: JobKind
    group: int
    blocks: tuple[int, ...]
    slots: tuple[int, ...]
    skip_blocks: int = 0
    disk_slots: tuple[int, ...] = ()
    keys: tuple[bytes, ...] = ()
    sequence: int = 0
    epoch: int = 0


@dataclass(frozen=True, slots=True)
class Plan:
    """What every mover has to do next; the same plan goes to all ranks.

    `slab_identity`: of the manifest that will name what the demotions write; a slab must have it before that. 0: no
    demotions.

    >>> Plan().stores
    ()
    """

    stores: tuple[Job, ...] = ()
    loads: tuple[Job, ...] = ()
    demotions: tuple[Job, ...] = ()
    promotions: tuple[Job, ...] = ()
    slab_identity: int = 0


@dataclass(frozen=True, slots=True)
class JobResult:
    """How one job ended on one rank: `bytes` moved, `seconds` from submit to end, `error` empty when `ok`.

    `failed`: positions in the job of keys that did not make it (a record that did not verify) while the others did.
    `untried`: ascending, those that failed before anything was read or written (the disk is off): they say nothing
    about what lies there.

    >>> JobResult(job=1, ok=True, bytes=524288, seconds=0.001).error
    ''
    """

    job: int
    ok: bool
    bytes: int
    seconds: float
    error: str = ""
    failed: tuple[int, ...] = ()
    untried: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Hello:
    """What a mover is, said before anything is served and again whenever `ready_bytes` has grown.

    `slot_bytes` and `blocks_per_chunk` have one entry per group. Of the `host_bytes` asked for, the first `ready_bytes`
    can be used now. Extents follow from (host_bytes, slot_bytes) by `_C.plan_extents`. `failure` says why no more will
    become ready: the capacity then stays where it is. `ring_bytes` of device memory are the mover's own, and `paths`
    says in a few words which path it takes when. `disk_bytes`: of its slab, 0 without one; `slab_identity`: which cache
    the slab belongs to, 0 when it is new; `disk_read_bytes_per_second`: as it was probed, 0 when it was not.

    >>> Hello(rank=0, slot_bytes=(4096,), blocks_per_chunk=(1,), host_bytes=8192, ready_bytes=4096,
    ...       fingerprint="f", pinned=False, device="host").failure
    ''
    """

    rank: int
    slot_bytes: tuple[int, ...]
    blocks_per_chunk: tuple[int, ...]
    host_bytes: int
    ready_bytes: int
    fingerprint: str
    pinned: bool
    device: str
    failure: str = ""
    ring_bytes: int = 0
    paths: str = ""
    disk_bytes: int = 0
    slab_identity: int = 0
    disk_read_bytes_per_second: int = 0


@dataclass(frozen=True, slots=True)
class Results:
    """What one mover has to tell since it last spoke.

    >>> Results(rank=0).hello is None
    True
    """

    rank: int
    results: tuple[JobResult, ...] = ()
    hello: Hello | None = None


@dataclass(frozen=True, slots=True)
class FinishedJob:
    """A job the ledger is done with: every rank reported, or its deadline passed (`ok` is False then).

    `late`: it had been given up before, so its keys had become a miss already.

    >>> FinishedJob(id=1, kind="load", ok=True, late=False).ok
    True
    """

    id: int
    kind: JobKind
    ok: bool
    late: bool


@dataclass(frozen=True, slots=True)
class Hit:
    """How many leading keys are ready in host memory, and how many more after them on disk.

    >>> Hit(host=3, disk=0).host
    3
    """

    host: int
    disk: int
