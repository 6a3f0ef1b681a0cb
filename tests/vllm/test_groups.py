"""KV groups of sliding windows: what is stored, waited for and loaded of them, and how big their chunks are."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed; `make test-vllm` installs it with vLLM")
pytest.importorskip("vllm", reason="vLLM is not installed; `make test-vllm` installs it")
from test_lookup import Half, make_request  # noqa: E402
from test_start import BLOCKS, DIM, HEADS, TOKENS, full_attention, kv_cache_config, vllm_config  # noqa: E402
from vllm.v1.kv_cache_interface import MLAAttentionSpec, SlidingWindowSpec, UniformTypeKVCacheSpecs  # noqa: E402

from kvoffload.errors import Unsupported  # noqa: E402
from kvoffload.messages import Hello  # noqa: E402
from kvoffload.vllm import start, support  # noqa: E402
from kvoffload.vllm.groups import ChunkGroup, make_groups, window_tokens_of  # noqa: E402
from kvoffload.vllm.options import Options  # noqa: E402
from kvoffload.vllm.requests import RequestState  # noqa: E402
from kvoffload.vllm.tensors import layout_of  # noqa: E402

pytestmark = pytest.mark.vllm


def sliding(window: int = 128) -> SlidingWindowSpec:
    return SlidingWindowSpec(
        block_size=TOKENS, num_kv_heads=HEADS, head_size=DIM, dtype=torch.float16, sliding_window=window
    )


WINDOW = ChunkGroup(1, 4, 1, 4, window_tokens=7, unit_tokens=4)


def running(table: list[int], settled: int, computed: int, group: ChunkGroup = WINDOW) -> RequestState:
    """A request of which the windowed group alone is looked at."""
    state = RequestState(make_request(64))
    state.table, state.next_chunk = [[], table], [0, 0]
    state.settled_tokens, state.computed_tokens = settled, computed
    return state


def stored(state: RequestState, group: ChunkGroup = WINDOW) -> list[int]:
    ((keys, blocks),) = state.complete_chunks([group]) or [([], [])]
    hashes = state.request.block_hashes
    assert [hashes.index(key) for key in keys] == [state.table[1].index(block) for block in blocks]
    return blocks


def test_what_a_window_has_left_behind_is_not_stored() -> None:
    """Token 20 sees 13 to 19, so that the blocks of tokens 0 to 11 may be somebody else's."""
    state = running([11, 12, 13, 14, 15, 16], settled=20, computed=24)
    assert stored(state) == [14, 15, 16]
    assert state.next_chunk == [0, 6]
    assert stored(state) == []
    assert stored(running([11, 12, 13, 14, 15, 16], settled=0, computed=24)) == [11, 12, 13, 14, 15, 16]


def test_the_null_block_is_not_stored() -> None:
    assert stored(running([0, 0, 0, 14, 15, 16], settled=0, computed=24)) == [14, 15, 16]


