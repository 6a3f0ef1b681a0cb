"""Right bytes, on every device alike: all layouts, sizes and offsets, against a byte-wise reference."""

import mmap

import numpy as np
import pytest
from backends import EVERYWHERE, address_of
from conformance import World, each_path, finish  # noqa: F401
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kv_layouts import CASES, Case, View, packed

import kvoffload as kv

everywhere = pytest.mark.parametrize("backend", EVERYWHERE)
pytestmark = pytest.mark.usefixtures("each_path")
relaxed = settings(deadline=None, max_examples=100, suppress_health_check=list(HealthCheck))


@everywhere
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_every_layout_comes_back(backend, case):
    with World(backend(), case) as world:
        for group in range(len(case.groups)):
            blocks, slots = world.choose(group, 3)
            size = len(blocks) * world.layout.groups[group].block_bytes
            finish(world.store(group, blocks, slots), bytes=size)
            world.scramble()
            world.check()
            others, _ = world.choose(group, 3)
            finish(world.load(group, slots, others), bytes=size)
            world.check()


@everywhere
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_slot_holds_pages_in_the_documented_order_and_nothing_else_is_written(backend, case):
    with World(backend(), case) as world:
        for group, spec in enumerate(world.layout.groups):
            blocks, slots = world.choose(group, 1)
            world.mover.slot_view(group, slots[0])[:] = bytes([0xA5]) * spec.slot_bytes
            finish(world.store(group, blocks, slots))
            slot = np.frombuffer(world.mover.slot_view(group, slots[0]), np.uint8)
            assert slot.size == spec.slot_bytes
            assert (slot[spec.payload_bytes :] == 0xA5).all()
            # Every byte of the blocks once, whatever the order of pages ...
            assert (np.sort(slot[: spec.payload_bytes]) == np.sort(world.bytes_of(group, blocks).ravel())).all()
            # ... and neighbours of one page side by side: page p of block j at bpc * (bytes before p) + j * bytes of p.
            before, seen = 0, []
            for page in spec.geometry.pages:
                at = spec.blocks_per_chunk * before
                seen.append(slot[at : at + spec.blocks_per_chunk * page.bytes].reshape(-1, page.bytes))
                before += page.bytes
            per_block = np.sort(np.concatenate(seen, axis=1), axis=1)
            assert (per_block == np.sort(world.bytes_of(group, blocks), axis=1)).all()


@st.composite
def layouts(draw):
    """A view with any order of dimensions outside and inside the block, odd sizes, padding and offsets."""
    item = draw(st.sampled_from([1, 1, 2, 4]))
    inner = draw(st.lists(st.integers(1, 5), min_size=1, max_size=3))
    outer = draw(st.lists(st.integers(1, 3), max_size=2))
    blocks = draw(st.integers(1, 12))
    shape = (*outer, blocks, *inner)
    inside = [len(outer) + 1 + d for d in range(len(inner))]
    order = (*draw(st.permutations(range(len(outer) + 1))), *draw(st.permutations(inside)))
    pads = {inside_first: draw(st.integers(0, 9)) * item for inside_first in [order[len(outer) + 1]]}
    strides, size = packed(shape, item, order, pads)
    offset = draw(st.integers(0, 7)) * item
    count = draw(st.integers(1, 3))
    views = tuple(View(i, offset, shape, strides, item, len(outer)) for i in range(count))
    options = {"block_dim": len(outer), "blocks_per_chunk": draw(st.integers(1, blocks))}
    return Case(f"{shape} strides {strides} item {item}", (size + offset,) * count, (views,), options=options)


@st.composite
def steps(draw):
    return draw(st.lists(st.tuples(st.sampled_from("sl"), st.integers(1, 4), st.integers(0, 99)), max_size=8))


def run_steps(world, todo, stream):
    """Stores and loads one behind the other, ordered by device-side edges alone."""
    stored, transfers = [], []
    for kind, chunks, number in todo:
        blocks, slots = world.choose(0, chunks)
        if kind == "s":
            transfers.append(world.store(0, blocks, slots, stream=stream.handle))
            stored = sorted(set(stored) | set(slots))
        else:
            slots = stored[: len(slots)]
            blocks = blocks[: len(slots) * world.blocks_per_chunk(0)]
            if not slots:
                continue
            skip = number % world.blocks_per_chunk(0)
            transfers.append(world.load(0, slots, blocks, skip_blocks=skip, stream=stream.handle))
        transfers[-1].before(stream.handle)
    stream.synchronize()
    for transfer in transfers:
        finish(transfer)
    world.check()


