"""kvoffload keeps an LLM's KV cache in pinned host memory and brings it back at the speed of the link.

Importing it touches no CUDA and starts no thread.
"""

from kvoffload._C import HostStream, Mark
from kvoffload.errors import (
    Cancelled,
    Closed,
    DeviceError,
    Forked,
    InvalidInput,
    KVOffloadError,
    MemoryLimit,
    MissingKey,
    QueueFull,
    Unsupported,
    UnsupportedLayout,
    WaitTimeout,
)

try:
    from kvoffload.cache import KVCache
    from kvoffload.cache_disk import Prefetch, PrefetchResult
    from kvoffload.disk import DiskOptions
    from kvoffload.hits import GroupHit, GroupKeys
    from kvoffload.layout import KVGroup, KVLayout, RawTensor
    from kvoffload.ledger import Ledger
    from kvoffload.messages import FinishedJob, Hello, Hit, Job, JobResult, Plan, Results
    from kvoffload.mover import Mover
    from kvoffload.transfer import Transfer, TransferResult
except ModuleNotFoundError as missing:  # `kvoffload fsck` and `kvoffload ls` work without it
    if missing.name != "numpy":
        raise

__version__ = "0.1.0"

__all__ = [
    "Cancelled",
    "Closed",
    "DeviceError",
    "DiskOptions",
    "FinishedJob",
    "Forked",
    "GroupHit",
    "GroupKeys",
    "Hello",
    "Hit",
    "HostStream",
    "InvalidInput",
    "Job",
    "JobResult",
    "KVCache",
    "KVGroup",
    "KVLayout",
    "KVOffloadError",
    "Ledger",
    "Mark",
    "MemoryLimit",
    "MissingKey",
    "Mover",
    "Plan",
    "Prefetch",
    "PrefetchResult",
    "QueueFull",
    "RawTensor",
    "Results",
    "Transfer",
    "TransferResult",
    "Unsupported",
    "UnsupportedLayout",
    "WaitTimeout",
]
