"""Where KV lies: tensors of any framework -> groups of pages."""

from __future__ import annotations

import bisect
import hashlib
import json
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from kvoffload import _C
from kvoffload.errors import InvalidInput, UnsupportedLayout
from kvoffload.tensors import RawTensor, current_stream_of, describe

__all__ = ["KVGroup", "KVLayout", "RawTensor"]

_LEAST_SLOT_BYTES = 512 * 1024  # smaller slots cost more than they are worth, in copies and on disk
Name = Any  # of a tensor: its key in a dict, its index in a list


@dataclass(frozen=True)
class KVGroup:
    """Tensors that share block ids: one KV cache group of an engine.

    geometry: the pages of a block. tokens_per_block: tokens of one block. name: for messages.
    content: hash of what each page holds (tensors, shapes, their order in memory).
    """

    geometry: _C.GroupGeometry
    tokens_per_block: int
    name: str
    content: str = field(default="", repr=False)

    @property
    def num_blocks(self) -> int:
        """Blocks on the device: ids are 0 to num_blocks - 1."""
        return self.geometry.num_blocks

    @property
    def blocks_per_chunk(self) -> int:
        """Blocks of one chunk, the unit of offload."""
        return self.geometry.blocks_per_chunk

    @property
    def tokens_per_chunk(self) -> int:
        return self.blocks_per_chunk * self.tokens_per_block

    @property
    def block_bytes(self) -> int:
        """Bytes of one block in all tensors."""
        return self.geometry.block_bytes

    @property
    def payload_bytes(self) -> int:
        """Bytes of one chunk."""
        return self.geometry.payload_bytes

    @property
    def slot_bytes(self) -> int:
        """Bytes of a slot: payload, padding and trailer, a multiple of 4,096."""
        return self.geometry.slot_bytes


@dataclass(frozen=True, eq=False)
class KVLayout:
    """Where the KV cache of one device lies. Made by `from_tensors`; keeps the tensors alive.

    groups: the KV groups. device: "host" or "cuda:N". current_stream: returns the handle of the stream that the
    tensors' framework works on now (0: CUDA's default stream; on the host, the calling thread).
    """

    groups: tuple[KVGroup, ...]
    device: str
    current_stream: Callable[[], int] = field(repr=False)
    tensors: tuple[Any, ...] = field(default=(), repr=False)

    @property
    def fingerprint(self) -> str:
        """sha256, 64 hex digits, of all that decides which bytes a slot holds and where; not of addresses and strides.

        Two layouts with one fingerprint may exchange slots.
        """
        pages = [[page.bytes for page in group.geometry.pages] for group in self.groups]
        parts = [(g.tokens_per_block, g.blocks_per_chunk, g.content) for g in self.groups]
        return _hash([parts, pages])

    @classmethod
    def from_tensors(
        cls,
        kv_caches: Any,
        *,
        tokens_per_block: int | Sequence[int],
        block_dim: int | Sequence[int] | Mapping[Name, int] = 0,
        groups: Sequence[Sequence[Name]] | None = None,
        blocks_per_chunk: int | Sequence[int | None] | None = None,
        page_bytes: int | Sequence[int] | Mapping[Name, int] | None = None,
        num_blocks: int | Sequence[int] | None = None,
    ) -> KVLayout:
        """Reads the layout from an engine's tensors; everything comes from their shape and strides in bytes.

        kv_caches: one tensor, a list, or a dict name -> tensor, of torch, cupy, numpy, anything with DLPack,
        __cuda_array_interface__ or __array_interface__, or RawTensor; of any shape with a dimension that counts blocks.
        tokens_per_block: tokens of one block.
        block_dim: which dimension counts blocks.
        groups: for each KV group the names (indexes, for a list) of its tensors; all are one group by default.
        blocks_per_chunk: blocks of one unit of offload; by default the fewest that give a slot of 512 KiB.
        page_bytes: for tensors of byte rows (num_blocks, row_bytes): bytes of each row that are used, from its start.
        num_blocks: blocks to use when the tensors have more; by default all (a group's tensors have equally many).
        Options are one value or a list of one per group; block_dim and page_bytes also a dict name -> value.

        Raises UnsupportedLayout, with shape and strides, for tensors that are not understood; InvalidInput for options.

        >>> import numpy as np
        >>> layers = [np.zeros((100, 2, 16, 8, 128), np.float16) for _ in range(4)]
        >>> layout = KVLayout.from_tensors(layers, tokens_per_block=16)
        >>> layout.device, layout.groups[0].num_blocks, layout.groups[0].block_bytes
        ('host', 100, 262144)
        """
        named = _named(kv_caches)
        members = _members(groups, named)
        count = len(members)
        described = {name: _describe(name, tensor) for name, tensor in named.items()}
        sources = {name: source for name, (source, _) in described.items()}
        device = _one_device(sources)
        tokens = _for_groups(tokens_per_block, count, "tokens_per_block")
        chunk_sizes = _for_groups(blocks_per_chunk, count, "blocks_per_chunk", optional=True)
        counts = _for_groups(num_blocks, count, "num_blocks", optional=True)
        dims = _for_tensors(block_dim, members, "block_dim", least=0)
        rows = _for_tensors(page_bytes, members, "page_bytes", optional=True)
        made = []
        for i, names in enumerate(members):
            views = {n: _view(n, sources[n], dims[i][n], rows[i][n]) for n in names}
            blocks = _num_blocks(views, dims[i], counts[i])
            geometry, content = _geometry(views, dims[i], blocks, chunk_sizes[i])
            made.append(KVGroup(geometry, tokens[i], f"group{i}", content))
        first = next(iter(named.values()))
        keep = tuple(owner for _, owner in described.values())
        return cls(tuple(made), device, current_stream_of(first, device), keep)


