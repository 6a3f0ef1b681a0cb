"""From block ids to spans: the same bytes as pages of one tensor, and as a model has them."""

import numpy as np
import pytest

import kvoffload as kv
from kvoffload import _C

PAGE_BYTES = 16 << 10


@pytest.mark.parametrize(("blocks", "layers"), [(8192, 1), (256, 32)], ids=["8192 pages", "32 layers x 256 blocks"])
def test_plan_spans(benchmark, blocks, layers):
    stride = PAGE_BYTES * blocks * 2
    tensors = [
        kv.RawTensor((1 << 40) + i * stride, (2 * blocks, PAGE_BYTES), (PAGE_BYTES, 1), 1, "host")
        for i in range(layers)
    ]
    layout = kv.KVLayout.from_tensors(tensors, tokens_per_block=16, blocks_per_chunk=1)
    (group,) = layout.groups
    rng = np.random.default_rng(0)
    ids = rng.permutation(2 * blocks)[:blocks].astype(np.int64)
    offsets = rng.permutation(blocks).astype(np.int64) * group.slot_bytes
    spans = benchmark(_C.plan_spans, group.geometry, ids, offsets)
    assert sum(size for _, _, size in spans) == blocks * layers * PAGE_BYTES
