"""The connector's options: what `kv_connector_extra_config` may hold."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from kvoffload.config import check_flag, check_options, parse_size
from kvoffload.errors import InvalidInput
from kvoffload.ledger import POLICIES, Policy
from kvoffload.paths import RING_MOST_BYTES, check_path, check_ring

WHERE = "kv_connector_extra_config"


@dataclass(frozen=True, slots=True)
class Options:
    """Checked options; every field is one option.

    host: bytes of host memory on each node, divided over the ranks of that node.
    blocks_per_chunk: blocks moved and kept together; None: the smallest that gives a slot of at least 512 KiB.
    deadline_seconds: how long a transfer may take before its keys count as a miss, and how long a request waits for
        somebody else's.
    policy: as KVCache's.
    path, ring, calibrate: as Mover's; ring: bytes of each GPU's memory, 0 for none.

    >>> options = Options.parse({"host": "1GiB", "ring": "64MiB"})
    >>> options.host, options.ring, options.policy
    (1073741824, 67108864, 'adaptive')
    """

    host: int
    blocks_per_chunk: int | None = None
    deadline_seconds: float = 30.0
    policy: Policy = "adaptive"
    path: str = "auto"
    ring: int = RING_MOST_BYTES
    calibrate: bool = True

    @classmethod
    def parse(cls, given: Mapping[str, Any]) -> Options:
        """Raises InvalidInput that names the option, what was given and what is allowed."""
        check_options(given, [field.name for field in fields(cls)], WHERE)
        if "host" not in given:
            raise InvalidInput(
                f"{WHERE} lacks the option 'host': host memory per node for KV, in bytes or like \"64GiB\""
            )
        chunk = given.get("blocks_per_chunk")
        if chunk is not None and (type(chunk) is not int or chunk < 1):
            raise InvalidInput(f"option 'blocks_per_chunk' is {chunk!r}; allowed: an integer >= 1, or none (automatic)")
        seconds = given.get("deadline_seconds", 30.0)
        if type(seconds) not in (int, float) or not math.isfinite(seconds) or seconds <= 0:
            raise InvalidInput(f"option 'deadline_seconds' is {seconds!r}; allowed: seconds > 0")
        policy = given.get("policy", "adaptive")
        if policy not in POLICIES:
            raise InvalidInput(f"option 'policy' is {policy!r}; allowed: {', '.join(POLICIES)}")
        return cls(
            parse_size(given["host"], "host"),
            chunk,
            float(seconds),
            policy,
            check_path(given.get("path", "auto")),
            check_ring(given.get("ring", RING_MOST_BYTES)),
            check_flag(given.get("calibrate", True), "calibrate"),
        )
