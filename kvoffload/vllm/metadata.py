"""The two halves' messages as they ride on vLLM's connector metadata: pickled, so plain ints, strings and tuples.

None of these classes has a length or a truth value: vLLM drops metadata that is falsy.
"""

from __future__ import annotations

from dataclasses import dataclass

from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorHandshakeMetadata,
    KVConnectorMetadata,
    KVConnectorWorkerMetadata,
)

from kvoffload.messages import Hello, Job, Results


@dataclass(frozen=True, slots=True)
class Load:
    """Everything loaded for one request. `refused`: blocks that cannot be loaded after all; the worker reports them."""

    request_id: str
    jobs: tuple[Job, ...]
    refused: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class StepPlan(KVConnectorMetadata):
    """Scheduler to workers, once a step. The worker goes through it in this order."""

    early: tuple[Job, ...] = ()  # stores of blocks that are free already: read before this step writes
    flush: tuple[int, ...] = ()  # jobs of stores whose blocks this step reuses: its writes wait for their reads
    loads: tuple[Load, ...] = ()
    stores: tuple[Job, ...] = ()  # of blocks that are complete after this step
    promotions: tuple[Job, ...] = ()  # these two go by threads of the disk's own, and never delay a step
    demotions: tuple[Job, ...] = ()
    slab_identity: int = 0  # as in Plan
    pause_seconds: float = 0.0  # this step has no tokens and requests or the engine's rest wait for the disk alone


NOTHING = StepPlan()


@dataclass(frozen=True, slots=True)
class WorkerReport(KVConnectorWorkerMetadata):
    """Workers to scheduler: what ended since the last report, of one rank or (aggregated) of several."""

    results: tuple[Results, ...]

    def aggregate(self, other: KVConnectorWorkerMetadata) -> WorkerReport:
        assert isinstance(other, WorkerReport)
        return WorkerReport(self.results + other.results)


@dataclass(frozen=True, slots=True)
class Greeting(KVConnectorHandshakeMetadata):
    """Each worker's Hello, collected by vLLM after the KV tensors were registered and before anything is served.

    With a disk `fingerprint` names the directory of what is kept, `data_files` are this rank's slabs, and `disk_io`
    says how these are read and written.
    """

    hello: Hello
    fingerprint: str = ""
    data_files: tuple[str, ...] = ()
    disk_io: str = ""
