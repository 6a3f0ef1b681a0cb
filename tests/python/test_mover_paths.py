"""Paths as a caller sees them: asked for by option or by call, told by the result, refused where they cannot be."""

import weakref

import pytest
from backends import EVERYWHERE, HostNumpy
from conformance import World, finish
from kv_layouts import CASES

import kvoffload as kv
from kvoffload import mover as mover_module

everywhere = pytest.mark.parametrize("backend", EVERYWHERE)
each_path = pytest.mark.parametrize("path", ["dma", "kernel", "staged"])
NHD = next(case for case in CASES if case.name == "NHD")  # 11 blocks, 4 a chunk


def told(backend, path):
    """The name a result has for `path`."""
    return "host" if path == "dma" and backend.device == "host" else path


def there_and_back(world, taken, **options):
    """A store and a load; both took the path `taken`, and say why."""
    blocks, slots = world.choose(0, 2)
    for submit in (
        lambda: world.store(0, blocks, slots, **options),
        lambda: world.load(0, slots, blocks[::-1], **options),
    ):
        transfer = submit()
        finish(transfer)
        assert transfer.result.path == told(world.backend, taken)
        assert transfer.result.reason
    world.check()


@everywhere
@each_path
def test_a_path_is_taken_when_the_option_asks_for_it(backend, path):
    with World(backend(), NHD, path=path) as world:
        there_and_back(world, path)
        assert "asked" in world.mover.hello().paths


@everywhere
@each_path
def test_a_path_is_taken_when_a_call_asks_for_it_whatever_the_option(backend, path):
    with World(backend(), NHD, path="dma") as world:
        there_and_back(world, path, path=path)
        there_and_back(world, "dma")
    with World(backend(), NHD, path=path) as world:
        there_and_back(world, "dma", path="dma")


def test_auto_by_a_call_overrides_the_option():
    with World(HostNumpy(), NHD, path="kernel") as world:
        there_and_back(world, "dma", path="auto")  # the one path that auto takes on the host device


@everywhere
def test_a_job_takes_the_path_that_submit_asks_for(backend):
    with World(backend(), NHD) as world:
        transfer = world.mover.submit(kv.Job(1, "store", 0, (0, 1, 2, 3), (0,)), path="kernel")
        finish(transfer)
        assert transfer.result.path == "kernel"


@everywhere
@pytest.mark.parametrize("path", ["kernels", "", "host", 7])
def test_what_is_no_path_is_refused_and_nothing_moves(backend, path):
    with World(backend(), NHD) as world:
        with pytest.raises(kv.InvalidInput, match=f"path is {path!r}.*allowed: auto, dma, kernel, staged"):
            world.mover.store([0, 1, 2, 3], [0], path=path)
        assert world.mover.poll() == ()
    with pytest.raises(kv.InvalidInput, match="path is"):
        World(backend(), NHD, path=path)


@everywhere
def test_without_a_ring_there_is_no_staged(backend):
    with World(backend(), NHD, ring=0) as world:
        assert world.mover.hello().ring_bytes == world.mover.stats()["ring_bytes"] == 0
        assert "staged" not in {cell.path for cell in world.mover.path_table.rows}
        with pytest.raises(kv.InvalidInput, match="staged"):
            world.mover.store([0, 1, 2, 3], [0], path="staged")
        there_and_back(world, "kernel", path="kernel")
    with pytest.raises(kv.InvalidInput, match=r"path is 'staged', which cannot be used here .* raise `ring`"):
        World(backend(), NHD, ring=0, path="staged")


@everywhere
@pytest.mark.parametrize("ring", ["32MiB", "256MiB"])
def test_the_ring_is_never_larger_than_asked(backend, ring):
    with World(backend(), NHD, ring=ring) as world:
        asked_bytes = kv.config.parse_size(ring, "ring")
        assert 0 < world.mover.hello().ring_bytes <= asked_bytes


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"ring": "1GiB"}, "ring is '1GiB'.* 32 MiB to 256 MiB"),
        ({"ring": -1}, "ring is -1"),
        ({"calibrate": "no"}, "calibrate is 'no'; allowed: true or false"),
    ],
)
def test_options_that_are_wrong_are_named(options, message):
    with pytest.raises(kv.InvalidInput, match=message):
        World(HostNumpy(), NHD, **options)


def test_the_host_device_says_that_it_has_one_path():
    with World(HostNumpy(), NHD) as world:
        assert world.mover.path_table.text().startswith("paths built in: the device is host memory")
        assert world.mover.hello().paths == world.mover.path_table.source


@pytest.mark.parametrize("error", [kv.DeviceError("the GPU said no"), KeyboardInterrupt()], ids=["error", "Ctrl-C"])
def test_when_choosing_fails_the_mover_leaves_nothing_behind(monkeypatch, error):
    seen = []

    def fail(engine, *_, **__):
        seen.append(weakref.ref(engine))
        engine.check()
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(mover_module, "load_or_calibrate", fail)
        with pytest.raises(type(error)) as caught:
            World(HostNumpy(), NHD)
    with pytest.raises(kv.Closed):  # before anybody dropped it: the traceback still holds it
        seen[0]().check()
    del caught
    with World(HostNumpy(), NHD) as world:
        there_and_back(world, "dma")


def test_a_cache_hands_options_and_paths_on():
    backend = HostNumpy()
    with World(backend, NHD) as world:
        layout = world.layout
        keys = [bytes([i]) * 16 for i in range(2)]
        with kv.KVCache(layout, host="4MiB", path="kernel", ring="64MiB", calibrate=False) as cache:
            assert cache.stats()["mover"]["ring_bytes"] == 64 << 20
            blocks = list(range(8))
            assert cache.store(keys[:1], blocks[:4]).wait(timeout_seconds=60).path == "kernel"
            assert cache.store(keys[1:], blocks[4:], path="staged").wait(timeout_seconds=60).path == "staged"
            assert cache.load(keys, blocks).wait(timeout_seconds=60).path == "kernel"
            assert cache.load(keys, blocks, path="dma").wait(timeout_seconds=60).path == "host"
        world.check()
