"""Order between a caller's stream and our copies, on every device alike. On the host a thread stands in for the
stream, and a handle of it is a kv.HostStream.

What only a GPU can show is in tests/gpu/test_order_cuda.py.
"""

import contextlib
import os

import numpy as np
import pytest
from backends import EVERYWHERE, HOST, BusyStreams
from conformance import World, each_path, finish  # noqa: F401
from kv_layouts import plain

import kvoffload as kv

BLOCK = 4096
SLOW_SECONDS = 0.002
CASE = plain(128, BLOCK)
on_host = pytest.mark.parametrize("backend", HOST)
everywhere = pytest.mark.parametrize("backend", EVERYWHERE)
pytestmark = pytest.mark.usefixtures("each_path")
overlapping = pytest.mark.skipif(
    os.environ.get("CUDA_DEVICE_MAX_CONNECTIONS") == "1", reason="one hardware queue orders unrelated streams as well"
)


@pytest.fixture(autouse=True)
def _busy_foreign_streams(request):
    """KVO_TEST_BUSY_STREAMS=8: everything here beside as many streams of somebody else that are never idle."""
    backend = request.getfixturevalue("backend")
    count = int(os.environ.get("KVO_TEST_BUSY_STREAMS", "0"))
    with BusyStreams(backend(), count) if count and backend.device != "host" else contextlib.nullcontext():
        yield


def slot_values(world, slots) -> list[set[int]]:
    return [set(bytes(world.mover.slot_view(0, slot)[:BLOCK])) for slot in slots]


@everywhere
def test_a_store_sees_what_a_slow_writer_wrote(backend):
    backend = backend()
    with World(backend, CASE) as world:
        stream = backend.stream()
        for i in range(200):
            stream.delay(SLOW_SECONDS)
            stream.fill(world.device[0], 0, 4 * BLOCK, i)
            finish(world.mover.store([0, 1, 2, 3], [4, 5, 6, 7], stream=stream.handle))
            assert slot_values(world, [4, 5, 6, 7]) == [{i}] * 4


@overlapping
@everywhere
def test_without_the_edge_a_store_is_stale(backend):
    """The test above can fail: on a stream that does not know of the writer, the store takes the old bytes."""
    backend = backend()
    with World(backend, CASE) as world:
        writer, other = backend.stream(), backend.stream()
        writer.fill(world.device[0], 0, BLOCK, 1)
        writer.synchronize()
        writer.delay(0.3)
        writer.fill(world.device[0], 0, BLOCK, 2)
        finish(world.mover.store([0], [0], stream=other.handle))
        writer.synchronize()
        assert slot_values(world, [0]) == [{1}]


def make_loads_slow(world, other) -> None:
    """An empty load goes ahead on our stream and waits there for a slow kernel: without before() the rest is early."""
    other.delay(2 * SLOW_SECONDS)
    world.mover.load([], [], stream=other.handle)