def _hash(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, separators=(",", ":")).encode()).hexdigest()


def _named(kv_caches: Any) -> dict[Name, Any]:
    if isinstance(kv_caches, Mapping):
        named = dict(kv_caches)
    elif isinstance(kv_caches, (list, tuple)):
        named = dict(enumerate(kv_caches))
    else:
        named = {0: kv_caches}
    if not named:
        raise InvalidInput("kv_caches is empty; it must hold at least one tensor")
    return named


def _members(groups: Sequence[Sequence[Name]] | None, named: Mapping[Name, Any]) -> list[list[Name]]:
    members = [list(names) for names in groups] if groups is not None else [list(named)]
    used = [name for names in members for name in names]
    if not members or not all(members):
        raise InvalidInput(f"groups is {groups!r}; it must hold at least one group, and each at least one tensor")
    _check_names(used, named, "groups")
    if left_out := [name for name in named if name not in used]:
        raise InvalidInput(f"groups leaves out {left_out}; add them to a group, or leave them out of kv_caches too")
    return members


def _check_names(names: Iterable[Name], known: Iterable[Name], option: str) -> None:
    known = list(known)
    if unknown := [name for name in names if name not in known]:
        raise InvalidInput(f"{option} names {unknown}, which kv_caches does not hold; it holds {known}")


def _integer(value: Any, option: str, least: int) -> int:
    try:
        number = operator.index(value)
    except TypeError:
        number = least - 1
    if isinstance(value, bool) or not least <= number < 2**63:
        raise InvalidInput(f"{option} is {value!r}; it must be an integer, at least {least}")
    return number


def _for_groups(value: Any, count: int, option: str, *, least: int = 1, optional: bool = False) -> list[Any]:
    values = list(value) if isinstance(value, (list, tuple)) else [value] * count
    if len(values) != count:
        raise InvalidInput(f"{option} is {value!r}; it must be one value or a list of {count}, one per group")
    return [None if optional and v is None else _integer(v, option, least) for v in values]


def _for_tensors(
    value: Any, members: list[list[Name]], option: str, *, least: int = 1, optional: bool = False
) -> list[dict[Name, Any]]:
    if not isinstance(value, Mapping):
        per_group = _for_groups(value, len(members), option, least=least, optional=optional)
        return [dict.fromkeys(names, v) for names, v in zip(members, per_group, strict=True)]
    used = {name for names in members for name in names}
    _check_names(value, used, option)
    if not optional and len(value) < len(used):
        raise InvalidInput(f"{option} has no value for {sorted(used - set(value), key=str)}; give one for every tensor")
    numbers = {name: _integer(v, f"{option}[{name!r}]", least) for name, v in value.items()}
    return [{name: numbers.get(name) for name in names} for names in members]


def _describe(name: Name, tensor: Any) -> tuple[RawTensor, Any]:
    try:
        return describe(tensor)
    except InvalidInput as error:
        raise UnsupportedLayout(f"tensor {name!r}: {error}") from error


