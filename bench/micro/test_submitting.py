"""What a submit costs the thread that calls: ids checked and copied, the stream marked, the transfer queued."""

import pytest


@pytest.mark.parametrize(("count", "rounds"), [(32, 2000), (20_000, 200)])
@pytest.mark.parametrize("direction", ["store", "load"])
def test_submit(mover, ids, submit_only, direction, count, rounds):
    blocks, slots = ids(count)
    if direction == "store":
        submit_only(lambda: mover.store(blocks, slots), rounds)
    else:
        assert mover.store(blocks, slots).wait(timeout_seconds=60).ok
        submit_only(lambda: mover.load(slots, blocks), rounds)
