"""What a cache on disk is a cache of: whatever changes the KV's bytes and is not part of the block hashes."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import vllm
from vllm.platforms import current_platform
from vllm.utils.hashing import get_hash_fn_by_name
from vllm.v1.core import kv_cache_utils

if TYPE_CHECKING:
    from vllm.config import ModelConfig, VllmConfig

SAMPLES, SAMPLE_BYTES = 16, 4096  # of each file of a model
# Where an attention backend or the order of its cells is chosen besides the options.
VARIABLES = ("VLLM_ATTENTION_BACKEND", "VLLM_KV_CACHE_LAYOUT", "VLLM_MLA_DISABLE", "VLLM_USE_FLASHINFER_MLA")


def namespace_of(vllm_config: VllmConfig) -> str:
    """The same text on every rank and after every restart, as long as KV is exchangeable byte by byte.

    The shapes of tensors and chunks are left to the layout's fingerprint.
    """
    model, cache, parallel = vllm_config.model_config, vllm_config.cache_config, vllm_config.parallel_config
    attention = getattr(vllm_config, "attention_config", None)
    facts = {
        "vllm": vllm.__version__,
        "device": current_platform.get_device_name(),
        "weights": _weights(model),
        "load format": getattr(vllm_config.load_config, "load_format", None),
        "seed": model.seed,  # of weights that are made up, and of nothing else
        "config": _plain(model.hf_config),
        "overrides": _plain(model.hf_overrides),
        "dtype": model.dtype,
        "quantization": [model.quantization, _plain(getattr(model, "quantization_config", None))],
        "cache dtype": [cache.cache_dtype, getattr(cache, "kv_cache_dtype_skip_layers", [])],
        "scales": getattr(cache, "calculate_kv_scales", False),
        "block size": cache.block_size,
        "hash": [cache.prefix_caching_hash_algo, os.environ.get("PYTHONHASHSEED")],
        "ranks": [parallel.tensor_parallel_size, parallel.pipeline_parallel_size, parallel.data_parallel_size],
        "attention": getattr(attention, "backend", None),
        "environment": {name: os.environ.get(name) for name in VARIABLES},
    }
    return json.dumps(facts, sort_keys=True, default=str)


def why_not_kept(vllm_config: VllmConfig) -> str:
    """Why what an earlier engine left on disk cannot be used; empty when it can."""
    if not _hashes_are_stable(vllm_config.cache_config.prefix_caching_hash_algo):
        return "block hashes differ from one process to the next; set PYTHONHASHSEED to any number"
    if vllm_config.lora_config is not None:
        return "adapters are known by their names only, and another may come under the same one"
    if not _weights(vllm_config.model_config):
        return f"which revision of {vllm_config.model_config.model} this is cannot be told; give `revision` or a folder"
    return ""


def _hashes_are_stable(algorithm: str) -> bool:
    if os.environ.get("PYTHONHASHSEED") is not None:
        return True
    resolve = getattr(kv_cache_utils, "resolve_none_hash_seed", None)
    if resolve is None:  # before 0.32: random for every algorithm
        return False
    function = get_hash_fn_by_name(algorithm)
    return bool(resolve(function) == resolve(function))


def _weights(model: ModelConfig) -> list[Any]:
    """Files with samples of their content, or a name and a commit; empty when neither is to be had."""
    path = Path(model.model)
    if path.is_dir():
        return [_sampled(file, path) for file in sorted(path.rglob("*")) if file.is_file() and not _hidden(file, path)]
    if path.is_file():
        return [_sampled(path, path.parent)]
    commit = getattr(model.hf_config, "_commit_hash", None)
    return [model.model, commit] if commit else []


def _hidden(file: Path, folder: Path) -> bool:
    return any(part.startswith(".") for part in file.relative_to(folder).parts)


def _sampled(file: Path, folder: Path) -> tuple[str, int, str]:
    """Name, size, and a checksum of pieces that lie evenly between the file's first and last bytes."""
    size = file.stat().st_size
    digest = hashlib.sha256()
    with file.open("rb") as content:
        for i in range(SAMPLES):
            content.seek(i * max(size - SAMPLE_BYTES, 0) // (SAMPLES - 1))
            digest.update(content.read(SAMPLE_BYTES))
    return file.relative_to(folder).as_posix(), size, digest.hexdigest()


def _plain(value: Any) -> Any:
    """Without addresses in memory and orders of the moment: of a function its name, of a configuration its values."""
    to_dict = getattr(value, "to_dict", None)
    if to_dict is not None:
        return _plain(to_dict())
    if isinstance(value, Mapping):
        return {str(key): _plain(of_key) for key, of_key in value.items()}
    if isinstance(value, set | frozenset):
        return sorted(map(str, value))
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if callable(value):
        return f"{value.__module__}.{getattr(value, '__qualname__', type(value).__qualname__)}"
    return value
