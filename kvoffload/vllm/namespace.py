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
    from vllm.config import ModelConfig, ParallelConfig, VllmConfig

# Of a model's files: so many pieces in all, but at least a few of each, so that it takes a second and not a minute.
SAMPLES, LEAST_SAMPLES, SAMPLE_BYTES = 4096, 16, 4096
MOST_HEADER_BYTES = 100 << 20  # what safetensors allows itself
WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".gguf")
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
        "changed": _changed(model, parallel),
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
    if getattr(model, "model_weights", None):  # in an object store: the folder beside it has configurations only
        return []
    path = Path(model.model)
    files = _files(path)
    if files:
        samples = max(SAMPLES // len(files), LEAST_SAMPLES)
        return [(name, *_sampled(file, samples)) for name, file in files]
    commit = getattr(model.hf_config, "_commit_hash", None)
    return [model.model, commit] if commit and not path.exists() else []


def _changed(model: ModelConfig, parallel: ParallelConfig) -> list[tuple[str, int]]:
    """When the files of weights were written last: samples may miss what somebody changed in them.

    Copies on several nodes have times of their own, so there samples have to do.
    """
    if getattr(parallel, "local_world_size", 1) < getattr(parallel, "world_size", 1):
        return []
    weights = [(name, file) for name, file in _files(Path(model.model)) if file.suffix in WEIGHTS]
    return [(name, file.stat().st_mtime_ns) for name, file in weights]


def _files(path: Path) -> list[tuple[str, Path]]:
    """Of a model that is a folder or a file, by names within it and in their order; hidden ones are not the model's."""
    if path.is_file():
        return [(path.name, path)]
    named = {file.relative_to(path): file for file in path.rglob("*") if file.is_file()} if path.is_dir() else {}
    return [(name.as_posix(), named[name]) for name in sorted(named) if not any(p.startswith(".") for p in name.parts)]


def _sampled(file: Path, samples: int) -> tuple[int, str]:
    """Size, and a checksum of pieces: evenly from the first byte to the last, of safetensors the header and the
    beginnings of tensors too.
    """
    size = file.stat().st_size
    starts = [i * max(size - SAMPLE_BYTES, 0) // (LEAST_SAMPLES - 1) for i in range(LEAST_SAMPLES)]
    digest = hashlib.sha256()
    with file.open("rb") as content:
        if file.suffix == ".safetensors":
            header_bytes = min(int.from_bytes(content.read(8), "little"), MOST_HEADER_BYTES, size)
            header = content.read(header_bytes)
            digest.update(header)
            tensors = _tensor_starts(header)
            starts += tensors[:: max(-(-len(tensors) // samples), 1)]
        for start in starts:
            content.seek(start)
            digest.update(content.read(SAMPLE_BYTES))
    return size, digest.hexdigest()


def _tensor_starts(header: bytes) -> list[int]:
    """Where a safetensors file's tensors begin; none when it is not what it is called."""
    try:
        tensors = [tensor for name, tensor in json.loads(header).items() if name != "__metadata__"]
        return sorted(8 + len(header) + max(int(tensor["data_offsets"][0]), 0) for tensor in tensors)
    except (AttributeError, IndexError, KeyError, TypeError, ValueError):
        return []


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
