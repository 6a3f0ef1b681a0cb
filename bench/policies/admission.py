"""What admission to the disk costs in hits and saves in writes, on real request traces.

    admission.py       writes $OUT/admission.json

A directory of two tiers: a request looks its blocks up, has what is on disk promoted, and stores all of them; then what
waits for the disk is written. Hits are its leading run of blocks in either tier, over all blocks asked for; writes are
over all blocks that were stored. `budget`: all, with `disk_writes_per_day` a fifth of the blocks asked for and the
trace a day long.
"""

from __future__ import annotations

from collections.abc import Iterator

from replay import TRACES, Requests, read_trace, results

from kvoffload import _C

HOST_BLOCKS, DISK_BLOCKS = 1024, 8192
ADMISSIONS = {  # key in the results -> admission, share of the blocks asked for that may be written (0: any)
    "all": ("all", 0.0),
    "second_touch": ("second_touch", 0.0),
    "tinylfu": ("tinylfu", 0.0),
    "budget": ("all", 0.2),
}
SLOT_BYTES, DAY_SECONDS, FAR = 4096, 86400.0, 1e18


def run(admission: str, share: float, requests: Requests) -> dict[str, float]:
    asked = sum(map(len, requests))
    directory = _C.Directory(1, admission, disk_writes_per_day=int(share * asked) * SLOT_BYTES)
    directory.open(HOST_BLOCKS * SLOT_BYTES, [SLOT_BYTES])
    directory.grow(HOST_BLOCKS * SLOT_BYTES)
    directory.open_disk(DISK_BLOCKS * SLOT_BYTES, 0, 1)
    for number, blocks in enumerate(requests):
        now = DAY_SECONDS * number / len(requests)
        keys = [block.to_bytes(16, "big") for block in blocks]
        directory.lookup(0, keys)
        end(directory, directory.plan_promote(0, keys, FAR))
        end(directory, directory.plan_store(0, keys, FAR))
        while end(directory, directory.plan_demote(0, HOST_BLOCKS, now, FAR)):
            pass
    stats = directory.stats()
    return {
        "hit_ratio": (stats["hit_keys"] + stats["disk_hit_keys"]) / asked,
        "disk_hit_ratio": stats["disk_hit_keys"] / asked,
        "write_ratio": stats["demoted_keys"] / stats["stored_keys"],
    }


def end(directory: _C.Directory, job: tuple | None) -> bool:
    """The one rank has done it at once."""
    if job is not None:
        directory.report(0, [(job[0], True, (), ())])
    return job is not None


def ratios() -> Iterator[tuple[str, float]]:
    for name in TRACES:
        requests = read_trace(name)
        for label, (admission, share) in ADMISSIONS.items():
            for key, value in run(admission, share, requests).items():
                yield f"trace.{name}.admission.{label}.{key}", value


def main() -> None:
    results.write("admission", dict(ratios()), host_blocks=HOST_BLOCKS, disk_blocks=DISK_BLOCKS)


if __name__ == "__main__":
    main()
