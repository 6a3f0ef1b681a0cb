"""KV events: tells vLLM's publisher, and so routers, which chunks came to host memory and disk, and which went."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice

from vllm.distributed import kv_events
from vllm.distributed.kv_events import BlockRemoved, BlockStored, KVCacheEvent
from vllm.v1.core.kv_cache_utils import BlockHash, maybe_convert_block_hash

from kvoffload.ledger import Ledger
from kvoffload.vllm.groups import ChunkGroup

MEDIA = (getattr(kv_events, "MEDIUM_CPU", "CPU"), getattr(kv_events, "MEDIUM_STORAGE", "STORAGE"))  # host, disk
SWEEP_KEYS = 256
HAS_GROUP = "group_idx" in BlockStored.__struct_fields__


class KVEvents:
    """A chunk is told of as one block of its tokens, by the hash of its last block; the tokens are not told.

    The ledger is asked about the keys of jobs that ended, and about some of the others in each step: so a chunk that
    was evicted is told of a little later. `told`: per group and key, in which tiers the last event left it.
    """

    def __init__(self, ledger: Ledger, groups: Sequence[ChunkGroup]) -> None:
        self.told: list[dict[bytes, tuple[bool, bool]]] = [{} for _ in groups]
        self._ledger = ledger
        self._groups = groups
        self._jobs: dict[int, tuple[int, Sequence[bytes]]] = {}
        self._events: list[KVCacheEvent] = []

    def watch(self, job: int, group: int, keys: Sequence[bytes]) -> None:
        """A job that will change where these are."""
        self._jobs[job] = group, keys

    def ended(self, job: int) -> None:
        group, keys = self._jobs.pop(job, (0, ()))
        self._look(group, keys)

    def look_at_all(self) -> None:
        for group, told in enumerate(self.told):
            self._look(group, list(told))

    def take(self) -> list[KVCacheEvent]:
        """What happened since the last call."""
        for group, told in enumerate(self.told):
            keys = list(islice(told, SWEEP_KEYS))
            for key in keys:  # to the end of the queue
                told[key] = told.pop(key)
            self._look(group, keys)
        events, self._events = self._events, []
        return events

    def _look(self, group: int, keys: Sequence[bytes]) -> None:
        if not keys:
            return
        told = self.told[group]
        host, disk = (self._ledger.states(keys, group, on_disk=on_disk) for on_disk in (False, True))
        gone: tuple[list[bytes], list[bytes]] = ([], [])
        for key, *states in zip(keys, host, disk, strict=True):
            now, before = (states[0] == "ready", states[1] == "ready"), told.get(key, (False, False))
            for tier in (0, 1):
                if now[tier] and not before[tier]:
                    self._stored(group, key, MEDIA[tier])
                elif before[tier] and not now[tier]:
                    gone[tier].append(key)
            if any(now):
                told[key] = now
            else:
                told.pop(key, None)
        for tier in (0, 1):
            if gone[tier]:
                hashes = _hashes(gone[tier])
                self._events.append(BlockRemoved(block_hashes=hashes, medium=MEDIA[tier], **_group(group)))

    def _stored(self, group: int, key: bytes, medium: str) -> None:
        tokens = self._groups[group].tokens_per_chunk
        self._events.append(
            BlockStored(
                block_hashes=_hashes([key]), parent_block_hash=None, token_ids=[], block_size=tokens, lora_id=None,
                medium=medium, lora_name=None, **_group(group),
            )
        )  # fmt: skip


def _hashes(keys: Iterable[bytes]) -> list[bytes | int]:
    return [maybe_convert_block_hash(BlockHash(key)) for key in keys]


def _group(group: int) -> dict[str, int]:
    return {"group_idx": group} if HAS_GROUP else {}
