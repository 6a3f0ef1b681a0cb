"""With drivers before 12.8 there is no call for many copies: one after the other, the same bytes."""

import pytest
from backends import CUDA
from conformance import World, finish
from kv_layouts import plain

from kvoffload import _C


@pytest.mark.parametrize("backend", CUDA)
@pytest.mark.parametrize("path", ["dma", "staged"])
def test_without_batch_copies(backend, path):
    _C.fault_arm("batch_copy", 0, 1 << 62)
    try:
        with World(backend(), plain(64, 1000)) as world:
            blocks, slots = world.choose(0, 30)
            finish(world.store(0, blocks, slots, path=path))
            world.scramble()
            finish(world.load(0, slots, blocks[::-1], path=path))
            world.check()
    finally:
        _C.fault_disarm_all()
