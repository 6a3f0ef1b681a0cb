"""Making the two halves from vLLM's configuration, and the line that says what is active."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from vllm.distributed.parallel_state import get_pp_group, get_tp_group, get_world_group
from vllm.logger import init_logger
from vllm.v1.core.kv_cache_utils import resolve_kv_cache_block_sizes

from kvoffload.config import format_size
from kvoffload.errors import InvalidInput
from kvoffload.free_memory import available_bytes
from kvoffload.layout import KVLayout
from kvoffload.ledger_disk import LedgerDir
from kvoffload.messages import Hello
from kvoffload.mover import Mover
from kvoffload.vllm.groups import ChunkGroup
from kvoffload.vllm.metadata import Greeting
from kvoffload.vllm.namespace import namespace_of, why_not_kept
from kvoffload.vllm.options import Options
from kvoffload.vllm.scheduler import LedgerHalf
from kvoffload.vllm.steps import FullStep
from kvoffload.vllm.support import runner_is_v2, takes_whole_prompts
from kvoffload.vllm.worker import MoverHalf

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.kv_cache_interface import KVCacheConfig

logger = init_logger("vllm.kvoffload")

FREE_SHARE = 2  # without a size: one part in so many of the memory that is free
ALIGN_BYTES = 1 << 20


def make_ledger_half(options: Options, vllm_config: VllmConfig, kv_cache_config: KVCacheConfig) -> LedgerHalf:
    transfer = vllm_config.kv_transfer_config
    assert transfer is not None
    if transfer.kv_load_failure_policy != "recompute":
        # vLLM reads it after this constructor. "fail" would end requests for a failed load, which is only a miss.
        logger.info("kvoffload: kv_load_failure_policy set to 'recompute' (was %r)", transfer.kv_load_failure_policy)
        transfer.kv_load_failure_policy = "recompute"
    writes, events = options.disk_writes_per_day, vllm_config.kv_events_config
    scheduler = vllm_config.scheduler_config
    _, tokens_per_hash = resolve_kv_cache_block_sizes(kv_cache_config, vllm_config)
    return LedgerHalf(
        options,
        kv_cache_config,
        tokens_per_hash,
        vllm_config.parallel_config.world_size,
        prefix_caching=bool(vllm_config.cache_config.enable_prefix_caching),
        speculates=vllm_config.speculative_config is not None,
        disk_writes_per_day=writes and max(writes // vllm_config.parallel_config.local_world_size, 1),
        kv_events=events is not None and events.enable_kv_cache_events,
        steps_in_flight=_steps_in_flight(vllm_config),
        full_step=FullStep(scheduler.max_num_batched_tokens, scheduler.max_num_seqs),
        whole_prompts=takes_whole_prompts(kv_cache_config),
    )


def _steps_in_flight(vllm_config: VllmConfig) -> int:
    """How many steps vLLM keeps under way; where a version does not say it, as its executors do."""
    said = getattr(vllm_config, "max_concurrent_batches", None)
    if said is not None:
        return int(said)
    pipeline = vllm_config.parallel_config.pipeline_parallel_size
    return max(pipeline, 2 if vllm_config.scheduler_config.async_scheduling else 1)


def make_mover_half(options: Options, vllm_config: VllmConfig, layout: KVLayout) -> MoverHalf:
    """Raises InvalidInput when `host`, divided over the ranks of a node, holds no chunk; MemoryLimit as Mover does."""
    ranks = vllm_config.parallel_config.local_world_size
    host_bytes = _share_of_free_memory(layout, ranks) if options.host is None else options.host // ranks
    least = len(layout.groups) * max(group.slot_bytes for group in layout.groups)
    if host_bytes < least:
        given = "not given: half of what is free" if options.host is None else f"{options.host} bytes"
        raise InvalidInput(
            f"option 'host' is {given} for {ranks} rank(s) of this node, {host_bytes} each; one chunk of "
            f"each KV group needs {least}: give at least {least * ranks} (or lower 'blocks_per_chunk')"
        )
    pipeline, tensor = get_pp_group(), get_tp_group()
    rank = pipeline.rank_in_group * tensor.world_size + tensor.rank_in_group
    disk = options.disk and replace(
        options.disk, size_bytes=options.disk.size_bytes // ranks, namespace=namespace_of(vllm_config)
    )
    mover = Mover(
        layout, host=host_bytes, rank=rank, path=options.path, ring=options.ring, calibrate=options.calibrate, disk=disk
    )
    return MoverHalf(mover, options.deadline_seconds)


def _share_of_free_memory(layout: KVLayout, ranks: int) -> int:
    """The same on all ranks: all have looked before one of them takes any, and the least counts."""
    free = available_bytes()
    if layout.device == "host":  # KV tensors in plain memory take theirs only as they are written
        free -= ranks * sum(group.num_blocks * group.block_bytes for group in layout.groups)
    share = torch.tensor([max(free, 0) // FREE_SHARE // ranks // ALIGN_BYTES * ALIGN_BYTES])
    if (world := get_world_group()).world_size > 1:
        torch.distributed.all_reduce(share, torch.distributed.ReduceOp.MIN, group=world.cpu_group)
    return int(share)


def greeting_of(mover: Mover) -> Greeting:
    if mover.disk is None:
        return Greeting(mover.hello())
    report = mover.disk.tier.report()
    way = f"{report['io']}{' (' + report['io_note'] + ')' if report['io_note'] else ''}"
    return Greeting(
        mover.hello(), mover.disk.options.fingerprint(mover.layout), tuple(mover.disk.tier.paths),
        f"{way}, {'O_DIRECT' if report['direct'] else 'page cache'}, depth {report['depth']}",
    )  # fmt: skip


def begin(greetings: Sequence[Greeting], half: LedgerHalf, options: Options, vllm_config: VllmConfig) -> None:
    """All workers have spoken: from here on the ledger half serves. Raises InvalidInput where they disagree."""
    hellos = [greeting.hello for greeting in greetings]
    half.hello(hellos, _open_directory(greetings, options))
    in_words = "no disk"
    if options.disk is not None:
        why = why_not_kept(vllm_config)
        if why:
            logger.warning("kvoffload: the disk is used for this run only: %s", why)
            half.keep_nothing()
        in_words = _disk_in_words(greetings, half, options, f"not kept across restarts: {why}" if why else "kept")
    log_start_line(hellos, half, options, vllm_config, in_words)


def _open_directory(greetings: Sequence[Greeting], options: Options) -> LedgerDir | None:
    if options.disk is None:
        return None
    fingerprints = sorted({greeting.fingerprint for greeting in greetings})
    if len(fingerprints) > 1:
        raise InvalidInput(
            f"the ranks would keep their KV under different names ({', '.join(fingerprints)}): they run other versions "
            "of vLLM, or other files of the model"
        )
    hello = greetings[0].hello
    slabs = [path for greeting in greetings for path in greeting.data_files if os.path.exists(path)]  # of this node
    return LedgerDir(
        options.disk.directories[0], fingerprints[0], options.disk.dp, disk_bytes=hello.disk_bytes,
        slot_bytes=hello.slot_bytes, data_files=slabs,
    )  # fmt: skip


def _disk_in_words(greetings: Sequence[Greeting], half: LedgerHalf, options: Options, kept: str) -> str:
    assert options.disk is not None
    stats = half.ledger.stats()["disk"]
    disk_bytes = greetings[0].hello.disk_bytes
    writes = options.disk_writes_per_day
    return ", ".join(
        [
            f"disk {_size(disk_bytes)} a rank, {_size(len(greetings) * disk_bytes)} on all, in "
            f"{' '.join(options.disk.directories)} by {_each(greeting.disk_io for greeting in greetings)}",
            f"{stats['capacity_slots']} chunks, {stats['ready_keys']} found",
            kept,
            "write-through" if options.write_through else "write-back",
            f"admission {options.admission}",
            f"{format_size(writes)} written a day at most" if writes else "no limit of writes",
        ]
    )


def log_start_line(
    hellos: Sequence[Hello], half: LedgerHalf, options: Options, vllm_config: VllmConfig, disk: str = "no disk"
) -> None:
    """One line: bytes per rank and in all, chunks, blocks, tokens, pinned, policy, disk, device, runner, paths."""
    first = hellos[0]
    bytes_per_token = sum(
        group.stored_bytes(slot_bytes) for slot_bytes, group in zip(first.slot_bytes, half.groups, strict=True)
    )
    chunks = ", ".join(
        f"{group.blocks_per_chunk} x {group.tokens_per_block} tokens = {slot_bytes} bytes{_window_in_words(group)}"
        for slot_bytes, group in zip(first.slot_bytes, half.groups, strict=True)
    )
    chunks_fit = first.host_bytes // max(first.slot_bytes)
    logger.info(
        "kvoffload: host memory %s a rank, %s on %d rank(s)%s%s (%s ready), %s; chunks of %s; %d chunks, %d blocks, %d "
        "tokens fit; whole prompts leave %s; "
        "policy %s; %s; device %s, runner %s, deadline %g s; ring of %s on each device, paths %s",
        _size(first.host_bytes),
        _size(len(hellos) * first.host_bytes),
        len(hellos),
        _share_in_words(half.groups, vllm_config),
        "" if options.host is not None else ", half of what was free ('host' is not given)",
        _size(sum(hello.ready_bytes for hello in hellos)),
        "pinned" if all(hello.pinned for hello in hellos) else "not pinned",
        chunks,
        chunks_fit,
        chunks_fit * max(first.blocks_per_chunk),
        first.host_bytes / bytes_per_token,
        "1 token" if half.whole_prompts else "1 chunk",
        options.policy,
        disk,
        _each(hello.device for hello in hellos),
        "V2" if runner_is_v2(vllm_config) else "V1",
        options.deadline_seconds,
        _each(_size(hello.ring_bytes) for hello in hellos),
        _each(hello.paths for hello in hellos),
    )


def _window_in_words(group: ChunkGroup) -> str:
    return "" if group.window_tokens is None else f" (a hit needs the last {group.window_tokens} tokens)"


def _share_in_words(groups: Sequence[ChunkGroup], vllm_config: VllmConfig) -> str:
    ranks = vllm_config.parallel_config.tensor_parallel_size
    same = ranks > 1 and any(group.same_on_ranks for group in groups)
    return f", of which 1/{ranks} counts as MLA keeps the same KV on {ranks} ranks" if same else ""


def log_notes(notes: Sequence[str]) -> None:
    """What the options of another program come to here: one line."""
    if notes:
        logger.warning("kvoffload: %s; see docs/vllm.md", "; ".join(notes))


def _each(words: Iterable[str]) -> str:
    """What the ranks said, once where they said the same."""
    return " | ".join(sorted(set(words)))


def _size(count: int) -> str:
    unit, name = (1 << 30, "GiB") if count >= 1 << 30 else (1 << 20, "MiB")
    return f"{count / unit:.2f} {name}"
