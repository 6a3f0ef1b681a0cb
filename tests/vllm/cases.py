"""What a real engine with the connector must do. Every case leaves the engine empty and the fault points disarmed."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from harness import Engine, Expected, differing
from models import WINDOW
from prompts import BLOCK, MLA_PROMPTS, PARTIAL_BLOCKS, PLAIN_LENGTHS, ROUNDS, SHARED, tokens
from vllm import SamplingParams

from kvoffload import _C
from kvoffload.vllm.groups import hit_unit_tokens


@contextmanager
def jobs_of(engine: Engine) -> Iterator[list[Any]]:
    """The jobs that are submitted meanwhile."""
    jobs: list[Any] = []
    submit = engine.mover_half.mover.submit

    def submit_seen(job: Any, **options: Any) -> Any:
        jobs.append(job)
        return submit(job, **options)

    engine.mover_half.mover.submit = submit_seen
    try:
        yield jobs
    finally:
        engine.mover_half.mover.submit = submit


def chunk_tokens(engine: Engine) -> int:
    return hit_unit_tokens(engine.ledger_half.groups)


def hit_tokens(engine: Engine, length: int) -> int:
    """Of a prompt that is stored whole: a hit leaves at least one token, and else ends with a chunk."""
    chunk = chunk_tokens(engine)
    if length % chunk == 0 and length > chunk and engine.ledger_half.whole_prompts:
        return length - 1
    return (length - 1) // chunk * chunk


def plain(engine: Engine, expected: Expected) -> None:
    assert engine.fill("plain") == expected["plain"]
    before = engine.counters
    answers, cached = engine.run("plain")
    assert answers == expected["plain"]
    hits = [hit_tokens(engine, length) for length in PLAIN_LENGTHS]
    assert cached == hits
    assert engine.counters["hit_tokens"] - before["hit_tokens"] == sum(hits) > 0


def partial(engine: Engine, expected: Expected) -> None:
    """Every number of blocks that vLLM's own cache may still have, so every place in a chunk to start loading at."""
    (prompt,) = ROUNDS["partial"].prompts
    assert engine.fill("partial") == expected["partial"]
    for local in range(PARTIAL_BLOCKS + 1):
        engine.forget_local()
        if local:
            engine.generate([prompt[: local * BLOCK + 1]], 1)
        before = engine.counters
        answers, cached = engine.run("partial")
        assert answers == expected["partial"], f"{local} blocks local"
        end = max(hit_tokens(engine, len(prompt)), local * BLOCK)
        assert cached == [end], f"{local} blocks local"
        assert engine.counters["hit_tokens"] - before["hit_tokens"] == end - local * BLOCK


def shared(engine: Engine, expected: Expected) -> None:
    """16 at once with one prefix: one loads it, the others wait and find it in vLLM's own cache."""
    assert engine.fill("shared") == expected["shared"]
    before = engine.counters
    answers, _ = engine.run("shared")
    assert answers == expected["shared"]
    assert engine.counters["joins"] - before["joins"] == 15
    whole = hit_tokens(engine, len(ROUNDS["shared"].prompts[0]))
    assert engine.counters["hit_tokens"] - before["hit_tokens"] == whole + 15 * (whole - min(whole, SHARED))


def window_shared(engine: Engine, expected: Expected) -> None:
    """Of a window only the end is loaded, which is no hit for others that part before: each loads for itself."""
    assert engine.fill("shared") == expected["shared"]
    before = engine.counters
    answers, cached = engine.run("shared")
    assert answers == expected["shared"]
    assert engine.counters["joins"] == before["joins"]
    whole = hit_tokens(engine, len(ROUNDS["shared"].prompts[0]))
    assert cached == [whole] * 16
    assert engine.counters["hit_tokens"] - before["hit_tokens"] == 16 * whole


def window_alike(engine: Engine, expected: Expected) -> None:
    """16 hits that end alike: one loads, the others wait for it."""
    assert engine.fill("alike") == expected["alike"]
    before = engine.counters
    with jobs_of(engine) as jobs:
        answers, cached = engine.run("alike")
    assert answers == expected["alike"]
    assert engine.counters["joins"] - before["joins"] == 15
    whole = hit_tokens(engine, len(ROUNDS["alike"].prompts[0]))
    assert min(cached) == whole
    assert engine.counters["hit_tokens"] - before["hit_tokens"] == whole
    loads = {job.group: job for job in jobs if job.kind == "load"}
    for group in engine.ledger_half.groups:
        tokens = whole if group.window_tokens is None else WINDOW
        assert len(loads[group.index].slots) == tokens // group.tokens_per_chunk


