"""What of vLLM's configurations is served; everything else is refused at start with the reason.

Versions are told apart by what the installed vLLM offers, never by number.
"""

from __future__ import annotations

import importlib.util
import inspect
import re
from typing import TYPE_CHECKING

from vllm.distributed.kv_transfer.kv_connector.v1 import base
from vllm.v1.core.sched.scheduler import Scheduler

from kvoffload.errors import Unsupported

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.kv_cache_interface import KVCacheConfig, KVCacheSpec

KNOWN_ABSTRACT_METHODS = frozenset(
    {
        "start_load_kv",
        "wait_for_layer_load",
        "save_kv_layer",
        "wait_for_save",
        "get_num_new_matched_tokens",
        "update_state_after_alloc",
        "build_connector_meta",
    }
)
SERVED_SPECS = frozenset({"FullAttentionSpec", "TQFullAttentionSpec", "MLAAttentionSpec", "SlidingWindowSpec"})

# 0.32 on: a failed asynchronous load is reported by request, so with several KV groups too.
REPORTS_FAILED_REQUESTS = hasattr(base, "KVConnectorTransferResults")
# 0.32 on: a connector may wish for one row per block; 0.26 raises on names that it does not know.
HAS_BLOCK_OUTERMOST_LAYOUT = importlib.util.find_spec("vllm.v1.kv_cache_layout") is not None


def check_interface() -> None:
    """Raises Unsupported when the installed vLLM asks more of a connector than we know."""
    unknown = base.KVConnectorBase_V1.__abstractmethods__ - KNOWN_ABSTRACT_METHODS
    if unknown:
        raise Unsupported(
            f"this vLLM requires connector methods unknown to kvoffload: {', '.join(sorted(unknown))}; "
            "use a newer kvoffload"
        )


def check_config(vllm_config: VllmConfig, kv_cache_config: KVCacheConfig) -> None:
    """Raises Unsupported with the reason and what is served instead."""
    transfer = vllm_config.kv_transfer_config
    assert transfer is not None
    parallel = vllm_config.parallel_config
    if transfer.kv_role != "kv_both":
        raise Unsupported(f"kv_role is {transfer.kv_role!r}; kvoffload stores and loads: use kv_role='kv_both'")
    # Engines of one data-parallel group do not know how many share their node, so `host` could not be divided.
    if parallel.data_parallel_size > 1 or re.search(r"_dp\d+$", transfer.engine_id or ""):
        raise Unsupported("data parallelism is not served yet: tensor and pipeline parallelism are")
    for name in ("prefill_context_parallel_size", "decode_context_parallel_size"):
        if getattr(parallel, name, 1) > 1:
            raise Unsupported(f"{name} > 1 is not served yet: tensor and pipeline parallelism are")
    speculative = vllm_config.speculative_config
    if speculative is not None and speculative.method not in ("ngram", "ngram_gpu", "suffix"):
        raise Unsupported(
            f"speculative method {speculative.method!r} keeps KV of its own and is not served yet: ngram and suffix are"
        )
    _check_groups(kv_cache_config)
    _check_writes_before_hooks(vllm_config, kv_cache_config)


def _check_groups(kv_cache_config: KVCacheConfig) -> None:
    groups = kv_cache_config.kv_cache_groups
    if not groups:
        raise Unsupported("this model has no KV cache; kvoffload has nothing to offload")
    for index, group in enumerate(groups):
        for spec in layer_specs(group.kv_cache_spec):
            _check_spec(index, spec)
            # By blocks alone the request would go on from the failed one, with nothing left of the window before it.
            if type(spec).__name__ == "SlidingWindowSpec" and not REPORTS_FAILED_REQUESTS:
                raise Unsupported(f"KV cache group {index} has a sliding window: this vLLM cannot report a failed load")
        if group.is_eagle_group or not getattr(group, "enable_kv_transfer", True):
            raise Unsupported(f"KV cache group {index} is a drafter's or a replica, which is not served yet")
    if len(groups) > 1 and not REPORTS_FAILED_REQUESTS:
        raise Unsupported(f"{len(groups)} KV cache groups: this vLLM cannot report a failed load for more than one")


def _check_spec(index: int, spec: KVCacheSpec) -> None:
    name = type(spec).__name__
    if name not in SERVED_SPECS:
        raise Unsupported(
            f"KV cache group {index} is of kind {name}, which is not served yet: full attention, sliding windows and "
            "MLA are (recurrent state as mamba's, chunked local and cross attention are not)"
        )
    states = getattr(spec, "compress_ratio", 1), getattr(spec, "tokens_per_state", 1)
    if states != (1, 1):
        raise Unsupported(f"KV cache group {index} keeps one state for several tokens, which is not served yet")


def _check_writes_before_hooks(vllm_config: VllmConfig, kv_cache_config: KVCacheConfig) -> None:
    """The V2 runner zeroes and copies blocks before it calls us: a store still reading them would be too late."""
    if not runner_is_v2(vllm_config):
        return
    if getattr(kv_cache_config, "needs_kv_cache_zeroing", False):
        raise Unsupported("model runner V2 zeroes new KV blocks of this model, which is not served yet; use V1")
    if getattr(vllm_config.cache_config, "prefix_match_unit", None) is not None:
        raise Unsupported("prefix_match_unit with model runner V2 is not served yet; leave it out or use V1")


def takes_whole_prompts(kv_cache_config: KVCacheConfig) -> bool:
    """Whether a hit may end inside a block, one token before the end of a prompt.

    A scheduler that computes the last token of a prompt loaded as a whole does so over a loaded block, and then takes
    any count. Not where new blocks are zeroed: the last one might be when it is loaded already. Not with a sliding
    window: that token needs one more in front of it than the hit's end does.
    """
    specs = [spec for group in kv_cache_config.kv_cache_groups for spec in layer_specs(group.kv_cache_spec)]
    windows = any(getattr(spec, "sliding_window", None) for spec in specs)
    if windows or getattr(kv_cache_config, "needs_kv_cache_zeroing", False):
        return False
    try:
        source = inspect.getsource(Scheduler._update_waiting_for_remote_kv)
    except (AttributeError, OSError, TypeError):
        return False
    return "request.num_computed_tokens = request.num_tokens - 1" in source


def layer_specs(spec: KVCacheSpec) -> list[KVCacheSpec]:
    """The specs of a group's layers: UniformTypeKVCacheSpecs holds one per layer."""
    return list(getattr(spec, "kv_cache_specs", {"": spec}).values())


def runner_is_v2(vllm_config: VllmConfig) -> bool:
    return bool(getattr(vllm_config, "use_v2_model_runner", False))
