"""A ledger of two tiers with ranks that do nothing by themselves; for test_ledger_field_faults*.py."""

from __future__ import annotations

import dataclasses
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kvoffload import _C
from kvoffload.ledger import Ledger
from kvoffload.messages import FinishedJob, Hello, Job, JobResult, Results

SLOT_BYTES = 4096


def key(name: object) -> bytes:
    return repr(name).encode().ljust(32, b".")


def keys_of(first: int, end: int, name: object = "") -> list[bytes]:
    return [key((name, i)) for i in range(first, end)]


class Cache:
    """A ledger, its ranks and what their slots hold: the keys' names. Nothing moves but by `run`."""

    def __init__(
        self, folder: Path, *, ranks: int = 1, host: int = 8, disk: int = 16, slabs: list[dict] | None = None,
        through: Callable[[Cache], Any] | None = None, **options: Any,
    ) -> None:  # fmt: skip
        self.ranks = range(ranks)
        self.now = 0.0
        self.manifest = _C.Manifest(str(folder), "a model", [disk], sync_seconds=60)
        self.through = through(self) if through else self.manifest  # what the ledger takes for the manifest
        self.ledger = Ledger(ranks=ranks, manifest=self.through, clock=lambda: self.now, **options)
        self.host: list[dict[int, bytes]] = [{} for _ in self.ranks]
        self.slabs: list[dict[int, bytes]] = slabs or [{} for _ in self.ranks]
        hello = Hello(
            rank=0, slot_bytes=(SLOT_BYTES,), blocks_per_chunk=(1,), host_bytes=host * SLOT_BYTES,
            ready_bytes=host * SLOT_BYTES, fingerprint="f", pinned=False, device="host", disk_bytes=disk * SLOT_BYTES,
            slab_identity=self.manifest.identity,
        )  # fmt: skip
        for rank in self.ranks:
            self.ledger.hello(dataclasses.replace(hello, rank=rank))

    def plan(self, kind: str, keys: list[bytes]) -> Job | None:
        if kind == "demote":
            return self.ledger.plan_demote(len(keys))
        if kind == "promote":
            return self.ledger.plan_promote(keys)
        plan = self.ledger.plan_store if kind == "store" else self.ledger.plan_load
        return plan(keys, range(len(keys)))  # so that a store's blocks say which keys it takes

    def move(self, rank: int, job: Job, keys: list[bytes]) -> tuple[int, ...]:
        """What the rank's mover does; positions of records that are not the key's."""
        host, slab = self.host[rank], self.slabs[rank]
        if job.kind == "store":
            host.update(zip(job.slots, (keys[block] for block in job.blocks), strict=True))
        if job.kind == "demote":
            slab.update({record: host[slot] for slot, record in zip(job.slots, job.disk_slots, strict=True)})
        if job.kind != "promote":
            return ()
        host.update({slot: slab[record] for slot, record in zip(job.slots, job.disk_slots, strict=True)})
        return tuple(i for i, record in enumerate(job.disk_slots) if slab[record] != job.keys[i])

    def report(self, rank: int, job: Job, *, ok: bool = True, failed: tuple[int, ...] = ()) -> list[FinishedJob]:
        return self.ledger.apply(Results(rank, (JobResult(job.id, ok, 0, 0.0, failed=failed),)))

    def run(self, kind: str, keys: list[bytes]) -> Job | None:
        """Plans, moves and reports on every rank."""
        job = self.plan(kind, keys)
        for rank in self.ranks if job else []:
            self.report(rank, job, failed=self.move(rank, job, keys))
        return job

    def keep(self, keys: list[bytes]) -> None:
        """To host memory and to disk."""
        self.run("store", keys)
        self.run("demote", keys)

    def load(self, keys: list[bytes]) -> list[bytes] | None:
        """What a load brings to the GPU of rank 0; None: refused."""
        job = self.plan("load", keys)
        brought = [self.host[0][slot] for slot in job.slots] if job else None
        for rank in self.ranks if job else []:
            self.report(rank, job)
        return brought

    def idle(self) -> bool:
        """Nobody owns anything any more."""
        self.ledger.check()
        stats = self.ledger.stats()
        disk = stats["disk"]
        owned = [tier[name] for tier in (stats, disk) for name in ("filling_keys", "quarantined_bytes")]
        return not any((*owned, stats["jobs_in_flight"], stats["holds"]))

    def close(self) -> list[dict[int, bytes]]:
        self.manifest.close(60)
        return self.slabs


def run_threads(work, count: int) -> None:
    """They take turns often, so that calls of others come between a plan and its report."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        threads = [threading.Thread(target=work, args=(i,)) for i in range(count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(before)
