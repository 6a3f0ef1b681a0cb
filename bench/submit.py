"""What a submit costs the calling thread, and how soon its first bytes move.

    submit.py

The caller's stream is one of its own, as in vLLM. `.legacy`: CUDA's legacy default stream, torch's default; recording a
point there takes a driver lock that our copies hold.

A virtual machine's core runs at half its speed while a neighbour uses the other thread of the core. So each burst
stands between two samples of what a loop of its own takes, and the figures are the median of the bursts at full speed;
`.any_speed`: of all.

A page is one block here (one tensor, one block a chunk), so a submit of n pages passes n block ids and n slots. The
`layers` figures are the same bytes as a model has them: 32 tensors, n / 32 blocks.
"""

import statistics
import time
from dataclasses import dataclass

import numpy as np
import results
import torch

import kvoffload as kv

PAGE_BYTES = 16 << 10
SUBMITS, BURSTS, MOST_BURSTS = 1000, 15, 100
FULL_SPEED = 1.1  # what the loop takes, at most, in times of its least


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


def loop_us() -> float:
    start = time.perf_counter()
    sum(range(20000))
    return (time.perf_counter() - start) * 1e6


@dataclass
class Bursts:
    """Microseconds of each submit, burst by burst, and what a loop took before and after, whichever was more."""

    samples: list[list[float]]
    loops_us: list[float]

    def at_full_speed(self) -> list[list[float]]:
        most = FULL_SPEED * min(self.loops_us)
        return [burst for burst, loop in zip(self.samples, self.loops_us, strict=True) if loop <= most]

    def report(self, name: str, metrics: dict, details: dict) -> None:
        for suffix, bursts in (("", self.at_full_speed()), (".any_speed", self.samples)):
            metrics[f"submit.us_p99.{name}{suffix}"] = median_of(bursts, 99)
            metrics[f"submit.us_p50.{name}{suffix}"] = median_of(bursts, 50)
        metrics[f"submit.us_max.{name}"] = max(map(max, self.samples))
        spreads = [results.spread(burst) for burst in self.samples]
        details[f"us.{name}"] = {"bursts": spreads, "loops_us": self.loops_us}


def submit_us(mover: kv.Mover, count: int, submits: int = SUBMITS) -> Bursts:
    """Bursts of `submits` stores without waiting in between, the Python call included."""
    blocks, slots = ids(mover, count)
    burst(mover, blocks, slots, submits)  # not measured: the memory for ids is there from then on
    found = Bursts([], [])
    while len(found.samples) < MOST_BURSTS and (not found.samples or len(found.at_full_speed()) < BURSTS):
        before = loop_us()
        found.samples.append(burst(mover, blocks, slots, submits))
        found.loops_us.append(max(before, loop_us()))
    return found


def median_of(bursts: list[list[float]], percent: float) -> float:
    return statistics.median(results.percentile(burst, percent) for burst in bursts)


def burst(mover: kv.Mover, blocks: np.ndarray, slots: np.ndarray, submits: int) -> list[float]:
    samples, transfers = [], []
    for _ in range(submits):
        start = time.perf_counter()
        transfer = mover.store(blocks, slots)
        samples.append((time.perf_counter() - start) * 1e6)
        transfers.append(transfer)
    for transfer in reversed(transfers):  # their copies were going on meanwhile; the rest would only take time
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
    submit_us(mover, 32).report("n32.legacy", metrics, details)
    torch.cuda.set_stream(torch.cuda.Stream())
    with mover:
        for count in (32, 20000):
            submit_us(mover, count).report(f"n{count}", metrics, details)
        metrics["submit.to_first_copy_us_p50"] = statistics.median(first_copy_us(mover, tensor, 32))
        metrics["submit.to_first_copy_us_p50.n20000"] = statistics.median(first_copy_us(mover, tensor, 20000, 30))
    mover, _ = make(625, 32)
    with mover:
        submit_us(mover, 625, 300).report("n20000.layers", metrics, details)
    results.write("submit", metrics, page_bytes=PAGE_BYTES, submits=SUBMITS, samples=details)


if __name__ == "__main__":
    main()
