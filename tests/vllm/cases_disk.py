"""What a real engine must do when there is a disk behind host memory that is too small."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

from cases import hit_tokens
from harness import Engine, Expected, differing
from prompts import ROUNDS

from kvoffload import _C

OTHERS = ("reset", "late", "failing", "shared")  # they push "plain" out of host memory


def hits_of(engine: Engine, name: str) -> list[int]:
    return [hit_tokens(engine, len(prompt)) for prompt in ROUNDS[name].prompts]


def push_out(engine: Engine) -> None:
    for name in OTHERS:
        engine.forget_local()
        engine.run(name)
    engine.forget_local()


def disk_hits(engine: Engine, expected: Expected) -> None:
    """What host memory has lost comes back from disk, all of it, and right."""
    engine.fill("plain")
    push_out(engine)
    before, promotions = engine.ledger_half.ledger.stats(), engine.counters["promotions"]
    answers, cached = engine.run("plain")
    assert answers == expected["plain"]
    assert cached == hits_of(engine, "plain")
    after = engine.ledger_half.ledger.stats()
    assert after["promoted_keys"] > before["promoted_keys"]
    assert engine.counters["promotions"] > promotions


def disk_failures(engine: Engine, expected: Expected) -> None:
    """A tenth of the disk's jobs meets an error, a short or lost write, or another bit."""
    chance = random.Random(5)
    points = ("io_eio", "io_short", "io_lost_write", "io_misdirect", "record_payload", "record_padding")
    mover = engine.mover_half.mover
    submit = mover.submit_to_disk

    def submit_failing(job: Any, seconds: float) -> None:
        if chance.random() < 0.1:
            _C.fault_arm(chance.choice(points), 0, 2)
        submit(job, seconds)

    mover.submit_to_disk = submit_failing
    failed = engine.ledger_half.ledger.stats()["failed_keys"]
    try:
        for _ in range(4):
            for name in ("plain", "shared", "late", "failing"):
                engine.forget_local()
                assert differing(engine.run(name)[0], expected[name]) == 0, name
    finally:
        mover.submit_to_disk = submit
        _C.fault_disarm_all()
    assert engine.ledger_half.ledger.stats()["failed_keys"] > failed


def disk_damaged(engine: Engine, expected: Expected) -> None:
    """Bits that change on the medium: a shorter hit, and right answers."""
    engine.fill("plain")
    push_out(engine)
    slot_bytes = engine.mover_half.mover.hello().slot_bytes[0]
    for path in engine.mover_half.mover.disk.tier.paths:
        content = bytearray(Path(path).read_bytes())
        for at in range(4096 + 1000, len(content), 2 * slot_bytes):
            content[at] ^= 16
        Path(path).write_bytes(content)
    failed = engine.ledger_half.ledger.stats()["failed_keys"]
    answers, cached = engine.run("plain")
    assert answers == expected["plain"]
    assert sum(cached) < sum(hits_of(engine, "plain"))
    assert engine.ledger_half.ledger.stats()["failed_keys"] > failed
    assert engine.llm.reset_prefix_cache(reset_connector=True)


def disk_left(engine: Engine, expected: Expected) -> None:
    """For the next engine: written while this one had nothing else to do."""
    assert engine.fill("plain") == expected["plain"]
    stats = engine.ledger_half.ledger.stats()
    assert stats["waiting_for_disk_keys"] == 0
    assert stats["disk"]["ready_keys"] > 0


def disk_found(engine: Engine, expected: Expected) -> None:
    """A restart: the first thing that this engine is asked."""
    answers, cached = engine.run("plain")
    assert answers == expected["plain"]
    assert cached == hits_of(engine, "plain")


def disk_gone(engine: Engine, expected: Expected) -> None:
    """A restart after a reset, or without the files."""
    answers, cached = engine.run("plain")
    assert answers == expected["plain"]
    assert cached == [0] * len(cached)


def remove_files(folder: Path) -> None:
    (slab,) = folder.rglob("slab")
    slab.unlink()