def turn(engine: Engine, expected: Expected) -> None:
    """A follow-up question is served from blocks that decoding filled."""
    (first,) = ROUNDS["turn"].prompts
    (answer,) = engine.fill("turn")
    assert [answer] == expected["turn"]
    question = [*first, *answer, *tokens("question", 30)]
    engine.drain()
    engine.forget_local()
    _, cached = engine.generate([question], 8)
    stored = (len(first) + len(answer) - 1) // chunk_tokens(engine) * chunk_tokens(engine)
    assert cached == [stored]
    assert stored > len(first)


def failed_loads(engine: Engine, expected: Expected) -> None:
    assert engine.fill("failing") == expected["failing"]
    before = engine.counters
    _C.fault_arm("copy", 0, 1_000_000)
    answers, _ = engine.run("failing")
    engine.drain()
    _C.fault_disarm_all()
    assert answers == expected["failing"]
    loads = sum(hit_tokens(engine, len(prompt)) > 0 for prompt in ROUNDS["failing"].prompts)
    failed = engine.counters["failed_loads"] - before["failed_loads"]
    groups = engine.ledger_half.groups
    again = all(group.window_tokens is not None for group in groups)  # what lies before a window is a hit of its own
    assert loads * len(groups) <= failed <= (1 + again) * loads * len(groups)
    assert engine.fill("failing") == expected["failing"]  # the keys of failed loads are gone; this stores them again
    answers, cached = engine.run("failing")
    assert answers == expected["failing"]
    assert cached == [hit_tokens(engine, len(prompt)) for prompt in ROUNDS["failing"].prompts]


def failed_stores(engine: Engine, expected: Expected) -> None:
    before = engine.counters
    _C.fault_arm("copy", 0, 1_000_000)
    assert engine.fill("late") == expected["late"]
    _C.fault_disarm_all()
    assert engine.counters["failed_stores"] > before["failed_stores"]
    answers, cached = engine.run("late")
    assert answers == expected["late"]
    assert cached == [0, 0]


def reset(engine: Engine, expected: Expected) -> None:
    engine.fill("reset")
    assert engine.llm.reset_prefix_cache(reset_connector=True)
    answers, cached = engine.run("reset")
    assert answers == expected["reset"]
    assert cached == [0] * len(answers)


def reset_while_running(engine: Engine, expected: Expected) -> None:
    """KV from before a reset is never served after it, also not what its own requests go on computing on top of it."""
    engine.forget_local()
    _submit(engine, "reset")
    while len(engine.scheduler.running) < len(ROUNDS["reset"].prompts):  # they wait for their loads first
        engine.llm.llm_engine.step()
    for _ in range(4):
        engine.llm.llm_engine.step()
    assert engine.llm.reset_prefix_cache(reset_running_requests=True, reset_connector=True)
    assert engine.ledger_half.ledger.stats()["ready_keys"] == 0
    assert _finish(engine) == expected["reset"]


def new_weights(engine: Engine, expected: Expected) -> None:
    """An update of the weights empties our cache also if only vLLM's own is asked to be emptied."""

    def negate(model: torch.nn.Module) -> None:
        model.get_parameter("model.layers.0.input_layernorm.weight").data.neg_()

    assert engine.fill("late") == expected["late"]
    for changed in (True, False):
        engine.llm.apply_model(negate)
        engine.forget_local()
        answers, cached = engine.run("late")
        assert cached == [0, 0]
        assert (differing(answers, expected["late"]) > 0) == changed
        engine.forget_local()
        again, cached = engine.run("late")
        assert again == answers and sum(cached) > 0


def sleep(engine: Engine, expected: Expected) -> None:
    """Right after a request, whose stores have not ended: no copy touches the KV cache from then on."""
    assert engine.fill("late") == expected["late"]
    engine.generate([tokens("sleep", 100)], 1)  # its only step's stores would be submitted in the next one
    assert engine.mover_half._marked
    engine.llm.sleep(level=1)
    assert not engine.mover_half._open_transfers() and not engine.mover_half._marked
    engine.llm.wake_up()
    answers, cached = engine.run("late")
    assert answers == expected["late"]
    assert cached == [0, 0]


