"""Geometry: slots and copies against a byte-wise reference; groups, options and the fingerprint."""

import ctypes

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kv_layouts import CASES, Case, View, packed

import kvoffload as kv
from kvoffload import _C

POISON = 0xA5


class Memory:
    """The buffers of a case in one array, and where each block's bytes are in it by definition of shape and strides."""

    def __init__(self, case: Case, seed: int = 0):
        bases = np.cumsum([5, *(size + 37 for size in case.buffers)])
        self.bytes = np.random.default_rng(seed).integers(0, 256, bases[-1], np.uint8)
        self.where, self.tensor_of, self.groups, self.tensors = [], [], [], []
        for views in case.groups:
            self.groups.append([len(self.tensors) + i for i in range(len(views))])
            self.tensors += [self.view(v, bases[v.buffer] + v.offset) for v in views]
            parts = [v.byte_index() + bases[v.buffer] for v in views]
            self.where.append(np.concatenate(parts, axis=1))
            self.tensor_of.append(np.repeat(range(len(parts)), [part.shape[1] for part in parts]))
        self.layout = kv.KVLayout.from_tensors(
            self.tensors, tokens_per_block=case.tokens_per_block, groups=self.groups, **case.options
        )

    def view(self, view: View, offset: int) -> np.ndarray:
        return np.ndarray(view.shape, f"V{view.item_bytes}", self.bytes.data, offset, view.strides)

    def runs(self, group: int) -> list[np.ndarray]:
        """Columns of `where` that are contiguous bytes of a block, in the order of the tensors, then of addresses."""
        where = self.where[group][0]
        first, columns = np.unique(where, return_index=True)
        runs = np.split(columns, np.flatnonzero(np.diff(first) != 1) + 1)
        return sorted(runs, key=lambda run: (self.tensor_of[group][run.min()], where[run[0]]))

    def slot(self, group: int, blocks) -> np.ndarray:
        return np.concatenate([self.bytes[self.where[group][b][run]] for run in self.runs(group) for b in blocks])


def copy(spans, arena: np.ndarray, store: bool) -> None:
    for device, host, size in spans:
        place = arena.ctypes.data + host
        assert 0 <= host <= arena.size - size
        ctypes.memmove(*((place, device) if store else (device, place)), size)


