"""The prompts of all cases, as token ids; the same in every process, so that one engine without the connector can say
what the output must be."""

from __future__ import annotations

import random
from dataclasses import dataclass

from models import VOCAB

BLOCK = 32


@dataclass(frozen=True)
class Round:
    """Prompts that go to the engine together, and how many tokens each is answered with."""

    prompts: tuple[tuple[int, ...], ...]
    answer: int = 8


def tokens(name: str, count: int) -> tuple[int, ...]:
    source = random.Random(name)
    return tuple(source.randrange(3, VOCAB) for _ in range(count))


PLAIN_LENGTHS = (33, 64, 65, 96, 100, 127, 128, 160, 200, 256, 300)
PARTIAL_BLOCKS = 10
SHARED = 13 * BLOCK  # tokens that 16 prompts have in common
_shared = tokens("shared", SHARED)

ROUNDS: dict[str, Round] = {
    "plain": Round(tuple(tokens(f"plain {n}", n) for n in PLAIN_LENGTHS)),
    "partial": Round((tokens("partial", PARTIAL_BLOCKS * BLOCK + 5),)),
    "shared": Round(tuple(_shared + tokens(f"tail {i}", 40) for i in range(16))),
    "alike": Round(tuple(_shared + tokens("alike", BLOCK) + tokens(f"end {i}", BLOCK - 5) for i in range(16))),
    "turn": Round((tokens("turn", 100),), answer=100),
    "failing": Round(tuple(tokens(f"failing {n}", n) for n in (90, 150, 220, 290))),
    "reset": Round(tuple(tokens(f"reset {n}", n) for n in (100, 180, 260)), answer=24),
    "salt": Round((tokens("salt", 200),)),
    "abort": Round(tuple(tokens(f"abort {i}", 100 + 23 * i) for i in range(8)), answer=40),
    "zeroed": Round(tuple(tokens(f"zeroed {n}", n) for n in PLAIN_LENGTHS)),
    "late": Round(tuple(tokens(f"late {n}", n) for n in (150, 250))),
    "crowd": Round(tuple(tokens(f"crowd {i}", 150 + 10 * i) for i in range(8)), answer=150),
    "crowd failing": Round(tuple(tokens(f"crowd failing {i}", 150 + 10 * i) for i in range(8)), answer=100),
    "crowd abort": Round(tuple(tokens(f"crowd abort {i}", 150 + 10 * i) for i in range(8)), answer=100),
    "crowd unfenced": Round(tuple(tokens(f"crowd unfenced {i}", 150 + 10 * i) for i in range(8)), answer=150),
}
# MLA on vLLM's CPU backend computes no prompt behind a prefix: hits must leave one token, a decode step.
MLA_PROMPTS = tuple(tokens(f"mla {n}", n) for n in (17, 33, 65, 129, 193))
