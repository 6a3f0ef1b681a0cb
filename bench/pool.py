"""How fast host memory becomes usable, and what that costs a thread that launches kernels meanwhile.

    pool.py [--host 32GiB]

Each part runs in a process of its own, the cold one first: on a fresh machine start with this benchmark, because the
second time the kernel and the hypervisor already have the pages. Paths are not calibrated: that is done once a machine.
"""

import argparse
import concurrent.futures
import ctypes
import json
import mmap
import subprocess
import sys
import threading
import time

import results
import torch

import kvoffload as kv

GIB = 1 << 30
MADV_POPULATE_WRITE = 23
kept: list[mmap.mmap] = []
LAUNCHES_BEFORE_SYNC = 200  # well below the depth at which launching itself blocks


def populate_gib_per_s(gib: int = 16, threads: int = 16) -> float:
    """The machine's own ceiling: untouched memory populated by as many threads, nothing registered.

    It is kept, so that what is measured after it is as cold.
    """
    region = mmap.mmap(-1, gib * GIB, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    region.madvise(mmap.MADV_HUGEPAGE)
    kept.append(region)
    first, step = ctypes.addressof(ctypes.c_char.from_buffer(region)), 16 << 20
    madvise = ctypes.CDLL(None).madvise  # mmap's own holds the interpreter lock
    madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    start = time.perf_counter()
    with concurrent.futures.ThreadPoolExecutor(threads) as pool:
        failed = sum(pool.map(lambda at: madvise(first + at, step, MADV_POPULATE_WRITE), range(0, gib * GIB, step)))
    assert not failed
    return gib / (time.perf_counter() - start)


def small_layout() -> kv.KVLayout:
    return kv.KVLayout.from_tensors(torch.empty(8, 1 << 20, dtype=torch.uint8, device="cuda"), tokens_per_block=16)


def fill(host: str) -> dict[str, float]:
    layout = small_layout()
    torch.cuda.synchronize()
    start = time.perf_counter()
    mover = kv.Mover(layout, host=host, calibrate=False)
    first_ready_seconds = time.perf_counter() - start
    first_ready_bytes = mover.hello().ready_bytes
    mover.wait_ready(timeout_seconds=300)
    seconds = time.perf_counter() - start
    report = mover.stats()["arena"]
    start = time.perf_counter()
    mover.close()
    close_seconds = time.perf_counter() - start
    return {
        "first_ready_s": first_ready_seconds,
        "first_ready_gib": first_ready_bytes / GIB,
        "gib_per_s": report["bytes"] / GIB / seconds,
        "seconds": seconds,
        "close_s": close_seconds,
        "report": report,
    }


def launch_until(stop: threading.Event, samples: list[float]) -> None:
    x = torch.rand(1024, device="cuda")
    while not stop.is_set():
        for _ in range(LAUNCHES_BEFORE_SYNC):
            start = time.perf_counter()
            x.mul_(1.0001)
            samples.append((time.perf_counter() - start) * 1e6)
        torch.cuda.current_stream().synchronize()


def launch_beside(work) -> list[float]:
    """Microseconds of each launch of a small kernel while `work` runs in the calling thread."""
    samples: list[float] = []
    stop = threading.Event()
    thread = threading.Thread(target=launch_until, args=(stop, samples))
    thread.start()
    work()
    stop.set()
    thread.join()
    return samples


def stall(host: str) -> dict[str, float]:
    layout = small_layout()
    launch_beside(lambda: time.sleep(0.5))  # warm-up

    def pin() -> None:
        mover = kv.Mover(layout, host=host)
        mover.wait_ready(timeout_seconds=300)
        movers.append(mover)

    movers: list[kv.Mover] = []
    quiet = launch_beside(lambda: time.sleep(2))
    pinning = launch_beside(pin)
    movers[0].close()
    out = {}
    for name, samples in (("quiet", quiet), ("pinning", pinning)):
        out |= {f"{name}_us_p{p}": results.percentile(samples, p) for p in (50, 99, 99.9)}
        out |= {f"{name}_us_max": max(samples), f"{name}_launches": len(samples)}
    return out


def child(part: str, host: str) -> dict[str, float]:
    done = subprocess.run(
        [sys.executable, __file__, "--host", host, "--part", part], stdout=subprocess.PIPE, check=True
    )
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--host", default="32GiB")
    parser.add_argument("--part", choices=["fill", "stall"])
    arguments = parser.parse_args()
    if arguments.part:
        print(json.dumps({"fill": fill, "stall": stall}[arguments.part](arguments.host)))
        return
    ceiling = populate_gib_per_s()
    cold, stalled, warm = (child(part, arguments.host) for part in ("fill", "stall", "fill"))
    metrics = {
        "pool.gib_per_s": cold["gib_per_s"],
        "pool.populate_gib_per_s": ceiling,
        "pool.gib_per_s.warm": warm["gib_per_s"],
        "pool.first_ready_s": cold["first_ready_s"],
        "pool.first_ready_s.warm": warm["first_ready_s"],
        "pool.close_s": warm["close_s"],
        "pool.launch_stall_us_p99": stalled["pinning_us_p99"],
        "pool.launch_stall_us_p99.quiet": stalled["quiet_us_p99"],
        "pool.launch_stall_us_max": stalled["pinning_us_max"],
    }
    results.write("pool", metrics, host=arguments.host, cold=cold, warm=warm, stall=stalled)


if __name__ == "__main__":
    main()
