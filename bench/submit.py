"""What a submit costs the calling thread, and how soon its first bytes move.

    submit.py

The caller's stream is one of its own, as in vLLM. `.legacy`: CUDA's legacy default stream, torch's default; recording a
point there takes a driver lock that our copies hold.

A page is one block here (one tensor, one block a chunk), so a submit of n pages passes n block ids and n slots. The
`layers` figures are the same bytes as a model has them: 32 tensors, n / 32 blocks.
"""

import statistics
import time

import numpy as np
import results
import torch

import kvoffload as kv

PAGE_BYTES = 16 << 10
SUBMITS, BURSTS = 1000, 7


def make(blocks: int, layers: int) -> tuple[kv.Mover, torch.Tensor]:
    shape = (blocks, PAGE_BYTES)
    tensors = [torch.randint(0, 256, shape, dtype=torch.uint8, device="cuda") for _ in range(layers)]
    layout = kv.KVLayout.from_tensors(tensors, tokens_per_block=16, blocks_per_chunk=1)
    host_bytes = layout.groups[0].slot_bytes * (blocks + 1)
    return kv.Mover(layout, host=host_bytes, queue_depth=1024, background=False), tensors[0]


def ids(mover: kv.Mover, count: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(count)
    total = mover.layout.groups[0].num_blocks
    return rng.permutation(total)[:count].astype(np.int64), rng.permutation(total)[:count].astype(np.int64)


def submit_us(mover: kv.Mover, count: int, submits: int = SUBMITS) -> list[list[float]]:
    """Bursts of `submits` stores without waiting in between: microseconds of each; the Python call included.

    Several, because the machine's neighbours make one of them slow now and then.
    """
    blocks, slots = ids(mover, count)
    burst(mover, blocks, slots, submits)  # not measured: the memory for ids is there from then on
    return [burst(mover, blocks, slots, submits) for _ in range(BURSTS)]


def median_of(bursts: list[list[float]], percent: float) -> float:
    return statistics.median(results.percentile(burst, percent) for burst in bursts)


def burst(mover: kv.Mover, blocks: np.ndarray, slots: np.ndarray, submits: int) -> list[float]:
    samples, transfers = [], []
    for _ in range(submits):
        start = time.perf_counter()
        transfer = mover.store(blocks, slots)
        samples.append((time.perf_counter() - start) * 1e6)
        transfers.append(transfer)
    for transfer in transfers:  # their copies were going on meanwhile; the rest of 300 GB would only take time
        assert transfer.cancel() or transfer.wait(timeout_seconds=120).ok
    return samples


def first_copy_us(mover: kv.Mover, tensor: torch.Tensor, count: int, repeats: int = 200) -> list[float]:
    """Microseconds from the call of store() until the first page's last byte is seen to change in host memory."""
    blocks, slots = ids(mover, count)
    page = mover.slot_view(0, int(slots[0]))
    samples = []
    for i in range(repeats):
        value = i % 251
        tensor[int(blocks[0])].fill_(value)
        torch.cuda.synchronize()
        while page[PAGE_BYTES - 1] == value:  # by chance, at the first round
            page[PAGE_BYTES - 1] = 255
        start = time.perf_counter()
        transfer = mover.store(blocks, slots)
        while page[PAGE_BYTES - 1] != value:
            pass
        samples.append((time.perf_counter() - start) * 1e6)
        assert transfer.wait(timeout_seconds=60).ok
    return samples


def main() -> None:
    metrics, details = {}, {}
    mover, tensor = make(20000, 1)
    metrics["submit.us_p99.n32.legacy"] = median_of(submit_us(mover, 32), 99)
    torch.cuda.set_stream(torch.cuda.Stream())
    with mover:
        for count in (32, 20000):
            bursts = submit_us(mover, count)
            metrics[f"submit.us_p99.n{count}"] = median_of(bursts, 99)
            metrics[f"submit.us_p50.n{count}"] = median_of(bursts, 50)
            metrics[f"submit.us_max.n{count}"] = max(map(max, bursts))
            details[f"us.n{count}"] = [results.spread(burst) for burst in bursts]
        metrics["submit.to_first_copy_us_p50"] = statistics.median(first_copy_us(mover, tensor, 32))
        metrics["submit.to_first_copy_us_p50.n20000"] = statistics.median(first_copy_us(mover, tensor, 20000, 30))
    mover, _ = make(625, 32)
    with mover:
        metrics["submit.us_p99.n20000.layers"] = median_of(submit_us(mover, 625, 300), 99)
    results.write("submit", metrics, page_bytes=PAGE_BYTES, submits=SUBMITS, samples=details)


if __name__ == "__main__":
    main()
