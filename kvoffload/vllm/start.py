"""Making the two halves from vLLM's configuration, and the line that says what is active."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from vllm.distributed.parallel_state import get_pp_group, get_tp_group
from vllm.logger import init_logger
from vllm.v1.core.kv_cache_utils import resolve_kv_cache_block_sizes

from kvoffload.errors import InvalidInput
from kvoffload.layout import KVLayout
from kvoffload.messages import Hello
from kvoffload.mover import Mover
from kvoffload.vllm.options import Options
from kvoffload.vllm.scheduler import LedgerHalf
from kvoffload.vllm.support import runner_is_v2
from kvoffload.vllm.worker import MoverHalf

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.kv_cache_interface import KVCacheConfig

logger = init_logger("vllm.kvoffload")


def make_ledger_half(options: Options, vllm_config: VllmConfig, kv_cache_config: KVCacheConfig) -> LedgerHalf:
    transfer = vllm_config.kv_transfer_config
    assert transfer is not None
    if transfer.kv_load_failure_policy != "recompute":
        # vLLM reads it after this constructor. "fail" would end requests for a failed load, which is only a miss.
        logger.info("kvoffload: kv_load_failure_policy set to 'recompute' (was %r)", transfer.kv_load_failure_policy)
        transfer.kv_load_failure_policy = "recompute"
    _, tokens_per_hash = resolve_kv_cache_block_sizes(kv_cache_config, vllm_config)
    return LedgerHalf(
        options,
        kv_cache_config,
        tokens_per_hash,
        vllm_config.parallel_config.world_size,
        prefix_caching=bool(vllm_config.cache_config.enable_prefix_caching),
        speculates=vllm_config.speculative_config is not None,
    )


def make_mover_half(options: Options, vllm_config: VllmConfig, layout: KVLayout) -> MoverHalf:
    """Raises InvalidInput when `host`, divided over the ranks of a node, holds no chunk; MemoryLimit as Mover does."""
    ranks = vllm_config.parallel_config.local_world_size
    host_bytes = options.host // ranks
    least = len(layout.groups) * max(group.slot_bytes for group in layout.groups)
    if host_bytes < least:
        raise InvalidInput(
            f"option 'host' is {options.host} bytes for {ranks} rank(s) of this node, {host_bytes} each; one chunk of "
            f"each KV group needs {least}: give at least {least * ranks} (or lower 'blocks_per_chunk')"
        )
    pipeline, tensor = get_pp_group(), get_tp_group()
    rank = pipeline.rank_in_group * tensor.world_size + tensor.rank_in_group
    mover = Mover(layout, host=host_bytes, rank=rank, path=options.path, ring=options.ring, calibrate=options.calibrate)
    return MoverHalf(mover, options.deadline_seconds)


def log_start_line(hellos: Sequence[Hello], half: LedgerHalf, options: Options, vllm_config: VllmConfig) -> None:
    """One line: bytes per rank and in all, chunks, tokens, pinned, policy, device, runner, paths and their memory."""
    first = hellos[0]
    bytes_per_token = sum(
        slot_bytes / group.tokens_per_chunk for slot_bytes, group in zip(first.slot_bytes, half.groups, strict=True)
    )
    chunks = ", ".join(
        f"{group.blocks_per_chunk} x {group.tokens_per_block} tokens = {slot_bytes} bytes"
        for slot_bytes, group in zip(first.slot_bytes, half.groups, strict=True)
    )
    logger.info(
        "kvoffload: host memory %s a rank, %s on %d rank(s) (%s ready), %s; chunks of %s; %d chunks, %d tokens fit; "
        "policy %s; device %s, runner %s, deadline %g s; ring of %s on each device, paths %s",
        _size(first.host_bytes),
        _size(len(hellos) * first.host_bytes),
        len(hellos),
        _size(sum(hello.ready_bytes for hello in hellos)),
        "pinned" if all(hello.pinned for hello in hellos) else "not pinned",
        chunks,
        first.host_bytes // max(first.slot_bytes),
        first.host_bytes / bytes_per_token,
        options.policy,
        _each(hello.device for hello in hellos),
        "V2" if runner_is_v2(vllm_config) else "V1",
        options.deadline_seconds,
        _each(_size(hello.ring_bytes) for hello in hellos),
        _each(hello.paths for hello in hellos),
    )


def _each(words: Iterable[str]) -> str:
    """What the ranks said, once where they said the same."""
    return " | ".join(sorted(set(words)))


def _size(count: int) -> str:
    unit, name = (1 << 30, "GiB") if count >= 1 << 30 else (1 << 20, "MiB")
    return f"{count / unit:.2f} {name}"
