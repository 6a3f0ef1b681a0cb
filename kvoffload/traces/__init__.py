"""A short excerpt of a real request trace, for the demo and tests. Origin and licence: LICENSE.md beside this file."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import resources

from kvoffload.errors import InvalidInput

TOKENS_PER_TRACE_BLOCK = 512
GZIP_MAGIC = b"\x1f\x8b"


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
    return parse(resources.files(__package__).joinpath("mooncake_conversation_400.jsonl.gz").read_bytes())


def parse(content: bytes) -> Iterator[Request]:
    """Requests of a trace in Mooncake's form, plain or gzipped: one JSON object a line. Raises InvalidInput.

    >>> list(parse(b'{"timestamp": 5, "input_length": 600, "output_length": 3, "hash_ids": [0, 1]}'))
    [Request(timestamp_ms=5, input_tokens=600, output_tokens=3, block_ids=(0, 1))]
    """
    try:
        lines = (gzip.decompress(content) if content.startswith(GZIP_MAGIC) else content).splitlines()
    except (OSError, EOFError, zlib.error) as error:
        raise InvalidInput(f"this trace cannot be unpacked: {error}") from error
    for number, line in enumerate(lines, 1):
        try:
            entry = json.loads(line)
            sizes = int(entry["timestamp"]), int(entry["input_length"]), int(entry["output_length"])
            yield Request(*sizes, tuple(map(int, entry["hash_ids"])))
        except (ValueError, TypeError, KeyError) as error:
            raise InvalidInput(
                f"line {number} of this trace: {error!r}; each is a JSON object with timestamp, input_length, "
                "output_length and hash_ids"
            ) from error
