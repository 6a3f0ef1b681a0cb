"""Several GPUs in one process."""

import subprocess
import sys

import numpy as np
import pytest

import kvoffload as kv

torch = pytest.importorskip("torch")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs"),
]

BLOCKS, PAGE_BYTES, ROUNDS = 64, 64 << 10, 20


def make(device: str):
    tensor = torch.zeros((BLOCKS, PAGE_BYTES), dtype=torch.uint8, device=device)
    layout = kv.KVLayout.from_tensors([tensor], tokens_per_block=16, blocks_per_chunk=1)
    return tensor, kv.Mover(layout, host=layout.groups[0].slot_bytes * BLOCKS)


def test_a_mover_a_gpu_each_with_its_own_data_at_once():
    torch.cuda.set_device(0)
    pairs = [make(f"cuda:{i}") for i in range(2)]
    ids = np.arange(BLOCKS)
    for _ in range(ROUNDS):
        data = [torch.randint(0, 256, (BLOCKS, PAGE_BYTES), dtype=torch.uint8) for _ in pairs]
        for (tensor, mover), wanted in zip(pairs, data, strict=True):
            tensor.copy_(wanted)
            mover.store(ids, ids, stream=torch.cuda.current_stream(tensor.device))
        loads = []
        for tensor, mover in pairs:
            stream = torch.cuda.current_stream(tensor.device)
            while mover.stats()["store"]["unfinished"]:
                mover.poll()
            tensor.zero_()
            loads.append(mover.load(ids, ids, stream=stream))
            loads[-1].before(stream)
        for (tensor, _), wanted in zip(pairs, data, strict=True):
            assert torch.equal(tensor.cpu(), wanted)
    assert torch.cuda.current_device() == 0
    for _, mover in pairs:
        mover.close()


ONLY_GPU_1 = """
import ctypes, threading
import numpy as np, torch
import kvoffload as kv

torch.cuda.set_device(1)
tensor = torch.ones((64, 65536), dtype=torch.uint8, device="cuda:1")
layout = kv.KVLayout.from_tensors([tensor], tokens_per_block=16, blocks_per_chunk=1)
ids = np.arange(64)
with kv.Mover(layout, host=layout.groups[0].slot_bytes * 64) as mover:
    stream = torch.cuda.current_stream(tensor.device)
    def work():  # on a thread that never chose a device
        transfer = mover.store(ids, ids, stream=stream)
        transfer.before(stream)
        transfer.wait(timeout_seconds=10)
    thread = threading.Thread(target=work)
    thread.start(), thread.join()
flags, active = ctypes.c_uint(), [ctypes.c_int(), ctypes.c_int()]
for i in range(2):
    assert ctypes.CDLL("libcuda.so.1").cuDevicePrimaryCtxGetState(i, ctypes.byref(flags), ctypes.byref(active[i])) == 0
print([a.value for a in active])
"""


def test_a_mover_takes_no_memory_of_another_gpu():
    done = subprocess.run([sys.executable, "-c", ONLY_GPU_1], capture_output=True, text=True, timeout=120)
    assert done.stdout.strip() == "[0, 1]", done.stdout + done.stderr[-2000:]