def salt(engine: Engine, expected: Expected) -> None:
    """Another tenant's salt is another key."""
    prompts = ROUNDS["salt"].prompts
    engine.forget_local()
    engine.generate(prompts, 8, salt="a")
    cached = []
    for name in ("b", None, "a"):
        engine.forget_local()
        answers, got = engine.generate(prompts, 8, salt=name)
        assert answers == expected["salt"]
        cached += got
    assert cached == [0, 0, hit_tokens(engine, len(prompts[0]))]


def adapters(engine: Engine, expected: Expected) -> None:
    """Two LoRA adapters and none give one prompt three kinds of KV: each finds its own."""
    prompts = ROUNDS["salt"].prompts
    folder = Path(engine.llm.llm_engine.vllm_config.model_config.model).parent
    answers = {}
    for again in (False, True):
        for name in ("adapter a", "adapter b", None):
            engine.forget_local()
            answer, cached = engine.generate(prompts, 8, adapter=name and folder / name)
            assert cached == [hit_tokens(engine, len(prompts[0])) if again else 0], name
            assert answers.setdefault(name, answer) == answer
    assert answers[None] == expected["salt"]
    assert len({str(answer) for answer in answers.values()}) == 3


def aborts(engine: Engine, expected: Expected) -> None:
    """Aborts in every state: waiting, loading, running. What is not aborted is right, and nothing leaks."""
    assert engine.fill("abort") == expected["abort"]
    _aborting_round(engine, expected, "abort", seed=1)


def crowd(engine: Engine, expected: Expected) -> None:
    """More requests than blocks: preemption, slow stores whose blocks are handed out again, resuming by load."""
    before, preemptions = engine.counters, engine.preemptions
    for _ in range(2):
        _C.fault_arm("enqueue_delay", 0, 12)
        engine.forget_local()
        answers, _ = engine.run("crowd")
        assert differing(answers, expected["crowd"]) == 0
    assert engine.preemptions > preemptions
    gained = engine.counters
    assert gained["resumed_by_load"] > before["resumed_by_load"]
    assert gained["flushes"] > before["flushes"]


def crowd_failing(engine: Engine, expected: Expected) -> None:
    """The same while copies fail now and then, loads and stores alike."""
    before = engine.counters
    chance = random.Random(3)
    submit = engine.mover_half.mover.submit

    def submit_failing(job: Any, **options: Any) -> Any:
        if chance.random() < 0.3:
            _C.fault_arm("copy", 0, 1)
        return submit(job, **options)

    engine.mover_half.mover.submit = submit_failing
    try:
        for _ in range(3):
            engine.forget_local()
            answers, _ = engine.run("crowd failing")
            assert differing(answers, expected["crowd failing"]) == 0
    finally:
        engine.mover_half.mover.submit = submit
    gained = engine.counters
    assert gained["failed_loads"] > before["failed_loads"]
    assert gained["failed_stores"] > before["failed_stores"]


def crowd_aborts(engine: Engine, expected: Expected) -> None:
    preemptions = engine.preemptions
    for seed in range(2):
        engine.forget_local()
        _aborting_round(engine, expected, "crowd abort", seed)
    assert engine.preemptions > preemptions


def zeroed(engine: Engine, expected: Expected) -> None:
    """Negative control: if the bytes were not looked at, this would pass too. Nothing runs after it that needs hits."""
    _zero(engine, expected, [group.index for group in engine.ledger_half.groups])


def zeroed_windows(engine: Engine, expected: Expected) -> None:
    """The same for what sliding windows keep alone."""
    _zero(engine, expected, [group.index for group in engine.ledger_half.groups if group.window_tokens is not None])


def _zero(engine: Engine, expected: Expected, groups: list[int]) -> None:
    with jobs_of(engine) as jobs:
        assert engine.fill("zeroed") == expected["zeroed"]
    zeroed = {(job.group, slot) for job in jobs if job.group in groups for slot in job.slots}
    assert zeroed
    for group, slot in zeroed:
        view = engine.mover_half.mover.slot_view(group, slot)
        view[:] = bytes(len(view))
    answers, cached = engine.run("zeroed")
    assert sum(cached) > 0
    assert differing(answers, expected["zeroed"]) > 0
    engine.drain()
    assert engine.llm.reset_prefix_cache(reset_connector=True)


