"""A model's CUDA graph, captured in the mode that forbids unsafe calls in every thread, beside a Mover at work."""

import contextlib
import os
import threading

import numpy as np
import pytest
from backends import BusyStreams, CudaTorch
from conformance import World, finish
from kv_layouts import plain

import kvoffload as kv

torch = pytest.importorskip("torch")

BLOCK = 1 << 20
CASE = plain(64, BLOCK)


def model(x, weight):
    for _ in range(40):
        x = torch.relu(x @ weight) + 0.5 * x
    return x


def move_until(stop, world_of, errors, rounds):
    """Pins, stores and loads without a pause; every byte is checked when the captures are over."""
    try:
        while not stop.is_set():
            world, stream = world_of()
            for _ in range(8):
                blocks, slots = world.choose(0, 16)
                stored = world.store(0, blocks, slots, stream=stream.handle)
                stored.before(stream.handle)
                finish(stored)
                loaded = world.load(0, slots, world.choose(0, 16)[0], stream=stream.handle)
                loaded.before(stream.handle)
                finish(loaded)
            rounds.append(world)
            world.mover.close()
    except BaseException as error:
        errors.append(error)


def test_capture_beside_pinning_and_copies():
    backend = CudaTorch()
    weight = torch.randn(256, 256, device="cuda") / 16
    x = torch.randn(256, 256, device="cuda")
    model(x, weight)
    torch.cuda.synchronize()
    # Worlds are made before: their own torch calls are not for a capture. The Mover is made and pinned beside it.
    spare = [(World(backend, CASE, seed=i, host="128MiB"), backend.stream()) for i in range(3)]
    for world, _ in spare:
        world.mover.close()
    turn = iter(range(10**9))

    def world_of():
        world, stream = spare[next(turn) % len(spare)]
        world.mover = kv.Mover(world.layout, host="1500MiB")
        return world, stream

    stop, errors, rounds = threading.Event(), [], []
    mover = threading.Thread(target=move_until, args=(stop, world_of, errors, rounds))
    busy = int(os.environ.get("KVO_TEST_BUSY_STREAMS", "0"))
    graphs = []
    with BusyStreams(backend, busy) if busy else contextlib.nullcontext():
        mover.start()
        try:
            while (len(rounds) < 4 or len(graphs) < 40) and not errors:
                graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graph, capture_error_mode="global"):
                    y = model(x, weight)
                graphs.append((graph, y))
                del graphs[:-40]
        finally:
            stop.set()
            mover.join()
    assert not errors, errors
    assert len(rounds) >= 4
    for graph, y in graphs:
        x.copy_(torch.randn(256, 256, device="cuda"))
        graph.replay()
        torch.testing.assert_close(y, model(x, weight))
    for world, _ in spare:
        world.check()


def test_a_stream_under_capture_is_refused_and_the_capture_survives():
    backend = CudaTorch()
    with World(backend, CASE, host="64MiB") as world:
        x = torch.zeros(64, device="cuda")
        finish(world.store(0, [0], [0]))
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = x + 1
            for call in (lambda: world.mover.store([1], [1]), world.mover.mark):
                with pytest.raises(kv.InvalidInput, match="captured"):
                    call()
        x.copy_(torch.arange(64.0, device="cuda"))
        graph.replay()
        assert torch.equal(y, x + 1)
        np.testing.assert_equal(bytes(world.mover.slot_view(0, 0)[:BLOCK]), world.memory[0][:BLOCK].tobytes())
