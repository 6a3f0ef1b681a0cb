"""The demo's player and the trace excerpt: right bytes are counted as right, and wrong ones as wrong."""

import time

import numpy as np
import pytest

import kvoffload as kv
from kvoffload.cli.replay import STALE, Device, Geometry, Replay, content_key
from kvoffload.traces import Request, conversation

SMALL = Geometry(layers=2, kv_heads=2, head_dim=16, item_bytes=2, tokens_per_block=16)  # 4 KiB a block


def request(*block_ids):
    return Request(timestamp_ms=0, input_tokens=512 * len(block_ids) - 100, output_tokens=1, block_ids=block_ids)


@pytest.fixture
def device():
    return Device(SMALL, num_blocks=16)


@pytest.fixture
def replay(device):
    with kv.KVCache(device.layout, host="1MiB", background=False) as cache:
        yield Replay(device, cache, trace_block_tokens=512)


def test_excerpt_is_the_head_of_the_trace():
    requests = list(conversation())
    assert len(requests) == 400
    assert requests[1].block_ids[:3] == (0, 14, 15)
    assert all(len(r.block_ids) == -(-r.input_tokens // 512) for r in requests)


def test_second_request_hits_the_shared_prefix(replay, device):
    totals = replay.play_all([request(0, 1, 2), request(0, 1, 7, 8)])
    block_bytes = device.layout.groups[0].block_bytes
    assert totals.hit_blocks == 2
    assert totals.hit_tokens == 2 * 512
    assert totals.stored_bytes == (3 + 2) * block_bytes
    assert totals.loaded_bytes == totals.verified_bytes == (3 + 2 + 2) * block_bytes
    assert totals.wrong_bytes == totals.not_read_back == 0


def test_hits_of_each_tier_are_counted(device, tmp_path):
    options = {"disk": tmp_path, "disk_size": "1MiB", "write_through": True}
    with kv.KVCache(device.layout, host=4 * device.layout.groups[0].slot_bytes, **options) as cache:
        replay = Replay(device, cache, trace_block_tokens=512)
        for blocks in [(0, 1, 2), (0, 7), (5, 6, 8), (0, 1, 2)]:
            replay.play(request(*blocks))
            while cache.stats()["waiting_for_disk_keys"] or cache.stats()["mover"]["disk"]["jobs"]:
                time.sleep(0.001)
        totals = replay.totals
    assert (totals.hit_blocks, totals.wrong_bytes) == (1 + 3, 0)
    assert 2 <= totals.disk_hit_blocks <= 3


def test_hit_tokens_never_exceed_the_prompt(replay):
    totals = replay.play_all([request(0, 1), request(0, 1)])
    assert totals.hit_tokens == 2 * 512 - 100


def test_pages_and_keys_have_bytes_of_their_own(device):
    blocks = device.take(2)
    for block, block_id in zip(blocks, (0, 1), strict=True):
        device.compute(content_key(block_id), block)
    pages = device.pool[:, blocks].reshape(-1, device.pool.shape[2])
    assert len({page.tobytes() for page in pages}) == len(pages) == 4


@pytest.mark.parametrize("damage", ["stale", "other key", "swapped layers", "one byte"])
def test_wrong_bytes_are_counted(device, damage):
    key, (block,) = content_key(3), device.take(1)
    device.compute(key, block)
    assert device.wrong_bytes(key, block) == 0
    if damage == "stale":
        device.pool[:, block] = STALE
    elif damage == "other key":
        device.compute(content_key(4), block)
    elif damage == "swapped layers":
        device.pool[[0, 1], block] = device.pool[[1, 0], block]
    else:
        device.pool[1, block].view(np.uint8)[5] ^= 1
    wrong = device.wrong_bytes(key, block)
    assert wrong == 1 if damage == "one byte" else wrong > 1000


def test_take_hands_out_stale_blocks_in_a_ring(device):
    device.pool[:] = 0
    assert device.take(10) + device.take(10) == [*range(10), *range(10, 16), *range(4)]
    assert (device.pool[:, :4] == STALE).all()
    with pytest.raises(ValueError, match="17 blocks does not fit the device's 16"):
        device.take(17)
