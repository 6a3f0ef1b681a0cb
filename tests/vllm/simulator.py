"""vLLM's real scheduler, connector hooks and output aggregation around a model made of arithmetic.

Each token's KV is a number that follows from all tokens before it, so every block that a step reads is checked for what
it must hold: thousands of steps a second instead of a real model's hundred, on any vLLM whose Python can be imported.
"""

from __future__ import annotations

import pickle
import random
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from vllm import SamplingParams
from vllm.config import (
    CacheConfig,
    DeviceConfig,
    KVEventsConfig,
    KVTransferConfig,
    ModelConfig,
    SchedulerConfig,
    VllmConfig,
)
from vllm.distributed.kv_transfer import kv_transfer_state
from vllm.distributed.kv_transfer.kv_connector.utils import KVOutputAggregator
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole
from vllm.forward_context import set_forward_context
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec, SlidingWindowSpec
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus
from vllm.v1.structured_output import StructuredOutputManager
from vllm.v1.worker.gpu.kv_connector import ActiveKVConnector
from vllm.v1.worker.kv_connector_model_runner_mixin import KVConnectorModelRunnerMixin

import kvoffload.vllm.start
from kvoffload import _C
from kvoffload.vllm import KVOffloadConnector

BLOCK, LAYERS, LANES, VOCAB = 16, 2, 4, 997
MASK = (1 << 62) - 1


@dataclass(frozen=True)
class Setting:
    asynchronous: bool = False
    runner_v2: bool = False
    ranks: int = 1
    blocks: int = 40
    blocks_per_chunk: int = 1
    host_chunks: int = 200
    batched_tokens: int = 256
    deadline_seconds: float = 30.0
    disk: str = ""
    disk_chunks: int = 400
    write_through: bool = False
    kv_events: bool = False
    worth_loading: str = "always"  # its model takes no time, so that hardly anything would be
    windows: tuple[int | None, ...] = (None,)  # of each KV group: tokens that a token sees, itself included; None: all


def follow(value: int, token: int) -> int:
    """The KV of a token behind one with KV `value`."""
    return (value * 6364136223846793005 + token * 1442695040888963407 + 11) & MASK


@dataclass
class Sequence:
    """A request as the worker knows it."""

    tokens: list[int]
    tables: list[list[int]]  # of each group
    values: list[int] = field(default_factory=list)

    def value(self, position: int) -> int:
        while len(self.values) <= position:
            at = len(self.values)
            self.values.append(follow(self.values[-1] if at else 0, self.tokens[at]))
        return self.values[position]


