"""What only a GPU has: frameworks' streams, tensors beyond 2^31 bytes, a CUDA error state that others share."""

import pytest
from backends import CUDA, CudaTorch
from conformance import World, finish
from kv_layouts import CASES, plain

import kvoffload as kv
from kvoffload import _C

torch = pytest.importorskip("torch")
on_cuda = pytest.mark.parametrize("backend", CUDA)
BLOCK = 4096
PLAIN = plain(32, BLOCK)


class Named:
    """The protocol by which libraries hand streams to each other."""

    def __init__(self, handle):
        self.handle = handle

    def __cuda_stream__(self):
        return (0, self.handle)


def stream_kinds():
    ours = torch.cuda.Stream()
    yield ours, ours.cuda_stream
    yield ours.cuda_stream, ours.cuda_stream
    yield Named(ours.cuda_stream), ours.cuda_stream
    cupy = pytest.importorskip("cupy")
    theirs = cupy.cuda.Stream(non_blocking=True)
    yield theirs, theirs.ptr


@on_cuda
def test_streams_of_every_framework_are_accepted_and_waited_for(backend):
    backend = backend()
    with World(backend, PLAIN) as world:
        for i, (stream, handle) in enumerate(stream_kinds()):
            _C.cuda_spin(0, handle, 0.02)
            with torch.cuda.stream(torch.cuda.ExternalStream(handle)):
                torch.as_tensor(world.device[0], device="cuda")[:BLOCK].fill_(i)
            transfer = world.mover.store([0], [i], stream=stream)
            transfer.before(stream)
            finish(transfer)
            assert set(bytes(world.mover.slot_view(0, i)[:BLOCK])) == {i}


def test_without_a_stream_it_is_the_current_one():
    backend = CudaTorch()
    with World(backend, PLAIN) as world:
        stream = backend.stream()
        with torch.cuda.stream(stream.handle):
            for i in range(20):
                stream.delay(0.005)
                stream.fill(world.device[0], 0, BLOCK, i)
                transfer = world.mover.store([0], [0])
                transfer.before()
                finish(transfer)
                assert set(bytes(world.mover.slot_view(0, 0)[:BLOCK])) == {i}


def test_a_tensor_of_more_than_2_to_the_31_bytes():
    blocks, block_bytes = 40_000, 128 << 10
    tensor = torch.empty(blocks, block_bytes, dtype=torch.uint8, device="cuda")
    tensor.random_(0, 256)
    expected = tensor.clone()
    layout = kv.KVLayout.from_tensors(tensor, tokens_per_block=16, blocks_per_chunk=4)
    # 2^31 lies at block 16,384 and 2^32 at 32,768.
    source = [0, 1, 2, 3, 16_382, 16_383, 16_384, 16_385, 32_767, 32_768, 39_999, 39_998]
    target = [39_990, 39_991, 39_992, 39_993, 16_384, 16_383, 5, 6, 32_768, 32_766, 39_998, 20_000]
    with kv.Mover(layout, host="16MiB") as mover:
        finish(mover.store(source, [0, 1, 2]), bytes=12 * block_bytes)
        finish(mover.load([0, 1, 2], target), bytes=12 * block_bytes)
    expected[target] = expected[source]
    assert torch.equal(tensor, expected)


@pytest.mark.parametrize("point", ["pin", "mmap", "copy", "event"])
def test_a_failure_of_ours_is_no_error_of_torch(point):
    backend = CudaTorch()
    nhd = next(case for case in CASES if case.name == "NHD")
    _C.fault_arm(point, 0, 1)
    try:
        with pytest.raises(kv.KVOffloadError), World(backend, nhd) as world:
            world.mover.store([0, 1, 2, 3], [0]).before()
    finally:
        _C.fault_disarm_all()
    assert torch.zeros(1, device="cuda").item() == 0
    torch.cuda.synchronize()


def test_a_device_that_does_not_exist_is_named():
    with pytest.raises(kv.KVOffloadError, match="99"):
        _C.cuda_device(99)
    assert torch.zeros(1, device="cuda").item() == 0


def test_movers_come_and_go_without_keeping_gpu_memory():
    backend = CudaTorch()
    world = World(backend, PLAIN)
    world.mover.close()
    torch.cuda.synchronize()
    free = torch.cuda.mem_get_info()[0]
    for _ in range(20):
        with kv.Mover(world.layout, host="64MiB") as mover:
            finish(mover.store([0], [0]))
    torch.cuda.synchronize()
    assert torch.cuda.mem_get_info()[0] >= free - (32 << 20)
