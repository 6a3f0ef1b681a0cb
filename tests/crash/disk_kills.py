"""Kills a KVCache with a disk at random moments, or cuts its power, and checks what its successor finds.

    disk_kills.py --runs 500 [--cuts] --io io_uring --seed 1 --dir DIR

Prints one JSON object. The oracle is the parent: a pipe says what was committed, freed and reset. Each run goes on from
what the last one left.

A power cut is made from files: nothing is synced but where the workload does it, which keeps a copy of slab and
manifest then. After the kill each sector that has changed since is as it was or as it is, at random, the appended tail
of the manifest has holes, and its header says that it was written before the last start of the machine.
"""

import argparse
import collections
import dataclasses
import functools
import json
import random
import shutil
import struct
from pathlib import Path

import harness
from disk_workload import find, work

from kvoffload import _C

HEADER_BYTES, CRC_AT, BOOT_AT, EPOCH_AT = 512, 12, 32, 40  # docs/file-format.md
SECTOR_BYTES = 512


@dataclasses.dataclass
class Oracle:
    """What was told, kept over deaths. Places are (group, slot)."""

    committed: dict[tuple[int, int], tuple[int, int]] = dataclasses.field(default_factory=dict)  # -> key, epoch
    flushing: dict[tuple[int, int], tuple[int, int]] = dataclasses.field(default_factory=dict)
    durable: dict[tuple[int, int], tuple[int, int]] = dataclasses.field(default_factory=dict)
    epochs: tuple[int, ...] = ()  # that the manifest may be in
    found: set[int] = dataclasses.field(default_factory=set)
    files: list[Path] = dataclasses.field(default_factory=list)
    ready: bool = False
    counts: collections.Counter = dataclasses.field(default_factory=collections.Counter)

    def hear(self, line: str) -> None:
        what, *words = line.split()
        numbers = [] if what == "files" else list(map(int, words))
        self.counts[what] += 1
        match what, numbers:
            case "opened", [epoch]:
                self.epochs = (epoch,)
            case "ready", [epoch]:
                self.ready, self.epochs = True, (epoch,)
            case "committed", [epoch, group, slot, key, _]:
                self.committed[group, slot] = key, epoch
            case "freeing", [group, slot]:
                for places in (self.committed, self.flushing, self.durable):
                    places.pop((group, slot), None)
            case "flushing", []:
                self.flushing = dict(self.committed)
            case "flushed", []:
                self.durable, self.flushing = self.flushing, {}
            case "resetting", []:
                for places in (self.committed, self.flushing, self.durable):
                    places.clear()
                self.epochs = (self.epochs[-1], self.epochs[-1] + 1)
            case "reset", [epoch]:
                self.epochs = (epoch,)
            case "found", [key]:
                self.found.add(key)
            case "files", []:
                self.files = list(map(Path, words))
            case (("stored" | "wrong"), [_]):
                pass
            case _:
                raise ValueError(f"the oracle does not understand {line!r}")


def hear_all(oracle: Oracle, lines: list[str]) -> Oracle:
    for line in lines:
        oracle.hear(line)
    return oracle


def check(root: Path, io: str, snapshots: Path | None, before: Oracle, tally: collections.Counter) -> Oracle:
    """What is there now, and what should be, in the tally."""
    after = hear_all(Oracle(), harness.run(functools.partial(find, root, io, snapshots)))
    opened = after.epochs[0]
    tally["wrong_bytes"] += before.counts["wrong"] + after.counts["wrong"]
    tally["lost_epochs"] += bool(before.epochs) and opened not in before.epochs
    for name in ("committed", "durable"):
        keys = {key for key, epoch in getattr(before, name).values() if epoch == opened}
        tally[f"{name}_checked"] += len(keys)
        tally[f"lost_{name}"] += len(keys - after.found)
    tally["found"] += len(after.found)
    after.committed = {place: named for place, named in after.committed.items() if named[0] in after.found}
    after.durable = dict(after.committed)
    after.counts.clear()
    return after


def cut_power(oracle: Oracle, snapshots: Path, chance: random.Random) -> int:
    """Leaves in the files what may be on the medium; how many sectors are not what they were."""
    old = snapshots if snapshots.exists() else snapshots.with_name("snapshot.old")
    *slabs, manifest = oracle.files
    lost = sum(mix(path, old / str(number), chance) for number, path in enumerate(slabs))
    before, now = (old / str(len(slabs))).read_bytes(), manifest.read_bytes()
    if now[:HEADER_BYTES] == before[:HEADER_BYTES]:
        lost += mix(manifest, old / str(len(slabs)), chance)
    elif struct.unpack_from("<q", before, EPOCH_AT)[0] in oracle.epochs and chance.random() < 0.5:
        manifest.write_bytes(before)  # replaced since, and the new name is not on the medium
    data = bytearray(manifest.read_bytes())
    data[BOOT_AT : BOOT_AT + 8] = chance.randbytes(8)
    data[CRC_AT : CRC_AT + 4] = bytes(4)
    data[CRC_AT : CRC_AT + 4] = struct.pack("<I", _C.crc32c(bytes(data[:HEADER_BYTES])))
    manifest.write_bytes(data)
    return lost


def mix(path: Path, old: Path, chance: random.Random) -> int:
    now, before = path.read_bytes(), old.read_bytes()
    before += bytes(max(len(now) - len(before), 0))
    share = chance.choice((0, 0.25, 0.5, 0.75, 1))
    mixed, lost = bytearray(now), 0
    for at in range(0, len(now), SECTOR_BYTES):
        sector = slice(at, at + SECTOR_BYTES)
        if now[sector] != before[sector] and chance.random() < share:
            mixed[sector] = before[sector][: len(now[sector])]
            lost += 1
    path.write_bytes(mixed)
    return lost


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=500)
    parser.add_argument("--cuts", action="store_true")
    parser.add_argument("--io", default="auto")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--dir", type=Path, required=True)
    arguments = parser.parse_args()
    print(json.dumps(play(arguments.dir, arguments.runs, arguments.cuts, arguments.io, arguments.seed)))


def play(folder: Path, runs: int, cuts: bool, io: str, seed: int) -> dict[str, int]:
    chance = random.Random(seed)
    root, snapshots = folder / "cache", folder / "snapshot" if cuts else None
    root.mkdir(exist_ok=True)
    tally = collections.Counter(dict.fromkeys(("wrong_bytes", "lost_committed", "lost_durable", "lost_epochs"), 0))
    oracle = check(root, io, snapshots, Oracle(), tally)
    for run in range(runs):
        # One in five early enough to hit the opening.
        early = chance.random() < 0.2
        seconds, after = (chance.uniform(0, 0.03), "") if early else (chance.uniform(0, 0.2), "ready")
        body = functools.partial(work, root, seed * 1_000_000 + run, io, snapshots)
        oracle.ready = False
        hear_all(oracle, harness.run(body, seconds, after))
        tally["killed_while_opening"] += not oracle.ready
        tally["killed_while_flushing"] += bool(oracle.flushing)
        tally.update({name: oracle.counts[name] for name in ("stored", "committed", "reset", "flushed")})
        if snapshots is not None:
            tally["sectors_lost"] += cut_power(oracle, snapshots, chance)
            shutil.rmtree(snapshots.with_name("snapshot.old"), ignore_errors=True)
            oracle.committed = {}  # only what is durable is promised
        oracle = check(root, io, snapshots, oracle, tally)
    return tally | {"runs": runs}


if __name__ == "__main__":
    main()
