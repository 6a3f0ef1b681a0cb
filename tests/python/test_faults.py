"""Copies and registrations that fail, forks, close with work in flight: other data stays right, the next call works."""

import contextlib
import gc
import os
import signal
import subprocess
import sys
import textwrap

import pytest
from backends import CUDA, EVERYWHERE, HOST
from conformance import World, finish
from kv_layouts import CASES

import kvoffload as kv
from kvoffload import _C

everywhere = pytest.mark.parametrize("backend", EVERYWHERE)
NHD = next(case for case in CASES if case.name == "NHD")


@pytest.fixture(autouse=True)
def _disarmed():
    yield
    _C.fault_disarm_all()


@everywhere
@pytest.mark.parametrize("nth", [0, 1, 7])
def test_when_the_nth_copy_fails_its_transfer_says_so_and_no_other(backend, nth):
    with World(backend(), NHD) as world:
        _C.fault_arm("copy", nth, 1)
        failed = []
        for i in range(10):
            transfer = world.store(0, [0, 1, 2, 3], [i], job=100 + i)
            if not transfer.wait(timeout_seconds=60).ok:
                failed.append(100 + i)
                assert transfer.result.error
                with pytest.raises(kv.DeviceError):
                    transfer.before()
                world.slots.pop((0, i))
        assert len(failed) == 1
        assert [result.job for result in world.mover.poll() if not result.ok] == failed
        world.scramble()
        for slot in range(10):
            if (0, slot) in world.slots:
                finish(world.load(0, [slot], [4, 5, 6, 7]))
                world.check()
        assert world.mover.stats()["store"]["failures"] == 1


@everywhere
def test_a_failed_load_is_told_before_anybody_uses_the_blocks(backend):
    with World(backend(), NHD) as world:
        finish(world.store(0, [0, 1, 2, 3], [0]))
        _C.fault_arm("copy", 0, 1)
        transfer = world.mover.load([0], [4, 5, 6, 7])
        with pytest.raises(kv.DeviceError):
            transfer.before()
        finish(world.load(0, [0], [4, 5, 6, 7]))
        world.check()


@everywhere
@pytest.mark.parametrize("point", ["pin", "mmap"])
def test_a_failed_registration_leaves_nothing_behind(backend, point):
    backend = backend()
    _C.fault_arm(point, 0, 1)
    with pytest.raises(kv.KVOffloadError):
        World(backend, NHD)
    with World(backend, NHD) as world:
        finish(world.store(0, [0, 1, 2, 3], [0]))
        world.scramble()
        finish(world.load(0, [0], [4, 5, 6, 7]))
        world.check()


@everywhere
def test_an_event_that_cannot_be_made_fails_one_call(backend):
    with World(backend(), NHD) as world:
        _C.fault_arm("event", 0, 1)
        stores = (world.mover.store([0, 1, 2, 3], [slot % 8]) for slot in range(200))  # pooled events run out some day
        with pytest.raises(kv.DeviceError):
            list(stores)
        _C.fault_disarm_all()
        finish(world.store(0, [0, 1, 2, 3], [9]))
        world.scramble()
        finish(world.load(0, [9], [4, 5, 6, 7]))
        world.check()


@everywhere
def test_a_transfer_that_has_not_started_can_be_cancelled(backend):
    backend = backend()
    with World(backend, NHD, queue_depth=1024) as world:
        stream = backend.stream()
        kept = bytes(world.mover.slot_view(0, 5))
        stream.delay(0.3)
        transfers = [world.mover.store([0, 1, 2, 3], [5], stream=stream.handle) for _ in range(300)]
        cancelled = [transfer.cancel() for transfer in reversed(transfers)]
        for transfer, gone in zip(reversed(transfers), cancelled, strict=True):
            result = transfer.wait(timeout_seconds=60)
            assert result.ok != gone
            if gone:
                assert "cancel" in result.error.lower()
                assert not transfer.cancel() or transfer.done()
        if all(cancelled):
            assert bytes(world.mover.slot_view(0, 5)) == kept
        finish(world.store(0, [0, 1, 2, 3], [5]))


