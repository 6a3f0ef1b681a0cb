"""Hits over several KV groups: what each group needs, and how far a prefix is there for all of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class GroupKeys(NamedTuple):
    """The keys of one group along a prefix, and how much of it the group needs.

    keys: of its chunks in order, from the one that holds the first token asked for. tokens_per_chunk: the same for
    all of them. window_tokens: how many tokens before the end of a hit the group needs: None for all (full attention),
    a sliding window's tokens, 1 for recurrent layers, whose state at the end is in the last chunk.

    >>> GroupKeys(1, [b"state after 64 tokens", b"state after 128 tokens"], 64, window_tokens=1).tokens_per_chunk
    64
    """

    group: int
    keys: Sequence[bytes]
    tokens_per_chunk: int
    window_tokens: int | None = None


class GroupHit(NamedTuple):
    """A prefix of `host_tokens` is in host memory for all groups; one of `tokens` is there or on disk.

    >>> GroupHit(host_tokens=128, tokens=512).tokens
    512
    """

    host_tokens: int
    tokens: int
