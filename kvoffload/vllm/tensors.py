"""vLLM's registered KV tensors -> KVLayout.

A page is what one layer keeps of one block. It is moved as opaque bytes, so scales and packed formats need no thought;
what is checked is that these bytes lie where the spec's page size says.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

from kvoffload.errors import UnsupportedLayout
from kvoffload.layout import KVLayout
from kvoffload.vllm.groups import window_tokens_of

if TYPE_CHECKING:
    from vllm.v1.kv_cache_interface import KVCacheConfig


def layout_of(
    kv_caches: Mapping[str, torch.Tensor], kv_cache_config: KVCacheConfig, blocks_per_chunk: int | None
) -> KVLayout:
    """Layout of tensors by layer. Raises UnsupportedLayout that names the layer, its shape and strides."""
    rows, names = {}, []
    for index, group in enumerate(kv_cache_config.kv_cache_groups):
        specs = getattr(group.kv_cache_spec, "kv_cache_specs", {})
        # By place, not by name: pipeline ranks hold other layers and must agree on the layout all the same.
        names.append([f"group {index} layer {place}" for place in range(len(group.layer_names))])
        for name, layer in zip(names[-1], group.layer_names, strict=True):
            spec = specs.get(layer, group.kv_cache_spec)
            rows[name] = _page_rows(layer, kv_caches[layer], spec, kv_cache_config.num_blocks)
    return _make_layout(rows, names, kv_cache_config, blocks_per_chunk)


def cross_layer_layout_of(
    tensor: torch.Tensor, backend: type[Any], kv_cache_config: KVCacheConfig, blocks_per_chunk: int | None
) -> KVLayout:
    """Layout of one tensor that holds all layers of a block in one row."""
    (group,) = kv_cache_config.kv_cache_groups
    row_bytes = group.kv_cache_spec.page_size_bytes * len(group.layer_names)
    storage = tensor.untyped_storage()
    if not _blocks_are_outermost(backend) or storage.nbytes() != row_bytes * kv_cache_config.num_blocks:
        raise UnsupportedLayout(
            f"cross-layer KV tensor of shape {tuple(tensor.shape)}, strides {tensor.stride()}, {storage.nbytes()} "
            f"bytes: expected {kv_cache_config.num_blocks} rows of {row_bytes} bytes, one per block"
        )
    rows = _byte_rows(tensor, 0, kv_cache_config.num_blocks, row_bytes, row_bytes)
    return _make_layout({"all layers": rows}, [["all layers"]], kv_cache_config, blocks_per_chunk)


def _make_layout(
    rows: dict[str, torch.Tensor], names: list[list[str]], kv_cache_config: KVCacheConfig, blocks_per_chunk: int | None
) -> KVLayout:
    specs = [group.kv_cache_spec for group in kv_cache_config.kv_cache_groups]
    return KVLayout.from_tensors(
        rows,
        groups=names,
        tokens_per_block=[spec.block_size for spec in specs],
        blocks_per_chunk=[blocks_per_chunk if window_tokens_of(spec) is None else 1 for spec in specs],
        num_blocks=kv_cache_config.num_blocks,
    )


def _page_rows(layer: str, tensor: torch.Tensor, spec: Any, num_blocks: int) -> torch.Tensor:
    """Bytes (num_blocks, page) of a layer, or the tensor itself where a block's bytes do not lie together."""
    page_bytes = spec.unpadded_page_size_bytes
    item_bytes = tensor.element_size()
    # The runner may cut a block in several kernel blocks, all of one size, one after the other.
    kernel_blocks, rest = divmod(tensor.shape[0], num_blocks)
    last_byte = sum((size - 1) * stride for size, stride in zip(tensor.shape[1:], tensor.stride()[1:], strict=True)) + 1
    stride_bytes = tensor.stride(0) * item_bytes * kernel_blocks
    used_bytes = (last_byte + (kernel_blocks - 1) * tensor.stride(0)) * item_bytes
    if rest == 0 and kernel_blocks > 0 and used_bytes <= page_bytes <= stride_bytes:
        return _byte_rows(tensor, int(tensor.storage_offset()) * item_bytes, num_blocks, int(stride_bytes), page_bytes)
    if kernel_blocks == 1 and rest == 0 and math.prod(tensor.shape[1:]) * item_bytes == page_bytes:
        return tensor
    raise UnsupportedLayout(
        f"KV tensor of layer {layer}: shape {tuple(tensor.shape)}, strides {tensor.stride()}, {item_bytes} bytes an "
        f"item does not hold {num_blocks} blocks of {page_bytes} bytes with the block dimension first"
    )


def _byte_rows(tensor: torch.Tensor, offset: int, rows: int, stride_bytes: int, row_bytes: int) -> torch.Tensor:
    raw = torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(tensor.untyped_storage())
    return raw.as_strided((rows, row_bytes), (stride_bytes, 1), offset)


def _blocks_are_outermost(backend: type[Any]) -> bool:
    shape = backend.get_kv_cache_shape(num_blocks=1234, block_size=16, num_kv_heads=1, head_size=256)
    order = backend.get_kv_cache_stride_order(include_num_layers_dimension=True)
    return order[0] == shape.index(1234) + 1