@everywhere
def test_close_waits_for_work_in_flight(backend):
    backend = backend()
    world = World(backend, NHD)
    finish(world.store(0, [0, 1, 2, 3], [0]))
    world.scramble()
    stream = backend.stream()
    stream.delay(0.3)
    transfer = world.load(0, [0], [4, 5, 6, 7], stream=stream.handle)
    transfer.before(stream.handle)
    world.mover.close(timeout_seconds=30)
    assert transfer.result.ok
    world.check()


@everywhere
def test_close_past_its_deadline_leaves_the_memory_to_the_running_copy(backend):
    backend = backend()
    world = World(backend, NHD)
    finish(world.store(0, [0, 1, 2, 3], [0]))
    world.scramble()
    stream = backend.stream()
    stream.delay(1.0)
    transfer = world.load(0, [0], [4, 5, 6, 7], stream=stream.handle)
    transfer.before(stream.handle)
    world.mover.close(timeout_seconds=0.05)
    del transfer, world.mover
    gc.collect()
    stream.synchronize()
    world.check()  # the copy had its memory to the end


@everywhere
def test_dropping_everything_without_closing_is_safe(backend):
    backend = backend()
    stream = backend.stream()
    for _ in range(3):
        world = World(backend, NHD)
        stream.delay(0.02)
        world.store(0, [0, 1, 2, 3], [0], stream=stream.handle)
        del world
        gc.collect()
    stream.synchronize()


def use_in_child(world, pending) -> int:
    """0 if a forked child is refused by name, and neither waiting nor closing hangs or takes the memory away."""
    for call in (lambda: world.mover.store([0, 1, 2, 3], [1]), lambda: world.mover.load([0], [0, 1, 2, 3])):
        try:
            call()
            return 1
        except kv.Forked:
            pass
    for call in (lambda: pending.wait(timeout_seconds=0.1), pending.done, world.mover.poll, world.mover.close):
        with contextlib.suppress(kv.KVOffloadError):
            call()
    return 0


@everywhere
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_is_refused_and_the_parent_goes_on(backend):
    backend = backend()
    with World(backend, NHD) as world:
        stream = backend.stream()
        stream.delay(0.3)
        pending = world.store(0, [0, 1, 2, 3], [0], stream=stream.handle)
        child = os.fork()
        if child == 0:
            code = 2
            try:
                signal.alarm(20)
                code = use_in_child(world, pending)
            finally:
                os._exit(code)
        assert os.waitpid(child, 0)[1] == 0
        finish(pending)
        world.scramble()
        finish(world.load(0, [0], [4, 5, 6, 7]))
        world.check()


@pytest.mark.parametrize("backend", [HOST[0], *CUDA])
@pytest.mark.parametrize(
    ("end", "code"),
    [("sys.exit(0)", 0), ("os._exit(0)", 0), ("os.kill(os.getpid(), 9)", -9), ("raise RuntimeError", 1)],
)
def test_a_process_may_end_at_any_moment(backend, end, code):
    """With work in flight and nothing closed: no hang, no crash of ours."""
    script = f"""
        import os, sys
        sys.path.insert(0, {os.path.dirname(__file__)!r})
        from backends import {backend.__name__} as Backend
        from conformance import World
        from kv_layouts import plain
        backend = Backend()
        world = World(backend, plain(8, 4096))
        stream = backend.stream()
        stream.delay(0.2)
        transfers = [world.mover.store([0], [i], stream=stream.handle) for i in range(4)]
        {end}
    """
    root = os.path.dirname(os.path.dirname(os.path.dirname(__file__)))
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([root, os.environ.get("PYTHONPATH", "")])},
        stderr=subprocess.PIPE,
        timeout=60,
    )
    assert done.returncode == code
    assert b"terminate" not in done.stderr
    assert b"Segmentation" not in done.stderr
