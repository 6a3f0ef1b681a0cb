"""Hits over several KV groups: what each group needs, and how far a prefix is there for all of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


def first_needed_token(start_tokens: int, end_tokens: int, window_tokens: int | None) -> int:
    """Where what a group needs of a hit from `start_tokens` to `end_tokens` begins.

    >>> first_needed_token(0, 512, None), first_needed_token(0, 512, 127), first_needed_token(448, 512, 127)
    (0, 385, 448)
    """
    return start_tokens if window_tokens is None else max(start_tokens, end_tokens - window_tokens)


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

    def needed(self, start_tokens: int, end_tokens: int) -> Sequence[bytes]:
        """The keys that a hit from `start_tokens`, the first token asked for, to `end_tokens` needs.

        >>> GroupKeys(0, [b"to 64", b"to 128", b"to 192"], 64, window_tokens=63).needed(0, 128)
        [b'to 128']
        """
        first = first_needed_token(start_tokens, end_tokens, self.window_tokens)
        begin = start_tokens // self.tokens_per_chunk
        return self.keys[first // self.tokens_per_chunk - begin : end_tokens // self.tokens_per_chunk - begin]

    def beyond(self, start_tokens: int, host_tokens: int, end_tokens: int) -> Sequence[bytes]:
        """The keys that a hit to `end_tokens` needs besides those of one to `host_tokens`; all where a window moves on.

        >>> GroupKeys(0, [b"to 64", b"to 128", b"to 192"], 64).beyond(0, 64, 192)
        [b'to 128', b'to 192']
        """
        keys = self.needed(start_tokens, end_tokens)
        known = host_tokens // self.tokens_per_chunk - start_tokens // self.tokens_per_chunk
        return keys[known:] if self.window_tokens is None else keys


class GroupHit(NamedTuple):
    """A prefix of `host_tokens` is in host memory for all groups; one of `tokens` is there or on disk.

    >>> GroupHit(host_tokens=128, tokens=512).tokens
    512
    """

    host_tokens: int
    tokens: int