class Worker:
    """One rank. Calls the connector in the order of the runner that it stands for, through vLLM's own code."""

    def __init__(self, config: VllmConfig, kv_cache_config: KVCacheConfig, rank: int, setting: Setting) -> None:
        self.config, self.rank, self.setting = config, rank, setting
        shape = (kv_cache_config.num_blocks, 1, BLOCK, LANES)
        pool = [torch.zeros(shape, dtype=torch.int64) for _ in range(LAYERS)]  # a block is of one group at a time
        self.layers = {name: pool[i] for names in _layer_names(setting) for i, name in enumerate(names)}
        self.connector = KVOffloadConnector(config, KVConnectorRole.WORKER, kv_cache_config)
        self.sequences: dict[str, Sequence] = {}
        self.wrong: list[str] = []  # blocks read that did not hold what they must
        self.failures: dict[str, float] = {}  # kind of job -> how often its copies fail
        with self._current():
            if setting.runner_v2:
                self.hooks = ActiveKVConnector(config, self.layers)
            else:
                self.connector.register_kv_caches(self.layers)
        self._mover = self.connector.mover_half.mover
        self._mover_submit, self._mover.submit = self._mover.submit, self._submit
        self._chance = random.Random(rank)

    def _submit(self, job: Any, **options: Any) -> Any:
        if self._chance.random() < self.failures.get(job.kind, 0.0):
            _C.fault_arm("copy", 0, 1)
        return self._mover_submit(job, **options)

    def _current(self) -> Any:
        kv_transfer_state._KV_CONNECTOR_AGENT = self.connector
        kvoffload.vllm.start.get_pp_group = lambda: SimpleNamespace(rank_in_group=0, world_size=1)
        kvoffload.vllm.start.get_tp_group = lambda: SimpleNamespace(
            rank_in_group=self.rank, world_size=self.setting.ranks
        )
        return set_forward_context(None, self.config)

    def step(self, scheduled: Any) -> ModelRunnerOutput:
        with self._current():
            return self._step_v2(scheduled) if self.setting.runner_v2 else self._step_v1(scheduled)

    def _step_v1(self, scheduled: Any) -> ModelRunnerOutput:
        self.connector.handle_preemptions(scheduled.kv_connector_metadata)
        if not scheduled.total_num_scheduled_tokens:
            return KVConnectorModelRunnerMixin.kv_connector_no_forward(scheduled, self.config)
        self._update(scheduled)
        with KVConnectorModelRunnerMixin.maybe_get_kv_connector_output(scheduled) as connector_output:
            sampled = self._forward(scheduled)
        return self._output(sampled, connector_output)

    def _step_v2(self, scheduled: Any) -> ModelRunnerOutput:
        if not scheduled.total_num_scheduled_tokens:
            return self.hooks.no_forward(scheduled)
        self._update(scheduled)
        self.hooks.pre_forward(scheduled)
        sampled = self._forward(scheduled)
        return self._output(sampled, self.hooks.post_forward(scheduled.finished_req_ids))

    def _output(self, sampled: dict[str, list[int]], connector_output: Any) -> ModelRunnerOutput:
        return ModelRunnerOutput(
            req_ids=list(sampled),
            req_id_to_index={name: index for index, name in enumerate(sampled)},
            sampled_token_ids=list(sampled.values()),
            kv_connector_output=connector_output,
        )

    def _update(self, scheduled: Any) -> None:
        for name in scheduled.finished_req_ids:
            self.sequences.pop(name, None)
        for new in scheduled.scheduled_new_reqs:
            known = self.sequences.get(new.req_id)
            tokens = list(new.prefill_token_ids or new.prompt_token_ids)
            if known is not None and len(known.tokens) > len(tokens):  # sampled, but not yet told to the scheduler
                tokens = known.tokens
            self.sequences[new.req_id] = Sequence(tokens, [list(blocks) for blocks in new.block_ids])
        running = scheduled.scheduled_cached_reqs
        for name, blocks in zip(running.req_ids, running.new_block_ids, strict=True):
            sequence = self.sequences[name]
            if name in running.resumed_req_ids:
                sequence.tables = [[] for _ in sequence.tables]
            for table, new_blocks in zip(sequence.tables, blocks or (), strict=False):
                table += new_blocks

    def _forward(self, scheduled: Any) -> dict[str, list[int]]:
        starts = {new.req_id: new.num_computed_tokens for new in scheduled.scheduled_new_reqs}
        running = scheduled.scheduled_cached_reqs
        starts.update(zip(running.req_ids, running.num_computed_tokens, strict=True))
        return {name: self._run(name, starts[name], count) for name, count in scheduled.num_scheduled_tokens.items()}

    def _run(self, name: str, start: int, count: int) -> list[int]:
        """Read what was computed before, write `count` tokens more; the next token if this was the last known one."""
        sequence = self.sequences[name]
        end = start + count
        sequence.value(end - 1)
        content = torch.tensor(sequence.values[:end])
        groups = [group for group in range(len(self.setting.windows)) for _ in range(LAYERS)]
        rows = [torch.tensor([table[p // BLOCK] * BLOCK + p % BLOCK for p in range(end)]) for table in sequence.tables]
        for index, (group, layer) in enumerate(zip(groups, self.layers.values(), strict=True)):
            cells, window = layer.view(-1, LANES), self.setting.windows[group]
            seen = slice(0 if window is None else max(0, start - window + 1), start)
            written = rows[group][start:]
            for lane in range(LANES):
                right = content + index * LANES + lane
                if not torch.equal(cells[rows[group][seen], lane], right[seen]):
                    position = seen.start + int((cells[rows[group][seen], lane] != right[seen]).nonzero()[0])
                    self.wrong.append(f"rank {self.rank}: request {name}, group {group}, token {position} of {end}")
                cells[written, lane] = right[start:]
        if end < len(sequence.tokens):
            return []
        sequence.tokens.append(sequence.values[-1] % VOCAB)
        return [sequence.tokens[-1]]


class Simulation:
    """Scheduler and workers; `step()` is one turn of the engine's loop."""

    def __init__(self, model: Path, setting: Setting) -> None:
        self.setting = setting
        VllmConfig.use_v2_model_runner = property(lambda config: False)  # V2 wants Triton, if only at start
        # 2 layers x 16 tokens x 4 lanes x 8 bytes, and the trailer, rounded up to 4 KiB
        slot_bytes = -(-(LAYERS * BLOCK * LANES * 8 * setting.blocks_per_chunk + 512) // 4096) * 4096
        self.config = _config(model, setting, slot_bytes * setting.host_chunks * setting.ranks)
        VllmConfig.use_v2_model_runner = property(lambda config: setting.runner_v2)
        groups = [
            KVCacheGroupSpec(names, _spec(window))
            for names, window in zip(_layer_names(setting), setting.windows, strict=True)
        ]
        self.kv_cache_config = KVCacheConfig(setting.blocks, [], groups)
        self.workers = [Worker(self.config, self.kv_cache_config, rank, setting) for rank in range(setting.ranks)]
        kind = AsyncScheduler if setting.asynchronous else Scheduler
        self.scheduler = kind(
            vllm_config=self.config,
            kv_cache_config=self.kv_cache_config,
            structured_output_manager=StructuredOutputManager(self.config),
            block_size=BLOCK,
            hash_block_size=BLOCK,
            log_stats=True,
        )
        self.half = self.scheduler.connector.ledger_half
        greetings = {(0, worker.rank): worker.connector.get_handshake_metadata() for worker in self.workers}
        self.scheduler.connector.set_xfer_handshake_metadata_pp_aware(greetings)
        self._aggregator = KVOutputAggregator(setting.ranks)
        self._in_flight: deque[tuple[Any, ModelRunnerOutput]] = deque()
        self._hasher = get_request_block_hasher(BLOCK, sha256)
        self.answers: dict[str, list[int]] = {}  # of requests that were not aborted

    @property
    def wrong(self) -> list[str]:
        return [wrong for worker in self.workers for wrong in worker.wrong]

    def add(self, name: str, prompt: list[int], answer: int) -> None:
        sampling = SamplingParams(max_tokens=answer, temperature=0, ignore_eos=True)
        self.scheduler.add_request(Request(name, prompt, sampling, None, block_hasher=self._hasher))
        self.answers[name] = []

    def abort(self, name: str) -> None:
        del self.answers[name]
        self.scheduler.finish_requests([name], RequestStatus.FINISHED_ABORTED)

    def step(self) -> None:
        if self.scheduler.has_requests():
            scheduled = self.scheduler.schedule()
            message = pickle.dumps(scheduled)
            outputs = [pickle.loads(pickle.dumps(worker.step(pickle.loads(message)))) for worker in self.workers]
            self._in_flight.append((scheduled, self._aggregator.aggregate(outputs)))
        wanted = 1 if self.setting.asynchronous and self.scheduler.has_requests() else 0
        while len(self._in_flight) > wanted:
            self._take(*self._in_flight.popleft())

    def _take(self, scheduled: Any, output: ModelRunnerOutput) -> None:
        for replies in self.scheduler.update_from_output(scheduled, output).values():
            for reply in replies.outputs:
                if reply.request_id in self.answers:
                    self.answers[reply.request_id] += reply.new_token_ids

    def drain(self, steps: int = 20_000) -> None:
        for _ in range(steps):
            if not self.scheduler.has_requests() and not self._in_flight:
                return
            self.step()
        raise AssertionError(f"stuck: {vars(self.half)}")

    def close(self) -> None:
        for worker in self.workers:
            worker.connector.shutdown()
        self.scheduler.shutdown()

    def check_leaks(self) -> None:
        _C.fault_disarm_all()
        self.drain()
        assert self.scheduler.reset_prefix_cache(), "a block is still held"
        half = self.half
        assert not half._requests and not half._open_jobs and not len(half._fence) and not half._early, vars(half)
        assert not any(half._lookup._loading)
        stats = half.ledger.stats()
        assert not any(stats[name] for name in ("jobs_in_flight", "given_up_jobs", "holds", "quarantined_bytes")), stats
        half.ledger.check()
        assert all(worker.connector.mover_half.idle() for worker in self.workers)


def _layer_names(setting: Setting) -> list[list[str]]:
    return [[f"layer {group}.{i}" for i in range(LAYERS)] for group in range(len(setting.windows))]


def _spec(window: int | None) -> FullAttentionSpec | SlidingWindowSpec:
    shape: dict[str, Any] = {"block_size": BLOCK, "num_kv_heads": 1, "head_size": LANES, "dtype": torch.float32}
    spec = FullAttentionSpec(**shape) if window is None else SlidingWindowSpec(**shape, sliding_window=window)
    assert spec.page_size_bytes == BLOCK * LANES * 8
    return spec


def answer_of(prompt: list[int], answer: int) -> list[int]:
    """What the model of arithmetic says."""
    sequence = Sequence(list(prompt), [])
    for _ in range(answer):
        sequence.tokens.append(sequence.value(len(sequence.tokens) - 1) % VOCAB)
    return sequence.tokens[len(prompt) :]


def prompts(chance: random.Random, count: int) -> list[list[int]]:
    """Random prompts of 1 to 200 tokens; many begin like one of a few others."""
    stems = [[chance.randrange(VOCAB) for _ in range(200)] for _ in range(3)]
    made = []
    for _ in range(count):
        stem = chance.choice(stems)[: chance.randrange(200)]
        made.append(stem + [chance.randrange(VOCAB) for _ in range(chance.randrange(1, 40))])
    return made


def _disk_options(setting: Setting, host_bytes: int) -> dict[str, Any]:
    if not setting.disk:
        return {}
    slots_bytes = host_bytes // setting.host_chunks * setting.disk_chunks
    size = slots_bytes * 17 // 16 + setting.ranks * (256 << 10)  # the manifest, headers and maps
    return {"disk": setting.disk, "disk_size": size, "write_through": setting.write_through}


def _config(model: Path, setting: Setting, host_bytes: int) -> VllmConfig:
    init_none_hash(sha256)
    cache = CacheConfig(block_size=BLOCK, enable_prefix_caching=True)
    cache.num_gpu_blocks = setting.blocks
    config = VllmConfig(
        model_config=ModelConfig(model=str(model), skip_tokenizer_init=True, dtype="float32", max_model_len=512),
        cache_config=cache,
        scheduler_config=SchedulerConfig(
            max_num_seqs=16,
            max_num_batched_tokens=setting.batched_tokens,
            max_model_len=512,
            is_encoder_decoder=False,
            enable_chunked_prefill=True,
            async_scheduling=setting.asynchronous,
        ),
        device_config=DeviceConfig("cpu"),
        kv_events_config=KVEventsConfig(enable_kv_cache_events=True, publisher="null") if setting.kv_events else None,
        kv_transfer_config=KVTransferConfig(
            kv_connector="KVOffloadConnector",
            kv_connector_module_path="kvoffload.vllm",
            kv_role="kv_both",
            kv_connector_extra_config={
                "host": host_bytes,
                "blocks_per_chunk": setting.blocks_per_chunk,
                "deadline_seconds": setting.deadline_seconds,
                "worth_loading": setting.worth_loading,
                **_disk_options(setting, host_bytes),
            },
        ),
    )
    config.parallel_config.world_size = setting.ranks
    config.scheduler_config.async_scheduling = setting.asynchronous  # switched off on CPU
    return config