def _one_device(sources: Mapping[Name, RawTensor]) -> str:
    first, device = next((name, source.device) for name, source in sources.items())
    for name, source in sources.items():
        if source.device != device:
            raise InvalidInput(
                f"tensor {first!r} is on {device} and tensor {name!r} on {source.device}; a layout is of one device: "
                "make one for each"
            )
    return device


def _view(name: Name, source: RawTensor, block_dim: int, page_bytes: int | None) -> RawTensor:
    """The part of the tensor that is KV."""
    shape = source.shape
    if block_dim >= len(shape):
        raise UnsupportedLayout(
            f"tensor {name!r}: shape {shape}, strides {source.strides_bytes} bytes: block_dim is {block_dim}; "
            f"it must be 0 to {len(shape) - 1}, the dimension that counts blocks"
        )
    if page_bytes is None:
        return source
    if len(shape) != 2 or block_dim != 0 or source.item_bytes != 1 or page_bytes > shape[1]:
        raise UnsupportedLayout(
            f"tensor {name!r}: shape {shape}, items of {source.item_bytes} bytes: page_bytes is {page_bytes}; it is "
            "for byte rows (num_blocks, row_bytes), and at most row_bytes"
        )
    return replace(source, shape=(shape[0], page_bytes))


def _num_blocks(views: Mapping[Name, RawTensor], block_dims: Mapping[Name, int], wanted: int | None) -> int:
    counts = {name: view.shape[block_dims[name]] for name, view in views.items()}
    fewest = min(counts, key=lambda name: counts[name])
    most = max(counts, key=lambda name: counts[name])
    if wanted is not None and wanted > counts[fewest]:
        raise InvalidInput(f"num_blocks is {wanted}; tensor {fewest!r} has only {counts[fewest]}")
    if wanted is None and counts[fewest] != counts[most]:
        raise InvalidInput(
            f"tensor {fewest!r} has {counts[fewest]} blocks and tensor {most!r} of the same group {counts[most]}; "
            "check block_dim, or set num_blocks to those to use"
        )
    return counts[fewest] if wanted is None else wanted


def _geometry(
    views: Mapping[Name, RawTensor], block_dims: Mapping[Name, int], num_blocks: int, blocks_per_chunk: int | None
) -> tuple[_C.GroupGeometry, str]:
    pages = {}
    for name, view in views.items():
        shape = list(view.shape)
        shape[block_dims[name]] = num_blocks
        try:
            pages[name] = _C.pages_of(view.address, view.item_bytes, shape, list(view.strides_bytes), block_dims[name])
        except InvalidInput as error:
            raise UnsupportedLayout(f"tensor {name!r}: {error}") from None
    try:
        merged = _C.merge_pages([page for listed in pages.values() for page in listed], num_blocks)
    except InvalidInput as error:
        raise UnsupportedLayout(f"tensors {list(views)}: {error}") from None
    if blocks_per_chunk is None:
        least_payload = _LEAST_SLOT_BYTES - _C.SLOT_ALIGN - _C.TRAILER_BYTES + 1
        block_bytes = sum(page.bytes for page in merged)
        blocks_per_chunk = min(-(-least_payload // block_bytes), num_blocks)
    geometry = _C.GroupGeometry(merged, num_blocks, blocks_per_chunk)
    return geometry, _content(views, block_dims, pages, merged)


def _content(
    views: Mapping[Name, RawTensor],
    block_dims: Mapping[Name, int],
    pages: Mapping[Name, list[_C.PageRun]],
    merged: list[_C.PageRun],
) -> str:
    """Hash of which part of which tensor is where in a block: dimensions, their order in memory, places of pages."""
    starts = sorted((page.address, index) for index, page in enumerate(merged))
    parts = []
    for name, view in views.items():
        inner = [d for d in range(len(view.shape)) if d != block_dims[name]]
        sizes = [view.shape[d] for d in inner]
        order = sorted((i for i, n in enumerate(sizes) if n > 1), key=lambda i: view.strides_bytes[inner[i]])
        places = []
        for page in pages[name]:
            start, index = starts[bisect.bisect_right(starts, (page.address, len(starts))) - 1]
            places.append([index, page.address - start])
        parts.append([str(name), view.item_bytes, sizes, order, places])
    return _hash(parts)