@everywhere
def test_a_load_overwrites_only_after_a_slow_user_and_later_work_comes_after_it(backend):
    """The stream writes late: were the load early, that write would win; a later write must win over the load."""
    backend = backend()
    with World(backend, CASE) as world:
        stream, other, memory = backend.stream(), backend.stream(), world.device[0]
        finish(world.mover.store([9], [0]))
        loaded = world.memory[0][9 * BLOCK : 10 * BLOCK]
        for i in range(200):
            stream.delay(SLOW_SECONDS)
            stream.fill(memory, 0, BLOCK, i)
            make_loads_slow(world, other)
            transfer = world.mover.load([0], [0], stream=stream.handle)
            transfer.before(stream.handle)
            stream.fill(memory, 0, BLOCK // 2, i)
            stream.synchronize()
            now = backend.read(memory)[:BLOCK]
            assert (now[: BLOCK // 2] == i).all()
            assert (now[BLOCK // 2 :] == loaded[BLOCK // 2 :]).all()
            finish(transfer, bytes=BLOCK)


@everywhere
def test_a_load_behind_a_slow_reader_and_a_reader_behind_the_load(backend):
    """The stream reads the block late: it must find the old bytes, and what it reads afterwards the loaded ones."""
    backend = backend()
    with World(backend, CASE) as world:
        stream, other, memory = backend.stream(), backend.stream(), world.device[0]
        out = backend.memory(np.zeros(2 * BLOCK, np.uint8))
        finish(world.mover.store([8, 9], [0, 1]))
        contents = world.memory[0].reshape(-1, BLOCK)[[8, 9]]
        world.mover.load([1], [0]).before()
        backend.synchronize()
        for i in range(200):
            stream.delay(SLOW_SECONDS)
            stream.copy(out[:BLOCK], memory[:BLOCK])
            make_loads_slow(world, other)
            transfer = world.mover.load([i % 2], [0], stream=stream.handle)
            transfer.before(stream.handle)
            stream.copy(out[BLOCK:], memory[:BLOCK])
            stream.synchronize()
            early, late = backend.read(out).reshape(2, BLOCK)
            assert (early == contents[1 - i % 2]).all()
            assert (late == contents[i % 2]).all()
            finish(transfer, bytes=BLOCK)


@overlapping
@everywhere
def test_a_mark_is_the_point_at_which_it_was_made(backend):
    """Work queued after the mark does not hold the store back, and its bytes are not waited for."""
    backend = backend()
    with World(backend, CASE) as world:
        stream = backend.stream()
        stream.delay(SLOW_SECONDS)
        stream.fill(world.device[0], 0, BLOCK, 7)
        mark = world.mover.mark(stream.handle)
        stream.delay(0.3)
        stream.fill(world.device[0], 0, BLOCK, 8)
        finish(world.mover.store([0], [0], after=mark))
        stream.synchronize()
        assert slot_values(world, [0]) == [{7}]


@everywhere
def test_a_hundred_transfers_behind_a_slow_kernel_keep_their_own_data(backend):
    """Ids are the transfer's own copy; each store sees its own fill, as before() holds the next one back."""
    backend = backend()
    with World(backend, CASE, queue_depth=256) as world:
        stream, transfers = backend.stream(), []
        blocks, slots = np.zeros(1, np.int64), np.zeros(1, np.int64)
        stream.delay(0.3)
        for i in range(100):
            stream.fill(world.device[0], i * BLOCK, (i + 1) * BLOCK, i)
            blocks[0], slots[0] = i, 2 * i
            transfers.append(world.mover.store(blocks, slots, stream=stream.handle))
            transfers[-1].before(stream.handle)
            stream.fill(world.device[0], i * BLOCK, (i + 1) * BLOCK, 255)
            blocks[0], slots[0] = 127, 255
        for transfer in transfers:
            finish(transfer, bytes=BLOCK)
        assert slot_values(world, [2 * i for i in range(100)]) == [{i} for i in range(100)]
        stream.delay(0.3)
        transfers = [world.mover.load([2 * i], [99 - i], stream=stream.handle) for i in range(100)]
        for transfer in transfers:
            transfer.before(stream.handle)
        stream.synchronize()
        rows = backend.read(world.device[0]).reshape(-1, BLOCK)
        assert (rows[:100] == np.arange(99, -1, -1, dtype=np.uint8)[:, None]).all()


@on_host
def test_the_calling_thread_is_the_stream_where_none_is_named(backend):
    with World(backend(), CASE) as world:
        transfer = world.store(0, [3], [1])
        transfer.before()
        assert bytes(world.mover.slot_view(0, 1)[:BLOCK]) == world.memory[0][3 * BLOCK : 4 * BLOCK].tobytes()
        world.load(0, [1], [5]).before()
        world.check()


@everywhere
def test_several_movers_on_one_device(backend):
    backend = backend()
    worlds = [World(backend, CASE, seed=i) for i in range(4)]
    stream = backend.stream()
    try:
        for world in worlds:
            world.store(0, [1, 2, 3], [3, 2, 1], stream=stream.handle).before(stream.handle)
            world.load(0, [2, 3], [120, 121], stream=stream.handle).before(stream.handle)
        stream.synchronize()
        for world in worlds:
            world.check()
        worlds[0].mover.close()
        finish(worlds[1].store(0, [4], [4]))
        with pytest.raises(kv.Closed):
            worlds[0].mover.store([4], [4])
    finally:
        for world in worlds:
            world.mover.close()