@pytest.mark.parametrize(
    ("unit", "window", "useful"),
    [(4, 7, "111111"), (24, 7, "000011"), (24, 8, "000011"), (24, 9, "000111"), (12, 1, "001001"), (12, 99, "111111")],
)
def test_only_what_a_hit_can_need_is_stored(unit: int, window: int, useful: str) -> None:
    group = ChunkGroup(1, 4, 1, 4, window_tokens=window, unit_tokens=unit)
    for end in range(unit, 25, unit):  # what hits need is exactly what is useful
        first = group.first_needed(0, end)
        assert all(map(group.useful, range(first, end // 4)))
    assert "".join("01"[group.useful(i)] for i in range(6)) == useful
    blocks = stored(running([1, 2, 3, 4, 5, 6], settled=0, computed=24), group)
    assert blocks == [i + 1 for i in range(6) if useful[i] == "1"]
    assert group.stored_bytes(4096) == 4096 * useful.count("1") / 24


def test_chunks_of_windows_are_one_block_and_hits_end_with_chunks_of_all() -> None:
    config = kv_cache_config(full_attention(), sliding())
    tensors = {
        f"layer {group}.{i}": torch.zeros(BLOCKS, HEADS, TOKENS, 2 * DIM, dtype=torch.float16)
        for group in range(2)
        for i in range(2)
    }
    layout = layout_of(tensors, config, 3)
    assert [group.blocks_per_chunk for group in layout.groups] == [3, 1]
    assert [group.blocks_per_chunk for group in layout_of(tensors, config, None).groups] == [BLOCKS, 1]
    groups = make_groups(config, [3, 1], TOKENS)
    assert [(group.window_tokens, group.unit_tokens) for group in groups] == [(None, 48), (127, 48)]


def test_layers_of_one_type_have_the_window_of_each() -> None:
    layers = {name: sliding() for name in ("a", "b")}
    assert window_tokens_of(UniformTypeKVCacheSpecs(block_size=TOKENS, kv_cache_specs=layers)) == 127
    assert window_tokens_of(full_attention()) is None


def test_windows_are_served_where_failed_loads_are_reported_by_request(monkeypatch: pytest.MonkeyPatch) -> None:
    support.check_config(vllm_config(), kv_cache_config(full_attention(), sliding()))
    monkeypatch.setattr(support, "REPORTS_FAILED_REQUESTS", False)
    with pytest.raises(Unsupported, match="group 0 has a sliding window: this vLLM cannot report a failed load"):
        support.check_config(vllm_config(), kv_cache_config(sliding()))


def windowed_half() -> Half:
    return Half(slots=64, groups=(ChunkGroup(0, 4, 1, 4), WINDOW))


def fill(half: Half, request: Any) -> None:
    for group in range(2):
        half.store(request, group, 0, len(request.block_hashes))


def load(half: Half, request: Any) -> None:
    """As the scheduler half begins one."""
    state = RequestState(request)
    hit, _ = half.answer(state)
    assert hit
    for group in half.groups:
        keys = group.keys(request.block_hashes, group.first_needed(0, hit), hit // group.tokens_per_chunk)
        half.lookup.load_begins(state, group, keys)
    state.release_holds()


def test_a_hit_needs_only_the_end_of_a_window_and_holds_only_that() -> None:
    half, request = windowed_half(), make_request(33)
    half.store(request, 0, 0, 8)
    half.store(request, 1, 3, 5)
    state = RequestState(request)
    assert half.answer(state) == (20, True)
    assert [hold.keys_held for hold in state.holds] == [5 + 2]


def test_only_hits_that_end_alike_wait_for_one_another() -> None:
    half = windowed_half()
    first, longer, other = make_request(33), make_request(49), make_request(29)
    other.request_id, longer.request_id = "other", "longer"  # they begin alike
    fill(half, first)
    load(half, first)
    assert half.answer(RequestState(other)) == (28, True)  # its window would begin before what is being loaded
    assert half.answer(RequestState(longer)) == (None, False)  # soon all 32 tokens are a local hit


def test_a_preempted_request_waits_for_stores_within_its_window() -> None:
    half, request = windowed_half(), make_request(33)
    request.num_preemptions = 1
    half.store(request, 0, 0, 3)
    half.store(request, 1, 1, 3)
    half.plan_store(request, 0, 3, 4)
    state = RequestState(request)
    assert half.answer(state) == (12, True)  # the window's chunk of tokens 12 to 15 is nowhere
    half.plan_store(request, 1, 3, 4)
    assert half.answer(state) == (None, False)  # that of tokens 0 to 3 is not needed


def start_line(monkeypatch: pytest.MonkeyPatch, config: Any, chunks: list[int], **settings: Any) -> str:
    lines: list[str] = []
    monkeypatch.setattr(start.logger, "info", lambda text, *values: lines.append(text % values))
    count = len(config.kv_cache_groups)
    hello = Hello(0, (4096,) * count, tuple(chunks), 96 * 4096, 4096, "f", pinned=False, device="host")
    half: Any = SimpleNamespace(groups=make_groups(config, chunks, TOKENS), whole_prompts=False)
    start.log_start_line([hello], half, Options(), vllm_config(**settings))
    return lines[0]


def test_the_start_line_says_what_a_window_needs_and_counts_what_is_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    line = start_line(monkeypatch, kv_cache_config(full_attention(), sliding(32)), [4, 1])
    assert "chunks of 4 x 16 tokens = 4096 bytes, 1 x 16 tokens = 4096 bytes (a hit needs the last 31 tokens);" in line
    assert "2048 tokens fit" in line  # of 64 tokens one chunk and two blocks


def test_the_start_line_says_that_ranks_keep_the_same_with_mla(monkeypatch: pytest.MonkeyPatch) -> None:
    latent = MLAAttentionSpec(block_size=TOKENS, num_kv_heads=1, head_size=576, dtype=torch.bfloat16)
    four = {"parallel_config__tensor_parallel_size": 4}
    said = ", of which 1/4 counts as MLA keeps the same KV on 4 ranks"
    assert said in start_line(monkeypatch, kv_cache_config(latent), [1], **four)
    assert "MLA" not in start_line(monkeypatch, kv_cache_config(latent), [1])
    assert "MLA" not in start_line(monkeypatch, kv_cache_config(full_attention()), [1], **four)
