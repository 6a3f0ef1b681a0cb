"""Kills a workload at random moments and checks what its successor finds against an oracle outside.

    kills.py --kills 500 --seed 1 --dir DIR

Prints one JSON object. A run of kills goes on in one directory, so that each starts from what the last one left.
"""

import argparse
import collections
import dataclasses
import json
import random
from pathlib import Path

import harness
from workload import Cache, Workload, content, key_of, offset_of, read_record


@dataclasses.dataclass
class Oracle:
    """What the workload said, kept over its deaths."""

    committed: dict[int, int] = dataclasses.field(default_factory=dict)  # key -> sequence
    epochs: tuple[int, ...] = (1,)  # that the manifest may be in
    stored_count: int = 0
    committed_count: int = 0
    resets: int = 0
    compactions: int = 0
    ready: bool = False

    def hear(self, line: str) -> None:
        what, *numbers = line.split()
        match what, list(map(int, numbers)):
            case "ready", [epoch]:
                self.ready, self.epochs = True, (epoch,)
            case "stored", [_]:
                self.stored_count += 1
            case "committed", [key, sequence]:
                self.committed[key] = sequence
                self.committed_count += 1
            case "freeing", [key]:
                self.committed.pop(key, None)
            case "compacted", []:
                self.compactions += 1
            case "resetting", []:
                self.committed.clear()
                self.epochs = (self.epochs[-1], self.epochs[-1] + 1)
            case "reset", [epoch]:
                self.epochs = (epoch,)
                self.resets += 1
            case _:
                raise ValueError(f"the oracle does not understand {line!r}")


def run_and_kill(root: Path, seed: int, oracle: Oracle, seconds: float) -> None:
    for line in harness.run(lambda tell: Workload(root, seed, tell).run(), seconds):
        oracle.hear(line)


def check(root: Path, oracle: Oracle, tally: collections.Counter[str]) -> None:
    """Opens what is left, as the next process would, and reads every record that the manifest names."""
    cache = Cache(root)
    tally["lost_epochs"] += cache.epoch not in oracle.epochs
    tally["not_believed"] += bool(cache.opening["not_believed"])
    tally["torn_tails"] += bool(cache.opening["torn_bytes"])
    found = {}
    for group, name, slot, sequence in cache.opening["chunks"]:
        key = key_of(name)
        records = [read_record(slab, offset_of(group, slot)) for slab in cache.slabs]
        if all(record is not None and record[1] == (key, sequence, cache.epoch) for record in records):
            found[key] = sequence
            tally["wrong_bytes"] += any(record[0] != content(key, cache.epoch) for record in records if record)
        else:
            cache.manifest.free(group, [slot])
    tally["checked"] += len(oracle.committed)
    tally["lost_committed"] += sum(found.get(key) != sequence for key, sequence in oracle.committed.items())
    tally["leftovers"] += sum(path.name.endswith(".new") for path in root.rglob("*"))
    oracle.committed, oracle.epochs = found, (cache.epoch,)
    cache.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=500)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--dir", type=Path, required=True)
    arguments = parser.parse_args()
    chance = random.Random(arguments.seed)
    oracle, tally = Oracle(), collections.Counter(dict.fromkeys(("wrong_bytes", "lost_committed", "lost_epochs"), 0))
    for kill in range(arguments.kills):
        # One in five early enough to hit the opening.
        seconds = chance.uniform(0, 0.01) if chance.random() < 0.2 else chance.uniform(0.01, 0.15)
        oracle.ready = False
        run_and_kill(arguments.dir, arguments.seed * 1_000_000 + kill, oracle, seconds)
        tally["kills_while_opening"] += not oracle.ready
        check(arguments.dir, oracle, tally)
    tally["kills"] = arguments.kills
    tally["stored"], tally["committed"] = oracle.stored_count, oracle.committed_count
    tally["resets"], tally["compactions"] = oracle.resets, oracle.compactions
    print(json.dumps(tally | {"committed_share": oracle.committed_count / max(1, oracle.stored_count)}))


if __name__ == "__main__":
    main()
