"""What happens to the model and its memory between steps: new weights and sleep. No connector is told of either.

So methods of vLLM's own are watched, each wrapped once a process. Whatever users do to workers passes through
`EngineCore.collective_rpc`, new weights among it; `Worker.sleep` and `Worker.discard` give the KV tensors' memory away.
What goes round these, such as a caller in the engine's process that writes into the model, is not seen.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from vllm.distributed.kv_transfer import get_kv_transfer_group, has_kv_transfer_group

from kvoffload import _C
from kvoffload.errors import Unsupported

if TYPE_CHECKING:
    from vllm.config import VllmConfig

# Calls known to leave weights as they are. An unknown one, a function or an extension's method, may be an update.
WEIGHTS_STAY = frozenset(
    {
        "add_lora", "remove_lora", "pin_lora", "list_loras", "profile", "check_health", "get_model_inspection",
        "get_supported_tasks", "reset_mm_cache", "reset_encoder_cache", "synchronize_device", "update_max_model_len",
        "compute_weight_checksums", "init_weight_transfer_engine", "shutdown_weight_transfer_engine",
        "save_sharded_state", "save_tensorized_model", "checkpoint_prepare", "checkpoint_restore",
    }
)  # fmt: skip


class Commits:
    """A manifest that can be told to commit nothing more: then nothing is found after a restart, also after a kill."""

    def __init__(self, manifest: _C.Manifest) -> None:
        self._manifest = manifest
        self.kept = True

    def __getattr__(self, name: str) -> Any:
        return getattr(self._manifest, name)

    def commit(self, *record: Any) -> None:
        if self.kept:
            self._manifest.commit(*record)


def watch_engine() -> None:
    """In the process of the scheduler half. Raises Unsupported when this vLLM has another way to the workers."""
    from vllm.v1.engine.core import EngineCore

    _wrap(EngineCore, "collective_rpc", _before_call)
    _wrap(EngineCore, "sleep", _before_sleep)


def watch_worker(vllm_config: VllmConfig) -> None:
    """In a worker's process."""
    worker: Any = vllm_config.parallel_config.worker_cls
    if isinstance(worker, str):
        module, _, name = worker.rpartition(".")
        if not module:  # "auto": a platform that chose none has none
            return
        worker = getattr(importlib.import_module(module), name)
    for name in ("sleep", "discard"):
        if hasattr(worker, name):
            _wrap(worker, name, _before_memory_goes)


def _wrap(owner: type[Any], name: str, before: Callable[..., None]) -> None:
    original = getattr(owner, name, None)
    if original is None:
        raise Unsupported(f"this vLLM has no {owner.__name__}.{name}, by which new weights are noticed")
    if getattr(original, "kvoffload_watches", False):
        return

    @functools.wraps(original)
    def watched(self: Any, *args: Any, **kwargs: Any) -> Any:
        before(self, *args, **kwargs)
        return original(self, *args, **kwargs)

    watched.kvoffload_watches = True  # type: ignore[attr-defined]
    setattr(owner, name, watched)


def _before_call(core: Any, method: Any, *_: Any, **__: Any) -> None:
    name = method if isinstance(method, str) else getattr(method, "__qualname__", "a function")
    if name not in WEIGHTS_STAY:
        _tell(core, f"{name} called on the workers")


def _before_sleep(core: Any, level: int = 1, *_: Any, **__: Any) -> None:
    if level >= 2:  # the weights are thrown away, so others may come; level 1 brings the same back
        _tell(core, f"sleep at level {level}")


def _tell(core: Any, event: str) -> None:
    """The engine's scheduler half, if it has one by now and it is ours."""
    connector = getattr(getattr(core, "scheduler", None), "connector", None)
    new_weights = getattr(connector, "new_weights", None)
    if new_weights is not None:
        new_weights(event)


def _before_memory_goes(*_: Any, **__: Any) -> None:
    connector = get_kv_transfer_group() if has_kv_transfer_group() else None
    before_sleep = getattr(connector, "before_sleep", None)
    if before_sleep is not None:
        before_sleep()
