"""One process of the suite: `run_group.py GROUP MODEL_DIR RESULT [CASE ...]`: one engine, the group's cases, JSON out.

Group "expected" writes the answers without the connector instead; the others read them from beside the model.
"""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

Case = Callable[[Any, Any], None]


@dataclass(frozen=True)
class Group:
    """`cases`: names of functions in cases.py. The ones that spoil the cache come last."""

    cases: tuple[str, ...]
    connector: dict[str, Any]
    config: dict[str, Any] = field(default_factory=dict)
    model: str = "llama"
    asynchronous: bool = False


CROWD = {"num_gpu_blocks_override": 28, "max_model_len": 768}
COMMON = ("plain", "partial", "shared", "turn", "failed_loads", "failed_stores", "salt", "aborts", "reset")
CROWDED = ("crowd", "crowd_failing", "crowd_aborts", "unfenced")

GROUPS = {
    "plain": Group((*COMMON, "reset_while_running", "zeroed"), {"host": "96MiB", "blocks_per_chunk": 1}),
    "chunked": Group(
        (*COMMON, "reset_while_running"), {"host": "96MiB", "blocks_per_chunk": 3}, {"max_num_batched_tokens": 96}
    ),
    "small": Group(("small_host",), {"host": "3MiB", "blocks_per_chunk": 2}),
    "crowded": Group(CROWDED, {"host": "96MiB", "blocks_per_chunk": 1}, CROWD),
    "asynchronous": Group(COMMON, {"host": "96MiB", "blocks_per_chunk": 2}, asynchronous=True),
    "crowded asynchronous": Group(CROWDED, {"host": "96MiB", "blocks_per_chunk": 1}, CROWD, asynchronous=True),
    "two ranks": Group(
        ("plain", "partial", "shared", "aborts", "crowd_two_ranks"),
        {"host": "96MiB", "blocks_per_chunk": 2},
        {"tensor_parallel_size": 2, "distributed_executor_backend": "mp", **CROWD, "num_gpu_blocks_override": 64},
    ),
    "mla": Group(("mla",), {"host": "96MiB", "blocks_per_chunk": 1}, {"block_size": 16}, model="deepseek"),
}


def write_expected(models: Path, result: Path) -> None:
    from harness import Engine
    from prompts import ROUNDS

    engine = Engine(models / "llama", None)
    answers = {name: engine.generate(r.prompts, r.answer)[0] for name, r in ROUNDS.items()}
    result.write_text(json.dumps(answers))


def run_cases(name: str, models: Path, result: Path) -> None:
    import cases
    from harness import Engine, Expected, force_asynchronous_scheduling

    group = GROUPS[name]
    if group.asynchronous:
        force_asynchronous_scheduling()
    expected = Expected(models / "expected.json")
    engine = Engine(models / group.model, group.connector, **group.config)
    assert (engine.core.batch_queue is not None) == group.asynchronous
    outcomes = {}
    for case in sys.argv[4:] or group.cases:
        try:
            getattr(cases, case)(engine, expected)
            engine.check_leaks()
            outcomes[case] = "passed"
        except Exception:
            outcomes[case] = traceback.format_exc()
            result.write_text(json.dumps(outcomes))
            break  # the engine's state is anybody's guess now
        counters = f"{dict(engine.counters)}; worker {dict(engine.worker_counters)}"
        print(f"== {name}: {case}: {outcomes[case]}; {counters}", flush=True)
        result.write_text(json.dumps(outcomes))


if __name__ == "__main__":
    group, models, result = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
    if group == "expected":
        write_expected(models, result)
    else:
        run_cases(group, models, result)
