"""The ways in which engines lay KV out in memory, as data: what KVLayout.from_tensors gets, and where the bytes of each
block are by the plain meaning of shape and strides (the reference that does not use kvoffload's own geometry)."""

from dataclasses import dataclass, field

import numpy as np


@dataclass(frozen=True)
class View:
    """A strided view of one buffer: what an engine would hand over as one KV tensor."""

    buffer: int
    offset: int
    shape: tuple
    strides: tuple  # bytes
    item_bytes: int
    block_dim: int = 0
    page_bytes: int = 0  # of a padded byte row; 0: all of it is payload

    def byte_index(self) -> np.ndarray:
        """(num_blocks, bytes) offsets into the buffer, by definition of shape and strides."""
        index = np.full((1,) * len(self.shape), self.offset, np.int64)
        for dim, (size, stride) in enumerate(zip(self.shape, self.strides, strict=True)):
            index = index + np.arange(size, dtype=np.int64).reshape((-1,) + (1,) * (len(self.shape) - dim - 1)) * stride
        index = index[..., None] + np.arange(self.item_bytes)
        index = np.moveaxis(index, self.block_dim, 0).reshape(self.shape[self.block_dim], -1)
        return index[:, : self.page_bytes] if self.page_bytes else index


@dataclass(frozen=True)
class Case:
    name: str
    buffers: tuple  # bytes of each
    groups: tuple  # of tuples of View
    tokens_per_block: int = 4
    options: dict = field(default_factory=dict)


def packed(shape, item_bytes, order=None, pads=None):
    """Strides in bytes of `shape` laid out with the dimensions of `order` from outermost to innermost, each followed by
    `pads[dim]` unused bytes; and the bytes of the whole."""
    strides, step = [0] * len(shape), item_bytes
    for dim in reversed(order or range(len(shape))):
        strides[dim] = step
        step = step * shape[dim] + (pads or {}).get(dim, 0)
    return tuple(strides), step


def single(name, buffers, views, **options):
    options.setdefault("blocks_per_chunk", 2)
    block_dim = views[0].block_dim
    return Case(name, tuple(buffers), (tuple(views),), options=dict(options, block_dim=block_dim))


def plain(blocks, block_bytes):
    """One tensor, one page a block, one block a chunk."""
    view = View(0, 0, (blocks, block_bytes), (block_bytes, 1), 1)
    return single("plain", [blocks * block_bytes], [view], blocks_per_chunk=1)


def one_per_layer(name, shape, layers=3, item_bytes=2, block_dim=0, order=None, pads=None, offset=0, **options):
    strides, size = packed(shape, item_bytes, order, pads)
    views = [View(i, offset, shape, strides, item_bytes, block_dim) for i in range(layers)]
    return single(name, [size + offset] * layers, views, **options)


def one_storage(name, shape, layer_dim, block_dim, item_bytes=2, order=None, **options):
    """All layers in one buffer; each layer is a view of it."""
    strides, size = packed(shape, item_bytes, order)
    rest = tuple(n for d, n in enumerate(shape) if d != layer_dim)
    steps = tuple(s for d, s in enumerate(strides) if d != layer_dim)
    dim = block_dim - (layer_dim < block_dim)
    views = [View(0, i * strides[layer_dim], rest, steps, item_bytes, dim) for i in range(shape[layer_dim])]
    return single(name, [size], views, **options)


def padded_rows(blocks=9, row=1000, page=777):
    strides, size = packed((blocks, row), 1)
    views = [View(i, 0, (blocks, row), strides, 1, 0, page) for i in range(2)]
    return single("padded byte rows", [size] * 2, views, page_bytes=page)


def two_groups(blocks=10):
    """Groups with different page sizes, the second with its block dimension inside."""
    wide, wide_bytes = packed((blocks, 4, 2, 16), 2)
    small, small_bytes = packed((2, blocks, 4, 5), 1)
    first = tuple(View(i, 0, (blocks, 4, 2, 16), wide, 2) for i in range(2))
    second = (View(2, 0, (2, blocks, 4, 5), small, 1, 1),)
    options = {"block_dim": [0, 1], "blocks_per_chunk": [2, 3]}
    return Case("two groups", (wide_bytes, wide_bytes, small_bytes), (first, second), options=options)


B, T, H, D = 11, 4, 3, 8  # blocks, tokens, heads, head size
CASES = [
    one_per_layer("K and V outermost", (2, B, T, H, D), block_dim=1),
    one_per_layer("K and V inside the block", (B, 2, T, H, D)),
    one_per_layer("K and V fused", (B, H, T, 2 * D)),
    one_per_layer("K and V as tensors of their own", (B, T, H, D), layers=6),
    one_per_layer("NHD", (B, T, H, D), blocks_per_chunk=4),
    one_per_layer("HND seen as NHD", (B, T, H, D), order=(0, 2, 1, 3)),
    one_per_layer("heads outermost", (H, B, T, D), block_dim=1),
    one_storage("one storage, layers outermost", (4, B, 2, T, H, D), 0, 1),
    one_storage("one storage, blocks outermost", (B, 4, 2, T, H, D), 1, 0),
    one_storage("one storage, layers outermost, K and V apart", (4, 2, B, T, H, D), 0, 2, blocks_per_chunk=2),
    one_storage("blocks, heads, layers", (B, H, 4, T, 2 * D), 2, 0),
    one_per_layer("MLA", (B, T, 576), layers=2),
    one_per_layer("the default chunk, for small blocks all of them", (B, T, H, D), blocks_per_chunk=None),
    one_per_layer("the default chunk, for large blocks one", (B, 16, 8, 2048), layers=2, blocks_per_chunk=None),
    one_per_layer("bytes, odd sizes and alignment", (B, 3, 1, 7), item_bytes=1, offset=5, blocks_per_chunk=3),
    one_per_layer("space between blocks", (B, T, H, D), pads={1: 6}, blocks_per_chunk=2),
    one_per_layer("one block", (1, T, H, D), blocks_per_chunk=1),
    two_groups(),
    padded_rows(),
]
