"""What is refused when the connector is made, and how registered tensors become a layout. No engine."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed; `make test-vllm` installs it with vLLM")
pytest.importorskip("vllm", reason="vLLM is not installed; `make test-vllm` installs it")
from vllm.v1.kv_cache_interface import (  # noqa: E402
    ChunkedLocalAttentionSpec,
    FullAttentionSpec,
    MambaSpec,
    MLAAttentionSpec,
    SlidingWindowSpec,
)

from kvoffload.disk import DiskOptions  # noqa: E402
from kvoffload.errors import InvalidInput, Unsupported, UnsupportedLayout  # noqa: E402
from kvoffload.mover import Mover  # noqa: E402
from kvoffload.vllm import start, support  # noqa: E402
from kvoffload.vllm.groups import make_groups  # noqa: E402
from kvoffload.vllm.options import Options  # noqa: E402
from kvoffload.vllm.tensors import layout_of  # noqa: E402

pytestmark = pytest.mark.vllm

BLOCKS, TOKENS, HEADS, DIM = 10, 16, 2, 64


def full_attention() -> FullAttentionSpec:
    return FullAttentionSpec(block_size=TOKENS, num_kv_heads=HEADS, head_size=DIM, dtype=torch.float16)


def kv_cache_config(*specs: Any, layers: int = 2) -> Any:
    groups = [
        SimpleNamespace(kv_cache_spec=spec, layer_names=[f"layer {i}.{j}" for j in range(layers)], is_eagle_group=False)
        for i, spec in enumerate(specs)
    ]
    return SimpleNamespace(kv_cache_groups=groups, num_blocks=BLOCKS, needs_kv_cache_zeroing=False)


def vllm_config(**changes: Any) -> Any:
    parallel = SimpleNamespace(
        tensor_parallel_size=1, data_parallel_size=1, prefill_context_parallel_size=1, decode_context_parallel_size=1
    )
    config = SimpleNamespace(
        kv_transfer_config=SimpleNamespace(kv_role="kv_both", engine_id="e"),
        parallel_config=parallel,
        cache_config=SimpleNamespace(prefix_match_unit=None),
        speculative_config=None,
        use_v2_model_runner=False,
    )
    for path, value in changes.items():
        owner, _, name = path.rpartition("__")
        setattr(getattr(config, owner) if owner else config, name, value)
    return config


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"kv_max_cpu_memori": 1}, "did you mean 'kv_max_cpu_memory'"),
        ({"hots": "1GiB"}, "did you mean 'host'"),
        ({"host": "10g"}, "host is '10g'"),
        ({"host": True}, "host is True"),
        ({"host": "1GiB", "blocks_per_chunk": 0}, "'blocks_per_chunk' is 0"),
        ({"host": "1GiB", "blocks_per_chunk": 1.5}, "'blocks_per_chunk' is 1.5"),
        ({"host": "1GiB", "deadline_seconds": -1}, "'deadline_seconds' is -1"),
        ({"host": "1GiB", "deadline_seconds": float("inf")}, "'deadline_seconds' is inf"),
        ({"host": "1GiB", "worth_loading": "nevr"}, "option 'worth_loading' is 'nevr'; did you mean 'never'"),
        ({"host": "1GiB", "policy": "belady"}, "option 'policy' is 'belady'; allowed: adaptive, lru, s3fifo, arc"),
        ({"host": "1GiB", "path": "kernels"}, "path is 'kernels'; did you mean 'kernel'"),
        ({"host": "1GiB", "ring": "1GiB"}, "ring is '1GiB'; allowed: 32 MiB to 256 MiB"),
        ({"host": "1GiB", "calibrate": "false"}, "calibrate is 'false'; allowed: true or false"),
        ({"host": "1GiB", "decode_blocks": "no"}, "decode_blocks is 'no'; allowed: true or false"),
        ({"host": "1GiB", "disk": "/d"}, "disk_size is missing"),
        (
            {"host": "1GiB", "disk_size": "1TiB", "write_through": True},
            "disk_size, write_through: these need .* 'disk'",
        ),
        (
            {"host": "1GiB", "disk": "/d", "disk_size": "1TiB", "admission": "some"},
            "'admission' is 'some'; allowed: all,",
        ),
        ({"host": "1GiB", "disk": "/d", "disk_size": "1TiB", "disk_io": "aio"}, "disk_io is 'aio'"),
        ({"host": "1GiB", "disk": "/d", "disk_size": "1TiB", "disk_writes_per_day": "much"}, "disk_writes_per_day is"),
        ({"host": "1GiB", "disk": "/d", "disk_size": "1TiB", "write_through": 1}, "write_through is 1"),
    ],
)
def test_bad_options_are_named(given: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        Options.parse(given)


def test_options() -> None:
    assert Options.parse({}) == Options(host=None)
    assert Options.parse({"host": 2**30, "blocks_per_chunk": 4, "deadline_seconds": 5}) == Options(2**30, 4, 5.0)
    given = {"host": 2**30, "policy": "lru", "path": "staged", "ring": "64MiB", "calibrate": False}
    assert Options.parse(given) == Options(2**30, policy="lru", path="staged", ring=64 << 20, calibrate=False)
    assert Options.parse({"host": 2**30, "ring": 0}).ring == 0
    assert not Options.parse({"host": 2**30, "decode_blocks": False}).decode_blocks
    given = {
        "host": 2**30, "disk": ["/a", "/b"], "disk_size": "1TiB", "disk_io": "threads", "disk_network": True,
        "write_through": True, "admission": "tinylfu", "disk_writes_per_day": "1TB",
    }  # fmt: skip
    disk = DiskOptions(("/a", "/b"), 1 << 40, io="threads", network=True)
    assert Options.parse(given) == Options(
        2**30, disk=disk, write_through=True, admission="tinylfu", disk_writes_per_day=10**12
    )


def test_the_start_line_says_where_the_paths_come_from_and_what_the_ring_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[str] = []
    monkeypatch.setattr(start.logger, "info", lambda text, *values: lines.append(text % values))
    tensors = {"layer 0.0": torch.zeros(BLOCKS, HEADS, TOKENS, 2 * DIM, dtype=torch.float16)}
    groups = kv_cache_config(full_attention(), layers=1)
    with Mover(layout_of(tensors, groups, 1), host="16MiB", ring="64MiB") as mover:
        first = mover.hello()
    paths = "read from paths-0.json, calibrated 2026-11-30: store staged at every size; load dma at every size"
    hellos = [replace(first, paths=paths), replace(first, rank=1, paths=paths)]
    half: Any = SimpleNamespace(groups=make_groups(groups, [1], tokens_per_hash=TOKENS), whole_prompts=True)
    start.log_start_line(hellos, half, Options(2**30), vllm_config())
    hellos[1] = replace(hellos[1], ring_bytes=0, paths="built in: the GPU said no")
    half.whole_prompts = False
    start.log_start_line(hellos, half, Options(2**30, policy="arc"), vllm_config())
    assert "; 1365 chunks, 1365 blocks, 21845 tokens fit; " in lines[0]
    assert ["policy adaptive; no disk;" in lines[0], "policy arc; no disk;" in lines[1]] == [True, True]
    assert ["; whole prompts leave 1 token;" in lines[0], "; whole prompts leave 1 chunk;" in lines[1]] == [True, True]
    assert lines[0].endswith(f"; ring of 64.00 MiB on each device, paths {paths}")
    assert lines[1].endswith(
        f"; ring of 0.00 MiB | 64.00 MiB on each device, paths built in: the GPU said no | {paths}"
    )


@pytest.mark.parametrize(
    ("spec", "name"),
    [
        (
            ChunkedLocalAttentionSpec(
                block_size=TOKENS, num_kv_heads=HEADS, head_size=DIM, dtype=torch.float16, attention_chunk_size=128
            ),
            "ChunkedLocalAttentionSpec",
        ),
        (MambaSpec(block_size=TOKENS, shapes=((4, 4),), dtypes=(torch.float16,)), "MambaSpec"),
    ],
)
def test_groups_not_served_are_refused_with_the_reason(spec: Any, name: str) -> None:
    with pytest.raises(Unsupported, match=f"group 1 is of kind {name}.*recurrent state as mamba's"):
        support.check_config(vllm_config(), kv_cache_config(full_attention(), spec))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"kv_transfer_config__kv_role": "kv_producer"}, "use kv_role='kv_both'"),
        ({"parallel_config__data_parallel_size": 2}, "data parallelism"),
        ({"kv_transfer_config__engine_id": "e_dp0"}, "data parallelism"),
        ({"parallel_config__decode_context_parallel_size": 2}, "decode_context_parallel_size"),
        ({"speculative_config": SimpleNamespace(method="eagle3")}, "'eagle3'.*ngram and suffix are"),
    ],
)
def test_settings_not_served_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(Unsupported, match=message):
        support.check_config(vllm_config(**changes), kv_cache_config(full_attention()))


def test_where_the_last_token_of_a_prompt_may_be_computed_over_a_loaded_block(monkeypatch: pytest.MonkeyPatch) -> None:
    groups = kv_cache_config(full_attention(), full_attention())
    assert support.takes_whole_prompts(groups)
    groups.needs_kv_cache_zeroing = True
    assert not support.takes_whole_prompts(groups)
    window = SlidingWindowSpec(
        block_size=TOKENS, num_kv_heads=HEADS, head_size=DIM, dtype=torch.float16, sliding_window=64
    )
    assert not support.takes_whole_prompts(kv_cache_config(full_attention(), window))
    monkeypatch.delattr(support.Scheduler, "_update_waiting_for_remote_kv")
    assert not support.takes_whole_prompts(kv_cache_config(full_attention()))


def test_zeroing_is_refused_on_runner_v2_only() -> None:
    groups = kv_cache_config(full_attention())
    groups.needs_kv_cache_zeroing = True
    support.check_config(vllm_config(), groups)
    with pytest.raises(Unsupported, match="runner V2"):
        support.check_config(vllm_config(use_v2_model_runner=True), groups)


def test_served_configurations_pass() -> None:
    latent = MLAAttentionSpec(block_size=TOKENS, num_kv_heads=1, head_size=576, dtype=torch.bfloat16)
    support.check_config(vllm_config(), kv_cache_config(full_attention()))
    support.check_config(vllm_config(), kv_cache_config(latent))


def test_a_chunk_that_ends_between_hashes_is_refused() -> None:
    with pytest.raises(Unsupported, match="blocks_per_chunk"):
        make_groups(kv_cache_config(full_attention()), [1], tokens_per_hash=32)


def test_too_little_host_memory_names_the_option_and_what_is_needed() -> None:
    tensors = {"layer 0.0": torch.zeros(BLOCKS, HEADS, TOKENS, 2 * DIM, dtype=torch.float16)}
    layout = layout_of(tensors, kv_cache_config(full_attention(), layers=1), 1)
    least = layout.groups[0].slot_bytes
    config = SimpleNamespace(parallel_config=SimpleNamespace(local_world_size=2))
    with pytest.raises(InvalidInput, match=rf"option 'host' is {2 * least - 1} bytes for 2 rank.*at least {2 * least}"):
        start.make_mover_half(Options(host=2 * least - 1), config, layout)


@pytest.mark.parametrize(("others", "share_bytes"), [(1 << 40, 2 << 20), (1 << 20, 1 << 20)])
def test_without_a_size_each_rank_takes_the_least_share_of_all(
    others: int, share_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half of what is free beside the KV tensors, over two ranks, and no more than the rank that found the least."""
    tensors = {"layer 0.0": torch.zeros(BLOCKS, HEADS, TOKENS, 2 * DIM, dtype=torch.float16)}
    layout = layout_of(tensors, kv_cache_config(full_attention(), layers=1), 1)
    kv_bytes = BLOCKS * layout.groups[0].block_bytes
    monkeypatch.setattr(start, "available_bytes", lambda: 2 * kv_bytes + (12 << 20) - 4096)

    def all_reduce(tensor: Any, op: Any, group: Any) -> None:
        assert (op, group) == (torch.distributed.ReduceOp.MIN, "all ranks")
        tensor.clamp_(max=others)

    monkeypatch.setattr(start, "get_world_group", lambda: SimpleNamespace(world_size=2, cpu_group="all ranks"))
    monkeypatch.setattr(torch.distributed, "all_reduce", all_reduce)
    monkeypatch.setattr(start, "get_pp_group", lambda: SimpleNamespace(rank_in_group=0))
    monkeypatch.setattr(start, "get_tp_group", lambda: SimpleNamespace(rank_in_group=1, world_size=2))
    half = start.make_mover_half(
        Options(), SimpleNamespace(parallel_config=SimpleNamespace(local_world_size=2)), layout
    )
    try:
        assert half.mover.hello().host_bytes == share_bytes
    finally:
        half.close()


