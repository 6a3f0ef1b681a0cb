"""What names a cache on disk: the same after a restart, another one after any change that changes the KV's bytes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("vllm", reason="vLLM is not installed; `make test-vllm` installs it")

from kvoffload.vllm import namespace
from kvoffload.vllm.namespace import namespace_of, why_not_kept

pytestmark = pytest.mark.vllm


class Config:
    """A model's configuration on a hub."""

    def __init__(self, commit: str | None = "0123abc", **values: Any) -> None:
        self._commit_hash, self.values = commit, {"rope_theta": 10000.0, **values}

    def to_dict(self) -> dict[str, Any]:
        return self.values


def vllm_config(**changes: Any) -> Any:
    """changes: model__name=value and the like."""
    config = SimpleNamespace(
        model_config=SimpleNamespace(
            model="org/model", hf_config=Config(), hf_overrides={}, dtype="bfloat16", quantization=None, seed=0
        ),
        cache_config=SimpleNamespace(cache_dtype="auto", block_size=16, prefix_caching_hash_algo="sha256"),
        parallel_config=SimpleNamespace(tensor_parallel_size=1, pipeline_parallel_size=1, data_parallel_size=1),
        load_config=SimpleNamespace(load_format="auto"),
        lora_config=None,
    )
    for path, value in changes.items():
        owner, _, name = path.rpartition("__")
        setattr(getattr(config, owner) if owner else config, name, value)
    return config


def folder_with(tmp_path: Path, content: bytes, written_ns: int = 0) -> str:
    (tmp_path / "model.safetensors").write_bytes(content)
    os.utime(tmp_path / "model.safetensors", ns=(0, written_ns))
    (tmp_path / ".cache").mkdir(exist_ok=True)
    return str(tmp_path)


@pytest.mark.parametrize(
    "changes",
    [
        {"model_config__hf_config": Config("another")},
        {"model_config__hf_config": Config(rope_theta=500000.0)},
        {"model_config__model": "org/other"},
        {"model_config__dtype": "float16"},
        {"model_config__quantization": "fp8"},
        {"model_config__hf_overrides": {"rope_scaling": {"factor": 2}}},
        {"cache_config__cache_dtype": "fp8"},
        {"cache_config__calculate_kv_scales": True},
        {"cache_config__block_size": 32},
        {"cache_config__prefix_caching_hash_algo": "sha256_cbor"},
        {"parallel_config__tensor_parallel_size": 2},
        {"parallel_config__pipeline_parallel_size": 2},
        {"load_config__load_format": "dummy"},
        {"attention_config": SimpleNamespace(backend="TRITON_ATTN")},
    ],
)
def test_what_changes_the_bytes_changes_the_name(changes: dict[str, Any]) -> None:
    assert namespace_of(vllm_config()) == namespace_of(vllm_config())
    assert namespace_of(vllm_config(**changes)) != namespace_of(vllm_config())


def test_so_do_the_seed_of_hashes_and_the_version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTHONHASHSEED", raising=False)
    names = {namespace_of(vllm_config())}
    monkeypatch.setenv("PYTHONHASHSEED", "1")
    names.add(namespace_of(vllm_config()))
    monkeypatch.setenv("VLLM_KV_CACHE_LAYOUT", "HND")
    names.add(namespace_of(vllm_config()))
    monkeypatch.setattr(namespace.vllm, "__version__", "0.0.1")
    names.add(namespace_of(vllm_config()))
    assert len(names) == 4


def test_a_function_among_the_overrides_has_no_address() -> None:
    for overrides in (folder_with, {"nested": [folder_with], 1: {"b", "a"}}):
        name = namespace_of(vllm_config(model_config__hf_overrides=overrides))
        assert " at 0x" not in name and "folder_with" in name
    assert "['a', 'b']" in name.replace('"', "'")


def test_weights_in_a_folder_are_known_by_their_content(tmp_path: Path) -> None:
    def name(content: bytes) -> str:
        return namespace_of(vllm_config(model_config__model=folder_with(tmp_path, content)))

    large = bytes(10_000_000)
    assert name(large) == name(large)
    names = {name(large), name(large + b"\0"), name(b"\1" + large[1:]), name(large[:-1] + b"\1"), name(b"")}
    assert len(names) == 5
    before = name(large)
    (tmp_path / ".cache" / "lock").write_text("7")  # hidden files are not the model's
    assert name(large) == before