def unfenced(engine: Engine, expected: Expected) -> None:
    """Negative control: with the fence off and slow stores, blocks are overwritten while they are read."""
    fence = engine.ledger_half._fence
    watched = fence.jobs_to_flush

    def flush_nothing() -> tuple[int, ...]:
        watched()
        return ()

    fence.jobs_to_flush = flush_nothing
    wrong = 0
    try:
        for _ in range(3):
            _C.fault_arm("enqueue_delay", 0, 40)
            engine.forget_local()
            wrong += differing(engine.run("crowd unfenced")[0], expected["crowd unfenced"])
            if wrong:
                break
    finally:
        del fence.jobs_to_flush
    assert wrong > 0
    engine.drain()
    assert engine.llm.reset_prefix_cache(reset_connector=True)


def small_host(engine: Engine, expected: Expected) -> None:
    """Everything evicts everything else: fewer hits, right answers."""
    for _ in range(2):
        for name in ("plain", "late", "late", "shared"):
            engine.forget_local()
            answers, _ = engine.run(name)
            assert answers == expected[name]
    assert engine.ledger_half.ledger.stats()["evicted_keys"] > 0
    assert engine.counters["hit_tokens"] > 0


def _submit(engine: Engine, name: str) -> None:
    sampling = SamplingParams(temperature=0, max_tokens=ROUNDS[name].answer, ignore_eos=True, detokenize=False)
    for index, prompt in enumerate(ROUNDS[name].prompts):
        engine.llm.llm_engine.add_request(str(index), {"prompt_token_ids": list(prompt)}, sampling)


def _finish(engine: Engine) -> list[list[int]]:
    done = {}
    while engine.llm.llm_engine.has_unfinished_requests():
        for output in engine.llm.llm_engine.step():
            if output.finished:
                done[int(output.request_id)] = list(output.outputs[0].token_ids)
    return [done[index] for index in sorted(done)]


def _aborting_round(engine: Engine, expected: Expected, name: str, seed: int) -> None:
    chance = random.Random(seed)
    count = len(ROUNDS[name].prompts)
    aborted = set(chance.sample(range(count), count // 2))
    times = {index: chance.choice([0, 0, 1, 2, 5, 20, 60]) for index in aborted}
    _submit(engine, name)
    done: dict[int, list[int]] = {}
    step = 0
    while engine.llm.llm_engine.has_unfinished_requests():
        engine.llm.llm_engine.abort_request([str(index) for index, at in times.items() if at == step])
        for output in engine.llm.llm_engine.step():
            if output.finished and output.outputs[0].finish_reason != "abort":
                done[int(output.request_id)] = list(output.outputs[0].token_ids)
        step += 1
    assert set(done) >= set(range(count)) - aborted
    assert not set(done) & {index for index, at in times.items() if at < ROUNDS[name].answer}
    for index, answer in done.items():
        assert answer == expected[name][index], f"request {index}"


def crowd_two_ranks(engine: Engine, expected: Expected) -> None:
    """Preemption with two workers in processes of their own, which report in different steps."""
    before, preemptions = engine.counters, engine.preemptions
    for _ in range(2):
        engine.forget_local()
        assert differing(engine.run("crowd")[0], expected["crowd"]) == 0
    assert engine.preemptions > preemptions
    assert engine.counters["resumed_by_load"] > before["resumed_by_load"]


def mla(engine: Engine, expected: Expected) -> None:
    """Latent attention: one tensor a layer, one head. Bytes are compared, not answers: with vLLM's CPU backend for it
    the same prompt is answered differently alone and in a batch, connector or not.
    """
    layers = engine.core.model_executor.driver_worker.worker.model_runner.kv_caches

    def content(block: int) -> list[bytes]:
        return [layer[block].contiguous().view(torch.uint8).numpy().tobytes() for layer in layers]

    with jobs_of(engine) as jobs:
        engine.generate(MLA_PROMPTS, 4)
        engine.drain()
        stored = {s: content(b) for job in jobs for s, b in zip(job.slots, job.blocks, strict=True)}
        jobs.clear()
        _, cached = engine.generate(MLA_PROMPTS, 4)
    assert cached == [len(prompt) - 1 for prompt in MLA_PROMPTS]
    loaded = [(s, b) for job in jobs for s, b in zip(job.slots, job.blocks, strict=True) if job.kind == "load"]
    assert len(loaded) == len(stored) == sum(cached) // 16
    for slot, block in loaded:
        assert any(map(any, stored[slot])) and content(block) == stored[slot]
