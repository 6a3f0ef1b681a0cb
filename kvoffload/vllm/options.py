"""The connector's options: what `kv_connector_extra_config` may hold."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, get_args

from kvoffload.config import check_flag, check_options, parse_size
from kvoffload.disk import DiskOptions
from kvoffload.errors import InvalidInput
from kvoffload.ledger import POLICIES, Admission, Policy
from kvoffload.paths import RING_MOST_BYTES, check_path, check_ring
from kvoffload.vllm import recipe
from kvoffload.worth import WorthLoading, check_worth_loading

WHERE = "kv_connector_extra_config"
DISK_OPTIONS = ("disk_size", "disk_io", "disk_network")  # `Options.disk` holds these
NEED_DISK = (*DISK_OPTIONS, "write_through", "admission", "disk_writes_per_day")


@dataclass(frozen=True, slots=True)
class Options:
    """Checked options; every field is one option, but that `disk` also holds disk_size, disk_io and disk_network.

    host: bytes of host memory on each node, divided over the ranks of that node; None: half of what is free at start.
    blocks_per_chunk: blocks moved and kept together; None: the smallest that gives a slot of at least 512 KiB.
    deadline_seconds: how long a transfer may take before its keys count as a miss, and how long a request waits for
        somebody else's.
    policy: as KVCache's.
    path, ring, calibrate: as Mover's; ring: bytes of each GPU's memory, 0 for none.
    disk: directories and, like `host`, bytes on each node; None: no disk. write_through, admission: as KVCache's.
    disk_writes_per_day: bytes on each node, divided like `disk_size`; None: any number.
    worth_loading: as KVCache's, but that vLLM's own steps say what prefill costs.
    decode_blocks: whether what decoding computes is stored too, or only prompts.

    >>> options = Options.parse({"host": "1GiB", "ring": "64MiB"})
    >>> options.host, options.ring, options.policy
    (1073741824, 67108864, 'adaptive')
    """

    host: int | None = None
    blocks_per_chunk: int | None = None
    deadline_seconds: float = 30.0
    policy: Policy = "adaptive"
    path: str = "auto"
    ring: int = RING_MOST_BYTES
    calibrate: bool = True
    disk: DiskOptions | None = None
    write_through: bool = False
    admission: Admission = "all"
    disk_writes_per_day: int | None = None
    worth_loading: WorthLoading = "auto"
    decode_blocks: bool = True

    @classmethod
    def parse(cls, given: Mapping[str, Any]) -> Options:
        """Also knows the names in `recipe`. Raises InvalidInput: the option, what was given and what is allowed."""
        check_options(given, [*(field.name for field in fields(cls)), *DISK_OPTIONS, *recipe.WORDS], WHERE)
        given, _ = recipe.translate(given)
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
            parse_size(given["host"], "host") if given.get("host") is not None else None,
            chunk,
            float(seconds),
            policy,
            check_path(given.get("path", "auto")),
            check_ring(given.get("ring", RING_MOST_BYTES)),
            check_flag(given.get("calibrate", True), "calibrate"),
            *_parse_disk(given),
            check_worth_loading(given.get("worth_loading", "auto")),
            check_flag(given.get("decode_blocks", True), "decode_blocks"),
        )


def _parse_disk(given: Mapping[str, Any]) -> tuple[DiskOptions | None, bool, Admission, int | None]:
    if given.get("disk") is None:
        without = [name for name in NEED_DISK if name in given]
        if without:
            raise InvalidInput(f"{', '.join(without)}: these need the option 'disk', a directory or a list of them")
        return None, False, "all", None
    disk = DiskOptions.parse(
        given["disk"], given.get("disk_size"), disk_io=given.get("disk_io", "auto"),
        disk_network=given.get("disk_network", False),
    )  # fmt: skip
    admission = given.get("admission", "all")
    if admission not in get_args(Admission):
        raise InvalidInput(f"option 'admission' is {admission!r}; allowed: {', '.join(get_args(Admission))}")
    writes = given.get("disk_writes_per_day")
    writes_bytes = None if writes is None else parse_size(writes, "disk_writes_per_day")
    return disk, check_flag(given.get("write_through", False), "write_through"), admission, writes_bytes