def test_no_tensor_changes_unseen(tmp_path: Path) -> None:
    """Each is looked at where it begins: an adapter merged into a few of them is another model."""
    sizes = {f"layer {i}": 100_000 + 4096 * i for i in range(100)}
    offsets = [0]
    for size in sizes.values():
        offsets.append(offsets[-1] + size)
    described = {name: {"data_offsets": offsets[i : i + 2]} for i, name in enumerate(sizes)}
    header = json.dumps({"__metadata__": {"format": "pt"}, **described}).encode()

    def name(header: bytes, changed: int | None = None) -> str:
        content = bytearray(len(header).to_bytes(8, "little") + header + bytes(offsets[-1]))
        if changed is not None:
            content[8 + len(header) + offsets[changed]] = 1
        return namespace_of(vllm_config(model_config__model=folder_with(tmp_path, bytes(content))))

    names = {name(header), name(header.replace(b"layer 99", b"layer 98")), *(name(header, i) for i in range(100))}
    assert len(names) == 102


def test_weights_that_were_written_again_are_others_unless_copies_may_differ(tmp_path: Path) -> None:
    def name(written_ns: int, ranks_here: int) -> str:
        config = vllm_config(model_config__model=folder_with(tmp_path, bytes(1000), written_ns))
        config.parallel_config.local_world_size, config.parallel_config.world_size = ranks_here, 2
        (tmp_path / "README.md").write_text("written now")  # when does not matter
        return namespace_of(config)

    assert name(1, 2) == name(1, 2) != name(2, 2)
    assert name(1, 1) == name(2, 1)


@pytest.mark.parametrize("content", [b"", b"{}", b"\xff" * 8 + b"{}", b"\2\0\0\0\0\0\0\0[]", b"\2" + bytes(7) + b"{}"])
def test_a_damaged_file_of_weights_has_a_name_too(content: bytes, tmp_path: Path) -> None:
    assert namespace_of(vllm_config(model_config__model=folder_with(tmp_path, content)))


def test_weights_in_an_object_store_are_not_those_of_the_folder_beside_it(tmp_path: Path) -> None:
    config = vllm_config(model_config__model=folder_with(tmp_path, b""))
    config.model_config.model_weights = "s3://bucket/model"
    assert "cannot be told" in why_not_kept(config)


def test_what_is_kept_and_why_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONHASHSEED", "0")
    assert why_not_kept(vllm_config()) == ""
    assert why_not_kept(vllm_config(model_config__model=folder_with(tmp_path, b"w"))) == ""
    assert "which revision of org/model" in why_not_kept(vllm_config(model_config__hf_config=Config(None)))
    assert "adapters" in why_not_kept(vllm_config(lora_config=object()))


SEED = """
from vllm.v1.core import kv_cache_utils
from vllm.utils.hashing import get_hash_fn_by_name
kv_cache_utils.init_none_hash(get_hash_fn_by_name("{}"))
print(kv_cache_utils.NONE_HASH.hex())
"""


@pytest.mark.parametrize("algorithm", ["sha256", "xxhash"])
def test_whether_hashes_are_stable_is_what_two_processes_say(algorithm: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the variable; with it they are for every algorithm."""
    if algorithm == "xxhash":
        pytest.importorskip("xxhash")
    monkeypatch.delenv("PYTHONHASHSEED", raising=False)
    command = [sys.executable, "-c", SEED.format(algorithm)]
    seeds = {subprocess.run(command, capture_output=True, text=True, check=True).stdout for _ in range(2)}
    why = why_not_kept(vllm_config(cache_config__prefix_caching_hash_algo=algorithm))
    assert (why == "") == (len(seeds) == 1)
    assert why == "" or "PYTHONHASHSEED" in why
    monkeypatch.setenv("PYTHONHASHSEED", "0")
    assert why_not_kept(vllm_config(cache_config__prefix_caching_hash_algo=algorithm)) == ""
