"""What the micro-benchmarks share: a mover on the host device, so that they run anywhere and time our own code alone.

    pytest bench/micro --benchmark-enable
    pytest bench/micro --benchmark-enable --benchmark-compare    # with the last --benchmark-save

Without --benchmark-enable each runs once. They are in no test run; figures for people come from bench/*.py on a GPU.
"""

from collections.abc import Callable, Iterator

import numpy as np
import pytest

import kvoffload as kv

PAGE_BYTES = 64  # so little that the copies do not count


@pytest.fixture(scope="session")
def mover() -> Iterator[kv.Mover]:
    """20,000 blocks of one page, one block a chunk."""
    tensor = np.zeros((20_000, PAGE_BYTES), np.uint8)
    layout = kv.KVLayout.from_tensors(tensor, tokens_per_block=16, blocks_per_chunk=1)
    with kv.Mover(layout, host=layout.groups[0].slot_bytes * 20_001, queue_depth=1024, background=False) as mover:
        yield mover


@pytest.fixture(scope="session")
def ids(mover: kv.Mover) -> Callable[[int], tuple[np.ndarray, np.ndarray]]:
    """`count` blocks and slots at random."""
    rng = np.random.default_rng(0)
    total = mover.layout.groups[0].num_blocks
    return lambda count: (rng.permutation(total)[:count].astype(np.int64), rng.permutation(total)[:count])


@pytest.fixture
def submit_only(benchmark) -> Callable[..., None]:
    """Times the submits alone: each transfer has ended before the next round's clock starts."""

    def run(submit: Callable[[], kv.Transfer], rounds: int) -> None:
        last: list[kv.Transfer] = []

        def finish_last() -> None:
            while last:
                assert last.pop().wait(timeout_seconds=60).ok

        benchmark.pedantic(lambda: last.append(submit()), setup=finish_last, rounds=rounds, warmup_rounds=10)
        finish_last()

    return run
