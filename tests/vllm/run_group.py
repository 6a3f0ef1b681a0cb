"""One process of the suite: `run_group.py GROUP MODEL_DIR RESULT [CASE ...]`: one engine, the group's cases, JSON out.

Group "expected MODEL" writes the answers without the connector instead; the others read them from beside the model.
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
    """`cases`: names of functions in cases.py and cases_disk.py. The ones that spoil the cache come last.

    `after`: the group that must have run before; it leaves a directory of its disk. `prepare`: a function in
    cases_disk.py that is called with that directory before the engine starts. {models} in options: the models' folder.
    """

    cases: tuple[str, ...]
    connector: dict[str, Any]
    config: dict[str, Any] = field(default_factory=dict)
    model: str = "llama"
    asynchronous: bool = False
    answers: bool = True  # compared with those of the same model without the connector
    after: str = ""
    prepare: str = ""


def hybrid(folder: str, **options: Any) -> dict[str, Any]:
    """Host memory for what one case stores at a time, about 30 chunks, but not for two of them."""
    disk = {"disk": f"{{models}}/{folder}", "disk_size": "128MiB"}
    return {"host": "8MiB", "blocks_per_chunk": 2, **disk, **options}


CROWD = {"num_gpu_blocks_override": 28, "max_model_len": 768}
TWO_RANKS = {
    "tensor_parallel_size": 2,
    "distributed_executor_backend": "mp",
    **CROWD,
    "num_gpu_blocks_override": 64,
}
COMMON = ("plain", "partial", "shared", "turn", "failed_loads", "failed_stores", "salt", "aborts", "reset")
CROWDED = ("crowd", "crowd_failing", "crowd_aborts", "unfenced")
WINDOWED = (
    *("plain", "partial", "window_shared", "window_alike", "turn", "failed_loads", "failed_stores", "salt", "aborts"),
    *("reset", "reset_while_running", "zeroed_windows", "zeroed"),
)
MIXED_CROWD = {**CROWD, "num_gpu_blocks_override": 52}

GROUPS = {
    "plain": Group(
        (*COMMON, "reset_while_running", "new_weights", "sleep", "zeroed"), {"host": "96MiB", "blocks_per_chunk": 1}
    ),
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
        TWO_RANKS,
    ),
    "disk": Group(
        ("plain", "partial", "turn", "salt", "aborts", "disk_hits", "disk_failures", "disk_damaged", "disk_left"),
        hybrid("disk"),
    ),
    "disk restarted": Group(("disk_found", "reset"), hybrid("disk", write_through=True), after="disk"),
    "disk reset": Group(("disk_gone", "disk_left"), hybrid("disk"), after="disk restarted"),
    "disk removed": Group(("disk_gone",), hybrid("disk"), after="disk reset", prepare="remove_files"),
    "disk, new weights": Group(("new_weights", "disk_left"), hybrid("disk of weights")),
    "disk, old weights": Group(("disk_gone",), hybrid("disk of weights"), after="disk, new weights"),
    "disk asynchronous": Group(
        ("plain", "disk_hits", "disk_failures", "aborts"), hybrid("disk asynchronous"), asynchronous=True
    ),
    "two ranks, disk": Group(("plain", "disk_hits", "disk_left"), hybrid("disk of two"), TWO_RANKS),
    "two ranks, disk restarted": Group(("disk_found",), hybrid("disk of two"), TWO_RANKS, after="two ranks, disk"),
    "mla": Group(
        ("mla",), {"host": "96MiB", "blocks_per_chunk": 1}, {"block_size": 16}, model="deepseek", answers=False
    ),
    "adapters": Group(
        ("adapters",),
        {"host": "96MiB", "blocks_per_chunk": 2},
        {"enable_lora": True, "max_loras": 2, "max_lora_rank": 8},
    ),
    "window": Group(WINDOWED, {"host": "96MiB", "blocks_per_chunk": 3}, model="window"),
    "mixed chunked": Group(
        WINDOWED, {"host": "96MiB", "blocks_per_chunk": 1}, {"max_num_batched_tokens": 96}, model="mixed"
    ),
    "mixed crowded asynchronous": Group(
        CROWDED, {"host": "96MiB", "blocks_per_chunk": 1}, MIXED_CROWD, model="mixed", asynchronous=True
    ),
    "mixed, disk": Group(
        ("plain", "partial", "turn", "aborts", "disk_hits", "disk_failures"),
        hybrid("disk of mixed"),
        model="mixed",
    ),
}


def write_expected(model: Path, result: Path) -> None:
    from harness import Engine
    from prompts import ROUNDS

    engine = Engine(model, None)
    answers = {name: engine.generate(r.prompts, r.answer)[0] for name, r in ROUNDS.items()}
    result.write_text(json.dumps(answers))


def run_cases(name: str, models: Path, result: Path) -> None:
    import cases
    import cases_disk
    from harness import Engine, Expected, force_asynchronous_scheduling

    group = GROUPS[name]
    if group.asynchronous:
        force_asynchronous_scheduling()
    expected = Expected(models / f"expected {group.model}.json") if group.answers else None
    connector = {
        name: value.replace("{models}", str(models)) if isinstance(value, str) else value
        for name, value in group.connector.items()
    }
    if group.prepare:
        getattr(cases_disk, group.prepare)(Path(connector["disk"]))
    engine = Engine(models / group.model, connector, **group.config)
    assert (engine.core.batch_queue is not None) == group.asynchronous
    outcomes = {}
    for case in sys.argv[4:] or group.cases:
        try:
            getattr(cases if hasattr(cases, case) else cases_disk, case)(engine, expected)
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
    if group.startswith("expected "):
        write_expected(models / group.removeprefix("expected "), result)
    else:
        run_cases(group, models, result)