def test_too_little_free_memory_says_that_no_size_was_given(monkeypatch: pytest.MonkeyPatch) -> None:
    tensors = {"layer 0.0": torch.zeros(BLOCKS, HEADS, TOKENS, 2 * DIM, dtype=torch.float16)}
    layout = layout_of(tensors, kv_cache_config(full_attention(), layers=1), 1)
    monkeypatch.setattr(start, "available_bytes", lambda: 0)
    monkeypatch.setattr(start, "get_world_group", lambda: SimpleNamespace(world_size=1))
    config = SimpleNamespace(parallel_config=SimpleNamespace(local_world_size=1))
    with pytest.raises(InvalidInput, match="option 'host' is not given: half of what is free"):
        start.make_mover_half(Options(), config, layout)


def page_bytes(spec: Any) -> int:
    return spec.unpadded_page_size_bytes


def test_layer_by_layer() -> None:
    spec = full_attention()
    tensors = {f"layer 0.{i}": torch.zeros(BLOCKS, HEADS, TOKENS, 2 * DIM, dtype=torch.float16) for i in range(2)}
    (group,) = layout_of(tensors, kv_cache_config(spec), 3).groups
    assert (group.num_blocks, group.blocks_per_chunk, group.tokens_per_block) == (BLOCKS, 3, TOKENS)
    assert group.block_bytes == 2 * page_bytes(spec)


