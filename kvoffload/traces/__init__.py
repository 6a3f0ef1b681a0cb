"""A short excerpt of a real request trace, for the demo and tests. Origin and licence: LICENSE.md beside this file."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import resources

TOKENS_PER_TRACE_BLOCK = 512


@dataclass(frozen=True, slots=True)
class Request:
    """One request: tokens in and out, and the ids of its prompt's 512-token blocks.

    Ids are prefix-chained: two requests with the same leading ids have the same leading tokens.
    """

    timestamp_ms: int
    input_tokens: int
    output_tokens: int
    block_ids: tuple[int, ...]


def conversation() -> Iterator[Request]:
    """The first 400 requests of Mooncake's conversation trace, in order of arrival.

    >>> first = next(conversation())
    >>> first.input_tokens, len(first.block_ids)
    (6758, 14)
    """
    packed = resources.files(__package__).joinpath("mooncake_conversation_400.jsonl.gz").read_bytes()
    for line in gzip.decompress(packed).splitlines():
        entry = json.loads(line)
        yield Request(entry["timestamp"], entry["input_length"], entry["output_length"], tuple(entry["hash_ids"]))
