"""What choosing a path costs: a small store from call to end with `auto`, beside the same with the path named.

The choice is made by the lane's thread, so it does not show in the submit alone.
"""

import pytest

from kvoffload.paths import built_in


@pytest.fixture(scope="module")
def choosing(mover):
    """The mover with a table to choose by, which the host device has none of by itself."""
    table = built_in("a benchmark", ["dma", "kernel", "staged"])
    mover._engine.set_path_table([cell.row for cell in table.rows])
    assert mover.store([0], [0]).wait(timeout_seconds=60).reason.startswith("auto")
    return mover


@pytest.mark.parametrize("path", ["auto", "dma", "kernel", "staged"])
@pytest.mark.parametrize("count", [1, 32])
def test_store(benchmark, choosing, ids, path, count):
    blocks, slots = ids(count)
    result = benchmark(lambda: choosing.store(blocks, slots, path=path).wait(timeout_seconds=60))
    assert result.ok
