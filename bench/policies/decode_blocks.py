"""What it is worth to keep what decoding computes, on real request traces.

    decode_blocks.py       writes $OUT/decode_blocks.json

A trace has the blocks of prompts, not of answers. But an answer is part of the next turn's prompt: the next request
that begins with all whole blocks of this one and has more. Its blocks up to the end of the answer were made whole by
decoding, if it is that turn; so what is gained is at most what is told here. Hits are a request's leading run of
resident blocks of its prompt, by the default policy; without, only the blocks of prompts are stored.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from replay import CAPACITIES, TRACES, results

from kvoffload import _C
from kvoffload.traces import TOKENS_PER_TRACE_BLOCK, Request, parse


def read(name: str) -> list[Request]:
    return list(parse((Path(__file__).parent / "traces" / f"mooncake_{name}.jsonl.gz").read_bytes()))


def whole_blocks(tokens: int) -> int:
    return tokens // TOKENS_PER_TRACE_BLOCK


def decoded_blocks(requests: list[Request]) -> list[tuple[int, ...]]:
    """Of each request: the blocks that its answer makes whole. Those that nobody asks for have ids of their own."""
    later: dict[int, list[Request]] = {}  # block of a prompt -> later requests that have it, the nearest one last
    found: list[tuple[int, ...]] = []
    for request in reversed(requests):
        first, end = whole_blocks(request.input_tokens), whole_blocks(request.input_tokens + request.output_tokens)
        same = later.get(request.block_ids[first - 1], []) if first else []
        turn = next((turn for turn in reversed(same) if whole_blocks(turn.input_tokens) >= end), None)
        unseen = tuple(-1 - len(found) * 1000 - i for i in range(end - first))
        found.append(turn.block_ids[first:end] if turn else unseen)
        for block in request.block_ids[:first]:
            later.setdefault(block, []).append(request)
    return found[::-1]


def hits(requests: list[Request], answers: list[tuple[int, ...]], capacity: int) -> int:
    replay = _C.PolicyReplay("adaptive", capacity)
    total = 0
    for request, answer in zip(requests, answers, strict=True):
        prompt = request.block_ids[: whole_blocks(request.input_tokens)]
        keys = [block % (1 << 62) for block in (*prompt, *answer)]
        total += min(replay.request(keys), len(prompt))
    return total


def figures() -> Iterator[tuple[str, float]]:
    for name in TRACES:
        requests = read(name)
        prompts = sum(whole_blocks(request.input_tokens) for request in requests)
        answers = decoded_blocks(requests)
        decoded = sum(map(len, answers))
        yield f"trace.{name}.decode.stored_ratio", decoded / prompts
        for capacity in CAPACITIES:
            without = hits(requests, [()] * len(requests), capacity)
            gained = hits(requests, answers, capacity) - without
            yield f"trace.{name}.decode.{capacity}.hit_ratio_gain", gained / prompts
            yield f"trace.{name}.decode.{capacity}.hits_per_stored", gained / decoded
            yield f"trace.{name}.decode.{capacity}.hits_per_stored_prompt", without / prompts


def main() -> None:
    results.write("decode_blocks", dict(figures()))


if __name__ == "__main__":
    main()
