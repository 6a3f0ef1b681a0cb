"""Input that is wrong, queues that are full, objects that are closed: refused by name, and nothing is lost."""

import numpy as np
import pytest
from backends import EVERYWHERE, HostNumpy
from conformance import World, finish
from kv_layouts import CASES, plain

import kvoffload as kv
from kvoffload import _C

everywhere = pytest.mark.parametrize("backend", EVERYWHERE)
NHD = next(case for case in CASES if case.name == "NHD")  # 11 blocks, 4 a chunk


@everywhere
@pytest.mark.parametrize(
    ("call", "blocks", "slots", "named"),
    [
        ("store", [0, 1, 2, 11], [0], "11"),
        ("store", [0, 1, 2, -1], [0], "-1"),
        ("store", [0, 1, 2, 3], [1 << 40], str(1 << 40)),
        ("store", [0, 1, 2, 3], [-1], "-1"),
        ("store", [0, 1, 2], [0], "3"),
        ("store", [0, 1, 2, 3], [0, 1], "4"),
        ("store", [0, 1, 2, 3, 4, 5, 6, 7], [3, 3], "3"),
        ("load", [0, 1, 2, 2], [0], "2"),
        ("load", [0, 1, 2, 11], [0], "11"),
        ("load", [0, 1, 2, 3], [1 << 40], str(1 << 40)),
        ("load", [2**63 - 1, 1, 2, 3], [0], str(2**63 - 1)),
    ],
)
def test_ids_that_are_wrong_are_named_and_nothing_moves(backend, call, blocks, slots, named):
    with World(backend(), NHD) as world:
        before = bytes(world.mover.slot_view(0, 0))
        ids = (blocks, slots) if call == "store" else (slots, blocks)
        with pytest.raises(kv.InvalidInput, match=named):
            getattr(world.mover, call)(*ids)
        world.check()
        assert bytes(world.mover.slot_view(0, 0)) == before
        assert world.mover.poll() == ()


@everywhere
@pytest.mark.parametrize("ids", [[0.5, 1, 2, 3], "0123", [None] * 4, np.zeros((2, 2), int), np.zeros(4, "float32")])
def test_ids_that_are_not_integers_are_refused(backend, ids):
    with World(backend(), NHD) as world, pytest.raises((kv.InvalidInput, TypeError)):
        world.mover.store(ids, [0])


@everywhere
@pytest.mark.parametrize("skip", [-1, 4, 1 << 40])
def test_a_skip_that_is_not_inside_the_first_chunk_is_refused(backend, skip):
    with World(backend(), NHD) as world:
        finish(world.store(0, [0, 1, 2, 3], [0]))
        with pytest.raises(kv.InvalidInput, match=str(skip)):
            world.mover.load([0], [0, 1, 2, 3], skip_blocks=skip)


@everywhere
@pytest.mark.parametrize("group", [-1, 1, 99, 2**40])
def test_a_group_that_does_not_exist_is_refused(backend, group):
    with World(backend(), NHD) as world, pytest.raises(kv.InvalidInput, match=str(group)):
        world.mover.store([0, 1, 2, 3], [0], group=group)


@everywhere
@pytest.mark.parametrize("stream", ["now", 1.5, object()])
def test_what_is_no_stream_is_refused(backend, stream):
    with World(backend(), NHD) as world, pytest.raises(kv.InvalidInput):
        world.mover.store([0, 1, 2, 3], [0], stream=stream)


@everywhere
def test_the_queue_is_bounded_and_open_again_when_transfers_end(backend):
    backend = backend()
    with World(backend, NHD, queue_depth=4) as world:
        stream = backend.stream()
        stream.delay(0.5)
        transfers = [world.mover.store([0, 1, 2, 3], [i], stream=stream.handle) for i in range(4)]
        with pytest.raises(kv.QueueFull, match="4"):
            world.mover.store([0, 1, 2, 3], [4], stream=stream.handle)
        for transfer in transfers:
            finish(transfer)
        finish(world.store(0, [0, 1, 2, 3], [4]))


@everywhere
def test_a_wait_has_a_deadline_and_costs_nothing(backend):
    backend = backend()
    with World(backend, NHD) as world:
        stream = backend.stream()
        stream.delay(0.5)
        transfer = world.store(0, [0, 1, 2, 3], [0], stream=stream.handle)
        with pytest.raises(kv.WaitTimeout):
            transfer.wait(timeout_seconds=0.01)
        assert transfer.result is None
        finish(transfer)
        assert transfer.result.ok


@everywhere
def test_poll_tells_each_finished_job_once(backend):
    with World(backend(), NHD) as world:
        for job in (kv.Job(7, "store", 0, (0, 1, 2, 3), (0,)), kv.Job(8, "load", 0, (4, 5, 6, 7), (0,), 1)):
            finish(world.mover.submit(job))
        found = {result.job: (result.ok, result.bytes) for result in world.mover.poll()}
        block_bytes = world.layout.groups[0].block_bytes
        assert found == {7: (True, 4 * block_bytes), 8: (True, 3 * block_bytes)}
        assert world.mover.poll() == ()


@everywhere
def test_use_after_close_and_closing_twice(backend):
    world = World(backend(), NHD)
    transfer = world.store(0, [0, 1, 2, 3], [0])
    world.mover.close()
    world.mover.close()
    assert transfer.done()
    assert transfer.result.ok or transfer.result.error
    for call in (
        lambda: world.mover.store([0, 1, 2, 3], [0]),
        lambda: world.mover.load([0], [0, 1, 2, 3]),
        lambda: world.mover.mark(),
        lambda: world.mover.slot_view(0, 0),
    ):
        with pytest.raises(kv.Closed):
            call()


@everywhere
def test_a_slot_of_memory_that_is_not_ready_is_refused(backend):
    """A late piece fails to register: capacity stays where it was, slots before it work, the next one does not."""
    _C.fault_arm("pin", 2, 1000)
    try:
        with World(backend(), plain(4, 1 << 20), host="1280MiB", background=False) as world:
            hello = world.mover.hello()
            assert 0 < hello.ready_bytes < hello.host_bytes == 1280 << 20
            assert hello.failure
            end = hello.ready_bytes // hello.slot_bytes[0]
            finish(world.store(0, [0, 1], [0, end - 1]))
            with pytest.raises(kv.InvalidInput, match=str(end)):
                world.mover.store([2], [end])
            world.scramble()
            finish(world.load(0, [end - 1, 0], [2, 3]))
            world.check()
    finally:
        _C.fault_disarm_all()


@pytest.mark.parametrize("size", ["10g", "", 0, -1, True, None, 1.5])
def test_a_size_that_is_none_is_refused(size):
    with pytest.raises(kv.InvalidInput, match="host"):
        World(HostNumpy(), NHD, host=size)
