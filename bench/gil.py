"""How much a pure-Python thread of the same process slows down while offload runs at full speed.

    gil.py

The counting thread and the thread that submits share the interpreter lock; what is measured is all that the submitting
thread and ours take from it. Quiet and busy moments alternate, many of them: a virtual machine's neighbours change a
core's speed by a third now and then, and a pair should fall on one side of that. The counting thread has a core to
itself (two logical ones), or the other threads' work on that core would be measured, not the lock.
"""

import os
import statistics
import threading
import time

import numpy as np
import results
import torch

import kvoffload as kv

BLOCK_BYTES = 128 << 10
BLOCKS = 4096
SECONDS = 0.1
PAIRS = 100


class Spinner:
    def __init__(self) -> None:
        self.count, self.stop = 0, False
        self.thread = threading.Thread(target=self.run)
        self.thread.start()

    def run(self) -> None:
        os.sched_setaffinity(0, {0})
        while not self.stop:
            self.count += 1

    def per_second(self, work) -> float:
        first, start = self.count, time.perf_counter()
        work(start + SECONDS)
        return (self.count - first) / (time.perf_counter() - start)


def paired(spinner: Spinner, quiet, offload, quiet_first: bool) -> tuple[float, float]:
    """Counts a second: quiet, offloading."""
    first, second = [spinner.per_second(work) for work in ((quiet, offload) if quiet_first else (offload, quiet))]
    return (first, second) if quiet_first else (second, first)


def main() -> None:
    if len(cores := os.sched_getaffinity(0)) > 4:
        os.sched_setaffinity(0, cores - {0, 1})
    tensor = torch.randint(0, 256, (BLOCKS, BLOCK_BYTES), dtype=torch.uint8, device="cuda")
    layout = kv.KVLayout.from_tensors(tensor, tokens_per_block=16, blocks_per_chunk=4)
    mover = kv.Mover(layout, host="1GiB", background=False)
    blocks, slots, moved = np.random.default_rng(0).permutation(BLOCKS), np.arange(1024), []
    mover.store(np.arange(BLOCKS), np.arange(1024)).wait(timeout_seconds=60)

    def quiet(end: float) -> None:
        time.sleep(max(0.0, end - time.perf_counter()))

    def offload(end: float) -> None:
        """Stores and loads of 256 MiB, one of each in flight."""
        transfers = []
        while time.perf_counter() < end:
            transfers += [mover.store(blocks[:2048], slots[:512]), mover.load(slots[512:], blocks[2048:])]
            while len(transfers) > 2:
                moved.append(transfers.pop(0).wait(timeout_seconds=60).bytes)
        for transfer in transfers:
            moved.append(transfer.wait(timeout_seconds=60).bytes)

    spinner = Spinner()
    try:
        rates = [paired(spinner, quiet, offload, i % 2 == 0) for i in range(PAIRS)]
    finally:
        spinner.stop = True
        spinner.thread.join()
    mover.close()
    drops = [100 * (1 - busy / idle) for idle, busy in rates]
    metrics = {
        "gil.spin_drop_pct": statistics.median(drops),
        "gil.moved_gb_per_s": sum(moved) / (PAIRS * SECONDS) / 1e9,
    }
    results.write("gil", metrics, counts_per_second=rates, drops_percent=drops, seconds=SECONDS)


if __name__ == "__main__":
    main()