def test_one_row_per_block_is_one_page() -> None:
    spec = full_attention()
    storage = torch.zeros(BLOCKS, 2, HEADS, TOKENS, 2 * DIM, dtype=torch.float16)
    tensors = {f"layer 0.{i}": storage[:, i] for i in range(2)}
    (group,) = layout_of(tensors, kv_cache_config(spec), 1).groups
    assert [page.bytes for page in group.geometry.pages] == [2 * page_bytes(spec)]


def test_blocks_cut_in_kernel_blocks() -> None:
    spec = full_attention()
    tensors = {
        f"layer 0.{i}": torch.zeros(4 * BLOCKS, HEADS, TOKENS // 4, 2 * DIM, dtype=torch.float16) for i in range(2)
    }
    (group,) = layout_of(tensors, kv_cache_config(spec), 1).groups
    assert group.num_blocks == BLOCKS
    assert group.block_bytes == 2 * page_bytes(spec)


def test_padded_pages_are_moved_without_their_padding() -> None:
    spec = full_attention()
    pad = 512
    storage = torch.zeros(BLOCKS, page_bytes(spec) // 2 + pad, dtype=torch.float16)
    view = storage[:, : page_bytes(spec) // 2].unflatten(1, (HEADS, TOKENS, 2 * DIM))
    (group,) = layout_of({"layer 0.0": view}, kv_cache_config(spec, layers=1), 1).groups
    assert [(page.bytes, page.block_stride) for page in group.geometry.pages] == [
        (page_bytes(spec), page_bytes(spec) + 2 * pad)
    ]


def test_heads_outside_of_blocks_are_pages_of_their_own() -> None:
    spec = full_attention()
    storage = torch.zeros(HEADS, BLOCKS, TOKENS, 2 * DIM, dtype=torch.float16)
    (group,) = layout_of({"layer 0.0": storage.transpose(0, 1)}, kv_cache_config(spec, layers=1), 1).groups
    assert [page.bytes for page in group.geometry.pages] == [page_bytes(spec) // HEADS] * HEADS


def test_tensors_not_understood_are_refused_with_shape_and_strides() -> None:
    keys_and_values = torch.zeros(2, BLOCKS, TOKENS, HEADS, DIM, dtype=torch.float16)
    with pytest.raises(UnsupportedLayout, match=r"layer 0\.0: shape \(2, 10, 16, 2, 64\), strides"):
        layout_of({"layer 0.0": keys_and_values}, kv_cache_config(full_attention(), layers=1), 1)
