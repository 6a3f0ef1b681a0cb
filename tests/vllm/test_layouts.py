"""One row per block for all layers: asked for where it can be had, and nobody else's setting is overruled."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed; `make test-vllm` installs it with vLLM")
pytest.importorskip("vllm", reason="vLLM is not installed; `make test-vllm` installs it")
from test_start import BLOCKS, DIM, HEADS, TOKENS, full_attention, kv_cache_config  # noqa: E402
from vllm.config import KVTransferConfig  # noqa: E402

from kvoffload.errors import UnsupportedLayout  # noqa: E402
from kvoffload.vllm import connector, support  # noqa: E402
from kvoffload.vllm.tensors import cross_layer_layout_of  # noqa: E402

pytestmark = pytest.mark.vllm

LAYERS = 2


@pytest.fixture
def on_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connector, "current_platform", SimpleNamespace(is_cuda=lambda: True))
    monkeypatch.delenv("VLLM_KV_CACHE_LAYOUT", raising=False)


def resolved(*supported: str, already: str | None = None) -> str:
    """What the installed vLLM makes of our wish."""
    utils = pytest.importorskip("vllm.v1.attention.backends.utils")
    cache = SimpleNamespace(kv_cache_layout=already)
    cache.get_resolved_kv_cache_layout = lambda: SimpleNamespace(name=already)
    transfer = KVTransferConfig(
        kv_connector="KVOffloadConnector", kv_connector_module_path="kvoffload.vllm", kv_role="kv_both"
    )
    config: Any = SimpleNamespace(cache_config=cache, kv_transfer_config=transfer)
    return str(utils.resolve_kv_cache_layout(config, [list(supported)]).name)


@pytest.mark.skipif(not support.HAS_BLOCK_OUTERMOST_LAYOUT, reason="this vLLM knows no such layout")
@pytest.mark.usefixtures("on_cuda")
def test_a_row_per_block_is_asked_for_and_another_setting_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    assert resolved("LBHNC", "LBNHC", "BLHNC") == "BLHNC"
    assert resolved("LBNHC", "LBHNC") == "LBNHC"  # the backend cannot
    assert resolved("LBHNC", "BLHNC", already="LBHNC") == "LBHNC"
    monkeypatch.setenv("VLLM_KV_CACHE_LAYOUT", "NHD")
    assert resolved("LBHNC", "LBNHC", "BLHNC") == "LBNHC"


def test_nothing_is_asked_for_on_cpu_or_of_a_vllm_that_would_raise(monkeypatch: pytest.MonkeyPatch) -> None:
    wish = connector.KVOffloadConnector.get_required_kvcache_layout
    monkeypatch.setattr(connector, "current_platform", SimpleNamespace(is_cuda=lambda: False))
    assert wish(SimpleNamespace()) is None
    monkeypatch.setattr(connector, "current_platform", SimpleNamespace(is_cuda=lambda: True))
    monkeypatch.setattr(support, "HAS_BLOCK_OUTERMOST_LAYOUT", False)
    assert wish(SimpleNamespace()) is None


class Backend:
    """As attention backends of vLLM 0.26 describe themselves: blocks, heads, tokens, keys and values."""

    order = (1, 0, 2, 3, 4)  # places of (layers, blocks, heads, tokens, values) in memory

    @classmethod
    def get_kv_cache_shape(cls, num_blocks: int, block_size: int, num_kv_heads: int, head_size: int) -> tuple[int, ...]:
        return num_blocks, num_kv_heads, block_size, 2 * head_size

    @classmethod
    def get_kv_cache_stride_order(cls, include_num_layers_dimension: bool = False) -> tuple[int, ...]:
        assert include_num_layers_dimension
        return cls.order


def test_a_tensor_across_layers_has_one_page_a_block() -> None:
    """It comes as (layers, blocks, ...), with the blocks outermost in memory."""
    config = kv_cache_config(full_attention(), layers=LAYERS)
    memory = torch.zeros(BLOCKS, LAYERS, HEADS, TOKENS, 2 * DIM, dtype=torch.float16)
    (group,) = cross_layer_layout_of(memory.transpose(0, 1), Backend, config, 3).groups
    row_bytes = LAYERS * full_attention().page_size_bytes
    assert [(page.address, page.bytes, page.block_stride) for page in group.geometry.pages] == [
        (memory.data_ptr(), row_bytes, row_bytes)
    ]
    assert (group.num_blocks, group.blocks_per_chunk) == (BLOCKS, 3)


def test_a_tensor_across_layers_with_the_layers_outermost_is_refused() -> None:
    class LayersFirst(Backend):
        order = (0, 1, 2, 3, 4)

    config = kv_cache_config(full_attention(), layers=LAYERS)
    memory = torch.zeros(LAYERS, BLOCKS, HEADS, TOKENS, 2 * DIM, dtype=torch.float16)
    with pytest.raises(UnsupportedLayout, match=rf"expected {BLOCKS} rows of"):
        cross_layer_layout_of(memory, LayersFirst, config, 3)
    with pytest.raises(UnsupportedLayout, match="expected"):  # bytes that the spec does not know
        cross_layer_layout_of(memory[:, :-1].contiguous(), Backend, config, 3)