def check_store_and_load(case: Case, skip: int = 0, cut_bytes: int = 0, seed: int = 0) -> None:
    memory, rng = Memory(case, seed), np.random.default_rng(seed)
    for index, group in enumerate(memory.layout.groups):
        bpc, where = group.blocks_per_chunk, memory.where[index]
        assert group.num_blocks == len(where)
        chunks = min(group.num_blocks // bpc, 3)
        source, target = (rng.permutation(group.num_blocks)[: chunks * bpc] for _ in range(2))
        slots = rng.permutation(chunks) * group.slot_bytes
        arena = np.full(chunks * group.slot_bytes, POISON, np.uint8)
        expected = arena.copy()
        for offset, blocks in zip(slots, source.reshape(chunks, bpc), strict=True):
            content = memory.slot(index, blocks)
            assert content.size == group.payload_bytes <= group.slot_bytes - _C.TRAILER_BYTES
            expected[offset : offset + content.size] = content
        copy(_C.plan_spans(group.geometry, source, slots, 0, cut_bytes), arena, store=True)
        np.testing.assert_array_equal(arena, expected)

        skip = min(skip, bpc)
        stored = memory.bytes[where[source]]
        memory.bytes[:] = rng.integers(0, 256, memory.bytes.size, np.uint8)
        expected = memory.bytes.copy()
        expected[where[target[skip:]]] = stored[skip:]
        copy(_C.plan_spans(group.geometry, target, slots, skip, cut_bytes), arena, store=False)
        np.testing.assert_array_equal(memory.bytes, expected)


@pytest.mark.parametrize("skip", [0, 1])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_every_layout_against_the_byte_wise_reference(case, skip):
    check_store_and_load(case, skip=skip)


@st.composite
def layouts(draw) -> Case:
    """Any nesting of blocks, layers and up to three other dimensions, with gaps, in one storage."""
    others = draw(st.integers(0, 3))
    shape = (draw(st.integers(1, 7)), draw(st.integers(1, 3)), *draw(st.tuples(*[st.integers(1, 4)] * others)))
    order = draw(st.permutations(range(len(shape))))
    pads = draw(st.dictionaries(st.sampled_from(range(len(shape))), st.integers(0, 5), max_size=2))
    item, offset = draw(st.sampled_from([1, 2, 4])), draw(st.integers(0, 9))
    strides, size = packed(shape, item, order, pads)
    views = []
    for layer in range(shape[1]):
        start = offset + layer * strides[1]
        views.append(View(0, start, (shape[0], *shape[2:]), (strides[0], *strides[2:]), item))
    bpc = draw(st.integers(1, shape[0]))
    return Case("drawn", (size + offset,), (tuple(views),), options={"blocks_per_chunk": bpc})


@given(layouts(), st.integers(0, 3), st.integers(0, 300), st.integers(0, 2**32 - 1))
def test_any_nesting_against_the_byte_wise_reference(case, skip, cut_bytes, seed):
    check_store_and_load(case, skip, cut_bytes, seed)


@given(
    st.lists(st.tuples(st.integers(1, 60), st.integers(1, 8)), min_size=1, max_size=5),
    st.integers(8, 14),
    st.integers(1, 4),
)
def test_pages_of_a_group_overlap_exactly_if_their_bytes_do(places, stride, num_blocks):
    pages = [_C.PageRun(1000 + start, stride, size) for start, size in places]
    used = [
        {start + block * stride + k for block in range(num_blocks) for k in range(size)} for start, size in set(places)
    ]
    if sum(map(len, used)) != len(set.union(*used)):
        with pytest.raises(kv.InvalidInput, match="overlap"):
            _C.merge_pages(pages, num_blocks)
        return
    merged = _C.merge_pages(pages, num_blocks)
    covered = [p.address - 1000 + b * stride + k for p in merged for b in range(num_blocks) for k in range(p.bytes)]
    assert sorted(covered) == sorted(set.union(*used))
    assert all(p.bytes <= stride or num_blocks == 1 for p in merged)


def test_offsets_beyond_2_to_the_40():
    stride = 2**41 + 4096
    raw = kv.RawTensor(2**44, (2, 1000, 4096), (1000 * stride, stride, 1))
    layout = kv.KVLayout.from_tensors(raw, tokens_per_block=16, block_dim=1, blocks_per_chunk=1)
    spans = _C.plan_spans(layout.groups[0].geometry, np.array([999]), np.array([2**42]), 0, 2**28)
    assert spans == [
        (2**44 + 999 * stride, 2**42, 4096),
        (2**44 + 1999 * stride, 2**42 + 4096, 4096),
    ]


def test_default_chunks_are_the_smallest_of_512_kib():
    for page in (100, 4096, 32768, 520192 - 512, 520192 - 511, 2**20):
        raw = kv.RawTensor(2**40, (10**6, page), (page, 1))
        group = kv.KVLayout.from_tensors(raw, tokens_per_block=16).groups[0]
        assert group.slot_bytes >= 512 * 1024
        smaller = (group.blocks_per_chunk - 1) * page
        assert group.blocks_per_chunk == 1 or -(-(smaller + 512) // 4096) * 4096 < 512 * 1024
    few = kv.KVLayout.from_tensors(np.zeros((3, 8)), tokens_per_block=1)
    assert few.groups[0].blocks_per_chunk == 3  # never more than there are blocks


# --- groups and options ---------------------------------------------------------------------------------------------


def zeros(*shape, dtype=np.float16):
    return np.zeros(shape, dtype)


def test_names_groups_and_options_per_group():
    caches = {"a": zeros(10, 4, 8), "b": zeros(10, 4, 8), "window": zeros(2, 20, 3)}
    layout = kv.KVLayout.from_tensors(
        caches, tokens_per_block=[4, 2], groups=[["a", "b"], ["window"]], block_dim=[0, 1], blocks_per_chunk=[5, 2]
    )
    first, second = layout.groups
    assert (first.num_blocks, first.block_bytes, first.blocks_per_chunk, first.tokens_per_block) == (10, 128, 5, 4)
    assert (second.num_blocks, second.block_bytes, second.blocks_per_chunk, second.tokens_per_block) == (20, 12, 2, 2)
    assert (first.payload_bytes, first.slot_bytes, first.name, second.name) == (640, 4096, "group0", "group1")
    by_name = kv.KVLayout.from_tensors(
        caches, tokens_per_block=4, block_dim={"a": 0, "b": 0, "window": 1}, num_blocks=10
    )
    assert (by_name.groups[0].num_blocks, by_name.groups[0].block_bytes) == (10, 140)


def test_groups_may_share_bytes_and_a_tensor_counts_once_in_a_group():
    cache = zeros(10, 4, 8)
    layout = kv.KVLayout.from_tensors([cache, cache, cache], tokens_per_block=4, groups=[[0, 1], [2]])
    assert [group.block_bytes for group in layout.groups] == [64, 64]
    with pytest.raises(kv.UnsupportedLayout, match=r"tensors \[0, 1\]: pages of one group overlap"):
        kv.KVLayout.from_tensors([cache[:6], cache[4:]], tokens_per_block=4)


def test_page_bytes_leave_out_the_padding():
    rows = {"a": zeros(10, 1000, dtype=np.uint8), "b": zeros(10, 600, dtype=np.uint8)}
    both = kv.KVLayout.from_tensors(rows, tokens_per_block=4, page_bytes={"a": 700})
    assert both.groups[0].block_bytes == 1300
    assert kv.KVLayout.from_tensors(rows, tokens_per_block=4, page_bytes=500).groups[0].block_bytes == 1000


BAD_OPTIONS = [
    ({"tokens_per_block": 0}, "tokens_per_block is 0; it must be an integer, at least 1"),
    ({"tokens_per_block": True}, "tokens_per_block is True"),
    ({"tokens_per_block": 1.5}, "tokens_per_block is 1.5"),
    ({"tokens_per_block": [4, 4]}, "one value or a list of 1, one per group"),
    ({"block_dim": -1}, "block_dim is -1"),
    ({"block_dim": 3}, r"shape \(10, 4, 8\).*block_dim is 3; it must be 0 to 2"),
    ({"block_dim": {"a": 0}}, r"block_dim has no value for \['b'\]"),
    ({"block_dim": {"a": 0, "b": 0, "c": 0}}, r"block_dim names \['c'\]"),
    ({"block_dim": {"a": 0, "b": 1}}, "'b' has 4 blocks and tensor 'a' of the same group 10"),
    ({"blocks_per_chunk": 11}, "blocks_per_chunk is 11; it must be 1 to 10"),
    ({"num_blocks": 11}, "num_blocks is 11; tensor 'a' has only 10"),
    ({"groups": []}, "at least one group"),
    ({"groups": [["a", "b"], []]}, "each at least one tensor"),
    ({"groups": [["a", "c"]]}, r"groups names \['c'\].*it holds \['a', 'b'\]"),
    ({"groups": [["a"]]}, r"groups leaves out \['b'\]"),
    ({"page_bytes": 8}, r"tensor 'a': shape \(10, 4, 8\).*page_bytes is 8"),
]


@pytest.mark.parametrize(("options", "message"), BAD_OPTIONS, ids=lambda value: str(value)[:40])
def test_bad_options_say_what_was_given_and_what_is_allowed(options, message):
    with pytest.raises(kv.InvalidInput, match=message):
        kv.KVLayout.from_tensors({"a": zeros(10, 4, 8), "b": zeros(10, 4, 8)}, **{"tokens_per_block": 4, **options})


# --- fingerprint ----------------------------------------------------------------------------------------------------


def fingerprint(*tensors, tokens_per_block=4, blocks_per_chunk=2, **options):
    return kv.KVLayout.from_tensors(
        list(tensors), tokens_per_block=tokens_per_block, blocks_per_chunk=blocks_per_chunk, **options
    ).fingerprint


def test_the_fingerprint_does_not_depend_on_addresses_strides_and_blocks():
    plain = fingerprint(zeros(10, 4, 8), zeros(10, 4, 8))
    assert len(plain) == 64
    assert int(plain, 16) >= 0
    late, early = sorted((zeros(10, 4, 8), zeros(10, 4, 8)), key=lambda a: -a.ctypes.data)
    assert plain == fingerprint(late, early) == fingerprint(early, late)
    assert plain == fingerprint(zeros(30, 4, 8), zeros(30, 4, 8))
    assert plain == fingerprint(zeros(20, 4, 8)[::2], zeros(10, 4, 8))
    assert fingerprint(zeros(2, 10, 8), block_dim=1) == fingerprint(zeros(2, 12, 8), block_dim=1)


def test_the_fingerprint_depends_on_all_that_changes_the_bytes_of_a_slot():
    a, b, rows = zeros(10, 4, 8), zeros(10, 4, 8), zeros(10, 2, 4, 8)
    different = [
        fingerprint(a, b),
        fingerprint(a),
        fingerprint(a, b, tokens_per_block=8),
        fingerprint(a, b, blocks_per_chunk=5),
        fingerprint(a, b, groups=[[0], [1]]),
        fingerprint(a, b, groups=[[1, 0]]),
        fingerprint(a, zeros(10, 4, 4)),
        fingerprint(zeros(10, 8, 4).transpose(0, 2, 1), b),  # heads before tokens in memory, the same shape
        fingerprint(zeros(10, 4, 16, dtype=np.int8), b),
        fingerprint(rows[:, 0], rows[:, 1]),  # one page
        fingerprint(rows[:, 1], rows[:, 0]),  # the same page, the other order in it
    ]
    assert len(set(different)) == len(different)