@everywhere
@relaxed
@given(case=layouts(), todo=steps(), seed=st.integers(0, 2**32 - 1))
def test_any_layout_and_any_steps_agree_with_the_reference(backend, case, todo, seed):
    backend = backend()
    with World(backend, case, seed) as world:
        run_steps(world, [("s", 2, 0), *todo, ("l", 4, 1)], backend.stream())


@everywhere
@pytest.mark.parametrize("skip", [1, 2, 3])
def test_a_load_from_the_middle_of_a_chunk_leaves_the_blocks_before_it_alone(backend, skip):
    case = next(c for c in CASES if c.name == "NHD")
    with World(backend(), case) as world:
        finish(world.store(0, range(8), world.free_slots[0][:2]))
        world.scramble()
        finish(world.load(0, world.free_slots[0][:2], [3, 9, 1, 10, 4, 0, 2, 8], skip_blocks=skip))
        world.check()


@everywhere
def test_empty_and_one_entry_transfers(backend):
    with World(backend(), CASES[0]) as world:
        finish(world.mover.store([], []), bytes=0)
        finish(world.mover.load([], []), bytes=0)
        blocks, slots = world.choose(0, 1)
        finish(world.store(0, blocks, slots))
        world.scramble()
        finish(world.load(0, slots, blocks))
        world.check()


def sixty_thousand_pages(blocks=2000, pages=30):
    """Every page apart from its neighbours on both sides: `blocks * pages` spans of 512 B to 64 KiB."""
    sizes = [int(size) // 2 * 2 for size in np.geomspace(512, 65536, pages)]
    buffers, views = [], []
    for i, size in enumerate(sizes):
        buffers.append(blocks * (size + 64))
        views.append(View(i, 0, (blocks, size // 2), (size + 64, 2), 2))
    return Case("60,000 pages", tuple(buffers), (tuple(views),), options={"blocks_per_chunk": 1})


@everywhere
def test_sixty_thousand_descriptors_back_to_back(backend):
    """10 transfers on the host, 200 on a GPU; each of them moves all blocks, in another order."""
    backend = backend()
    with World(backend, sixty_thousand_pages(), host="1GiB", queue_depth=256) as world:
        came_from = np.arange(2000)  # which block's bytes each block holds now
        payload = [view.shape[1] * 2 for view in world.case.groups[0]]
        transfers = []
        for _ in range((200 if backend.device != "host" else 10) // 2):
            source, target = world.rng.permutation(2000), world.rng.permutation(2000)
            slots = world.rng.permutation(world.free_slots[0])[:2000]
            for name, ids in (("store", (source, slots)), ("load", (slots, target))):
                transfers.append(getattr(world.mover, name)(*ids))
                transfers[-1].before()
            came_from[target] = came_from[source]
        for transfer in transfers:
            finish(transfer, bytes=2000 * sum(payload))
        for data, size in zip(world.memory, payload, strict=True):
            rows = data.reshape(2000, -1)
            rows[:, :size] = rows[came_from, :size]
        world.check()


SPARSE_STRIDE = 2**37


def test_offsets_beyond_2_to_the_40_on_the_host():
    blocks = 17
    memory = mmap.mmap(-1, blocks * SPARSE_STRIDE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000)  # MAP_NORESERVE
    flat = np.frombuffer(memory, np.uint8)
    tensor = np.ndarray((blocks, 8192), np.uint8, buffer=memory, strides=(SPARSE_STRIDE, 1))
    layout = kv.KVLayout.from_tensors(tensor, tokens_per_block=16, blocks_per_chunk=1)
    wanted = {b: np.random.default_rng(b).integers(0, 256, 8192, np.uint8) for b in (16, 9, 8)}
    with kv.Mover(layout, host="1MiB") as mover:
        for block, data in wanted.items():
            flat[block * SPARSE_STRIDE :][:8192] = data
        finish(mover.store([16, 9, 8], [0, 1, 2]))
        finish(mover.load([0, 1, 2], [15, 16, 9]))
        for target, source in ((15, 16), (16, 9), (9, 8)):
            assert (flat[target * SPARSE_STRIDE :][:8192] == wanted[source]).all()
        assert (flat[8 * SPARSE_STRIDE :][:8192] == wanted[8]).all()


def test_a_raw_pointer_is_as_good_as_a_tensor():
    data = np.random.default_rng(0).integers(0, 256, (8, 100), np.uint8)
    kept = data.copy()
    raw = kv.RawTensor(address_of(data), (8, 100), (100, 1), 1, "host")
    layout = kv.KVLayout.from_tensors(raw, tokens_per_block=1, blocks_per_chunk=2)
    with kv.Mover(layout, host="1MiB") as mover:
        finish(mover.store([6, 7], [0]))
        finish(mover.load([0], [1, 0]))
    assert (data[1] == kept[6]).all()
    assert (data[0] == kept[7]).all()
    assert (data[2:] == kept[2:]).all()
