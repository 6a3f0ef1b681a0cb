"""What the connector's scheduler half adds to a step of vLLM's scheduler, with 256 requests running. No GPU.

    sched.py [--steps 3000]        writes $OUT/sched.json

vLLM's own scheduler with the connector in it; tokens are random and workers report at once, so a step takes no time but
that of the scheduler. Llama-3.1-8B's geometry: blocks of 16 tokens, a chunk each. Prompts of 1,024 to 4,096 tokens, of
which many begin with one of a few system prompts and many were asked before; answers of 64 to 512 tokens. Requests that
ended are replaced at once. vLLM's block pool is filled by what runs, so that hits come from host memory.
"""

import argparse
import gc
import json
import os
import pickle
import random
import tempfile
import time
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

os.environ["PYTHONHASHSEED"] = "0"

import results
import torch
from vllm import SamplingParams
from vllm.config import (
    CacheConfig,
    DeviceConfig,
    KVTransferConfig,
    ModelConfig,
    SchedulerConfig,
    VllmConfig,
)
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.outputs import KVConnectorOutput, ModelRunnerOutput
from vllm.v1.request import Request
from vllm.v1.structured_output import StructuredOutputManager

from kvoffload.messages import Hello, JobResult, Results
from kvoffload.vllm.metadata import Greeting, WorkerReport

RUNNING, QUEUED = 256, 32
BLOCK, LAYERS, HEADS, HEAD_DIM = 16, 32, 8, 128
SLOT_BYTES = LAYERS * 2 * BLOCK * HEADS * HEAD_DIM * 2 + 4096  # and the trailer
HOST_BYTES = 128 << 30
STEP_TOKENS, MOST_TOKENS, VOCAB = 8192, 8192, 128256
PROMPT_TOKENS, ANSWER_TOKENS, SYSTEM_TOKENS, SYSTEM_PROMPTS = (1024, 4096), (64, 512), 1024, 8
DEVICE_BLOCKS = RUNNING * (PROMPT_TOKENS[1] + ANSWER_TOKENS[1]) // 2 // BLOCK
MODEL = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336,
    "num_hidden_layers": LAYERS, "num_attention_heads": 32, "num_key_value_heads": HEADS, "head_dim": HEAD_DIM,
    "vocab_size": VOCAB, "max_position_embeddings": 131072, "torch_dtype": "bfloat16",
}  # fmt: skip
HOOKS = (
    "get_num_new_matched_tokens", "update_state_after_alloc", "build_connector_meta", "update_connector_output",
    "request_finished_all_groups", "get_kv_connector_stats", "take_events", "has_pending_push_work",
)  # fmt: skip


def make_config(folder: Path) -> VllmConfig:
    (folder / "config.json").write_text(json.dumps(MODEL))
    VllmConfig.use_v2_model_runner = property(lambda config: False)
    cache = CacheConfig(block_size=BLOCK, enable_prefix_caching=True)
    cache.num_gpu_blocks = DEVICE_BLOCKS
    return VllmConfig(
        model_config=ModelConfig(
            model=str(folder), skip_tokenizer_init=True, dtype="bfloat16", max_model_len=MOST_TOKENS
        ),
        cache_config=cache,
        scheduler_config=SchedulerConfig(
            max_num_seqs=RUNNING, max_num_batched_tokens=STEP_TOKENS, max_model_len=MOST_TOKENS,
            is_encoder_decoder=False, enable_chunked_prefill=True, async_scheduling=False,
        ),
        device_config=DeviceConfig("cpu"),
        kv_transfer_config=KVTransferConfig(
            kv_connector="KVOffloadConnector", kv_connector_module_path="kvoffload.vllm", kv_role="kv_both",
            kv_connector_extra_config={"host": HOST_BYTES},
        ),
    )  # fmt: skip


class Engine:
    """vLLM's scheduler; `step()` is one turn of its loop, and `hook_ns` what our hooks took in it."""

    def __init__(self, config: VllmConfig) -> None:
        init_none_hash(sha256)
        spec = FullAttentionSpec(block_size=BLOCK, num_kv_heads=HEADS, head_size=HEAD_DIM, dtype=torch.bfloat16)
        layers = [f"layer {i}" for i in range(LAYERS)]
        self.scheduler = Scheduler(
            vllm_config=config, kv_cache_config=KVCacheConfig(DEVICE_BLOCKS, [], [KVCacheGroupSpec(layers, spec)]),
            structured_output_manager=StructuredOutputManager(config), block_size=BLOCK, hash_block_size=BLOCK,
            log_stats=True,
        )  # fmt: skip
        connector = self.scheduler.connector
        hello = Hello(0, (SLOT_BYTES,), (1,), HOST_BYTES, HOST_BYTES, "f", pinned=True, device="host")
        connector.set_xfer_handshake_metadata({0: Greeting(hello)})
        self.half = connector.ledger_half
        self.hook_ns: Counter[str] = Counter()
        self.cpu_ns = 0
        for name in HOOKS:
            setattr(connector, name, self._timed(name, getattr(connector, name)))
        self._hasher = get_request_block_hasher(BLOCK, sha256)
        self._chance = random.Random(1)
        self._names = iter(range(1 << 30))
        self._systems = [self._tokens(SYSTEM_TOKENS) for _ in range(SYSTEM_PROMPTS)]
        self._asked: list[list[int]] = []

    def _timed(self, name: str, hook: Any) -> Any:
        def timed(*args: Any, **kwargs: Any) -> Any:
            cpu_start, start = time.thread_time_ns(), time.perf_counter_ns()
            answer = hook(*args, **kwargs)
            self.hook_ns[name] += time.perf_counter_ns() - start
            self.cpu_ns += time.thread_time_ns() - cpu_start
            return answer

        return timed

    def _tokens(self, count: int) -> list[int]:
        return self._chance.choices(range(VOCAB), k=count)

    def _prompt(self) -> list[int]:
        """A third was asked before (of these half goes on), a third has a system prompt, a third is new."""
        kind, length = self._chance.randrange(3), self._chance.randint(*PROMPT_TOKENS)
        if kind == 0 and self._asked:
            known = self._chance.choice(self._asked)
            return known if self._chance.random() < 0.5 else known + self._tokens(self._chance.randrange(1, 512))
        system = self._chance.choice(self._systems) if kind == 1 else []
        prompt = system + self._tokens(length - len(system))
        self._asked.append(prompt)
        return prompt

    def refill(self) -> None:
        while len(self.scheduler.requests) < RUNNING + QUEUED:
            sampling = SamplingParams(max_tokens=self._chance.randint(*ANSWER_TOKENS), ignore_eos=True)
            prompt = self._prompt()[: MOST_TOKENS - ANSWER_TOKENS[1]]
            name = str(next(self._names))
            self.scheduler.add_request(Request(name, prompt, sampling, None, block_hasher=self._hasher))

    def step(self) -> SimpleNamespace:
        self.hook_ns.clear()
        self.cpu_ns = 0
        scheduled = self.scheduler.schedule()
        plan = scheduled.kv_connector_metadata
        start = time.perf_counter_ns()
        message = pickle.dumps(plan, protocol=pickle.HIGHEST_PROTOCOL)
        pickle_ns = time.perf_counter_ns() - start
        self.scheduler.update_from_output(scheduled, self._output(scheduled, plan))
        self.scheduler.has_requests()
        return SimpleNamespace(
            microseconds=sum(self.hook_ns.values()) / 1e3, cpu_us=self.cpu_ns / 1e3, pickle_us=pickle_ns / 1e3,
            message_bytes=len(message), running=len(self.scheduler.running),
            by_hook={name: ns / 1e3 for name, ns in self.hook_ns.items()},
        )  # fmt: skip

    def _output(self, scheduled: Any, plan: Any) -> ModelRunnerOutput:
        names = list(scheduled.num_scheduled_tokens)
        sampled = [[self._chance.randrange(VOCAB)] if self._is_complete(name) else [] for name in names]
        jobs = [*plan.early, *plan.stores, *(job for load in plan.loads for job in load.jobs)]
        done = tuple(JobResult(job.id, True, len(job.slots) * SLOT_BYTES, 1e-4) for job in jobs)
        return ModelRunnerOutput(
            req_ids=names, req_id_to_index={name: index for index, name in enumerate(names)}, sampled_token_ids=sampled,
            kv_connector_output=KVConnectorOutput(
                finished_recving={load.request_id for load in plan.loads},
                kv_connector_worker_meta=WorkerReport((Results(0, done),)) if done else None,
            ),
        )  # fmt: skip

    def _is_complete(self, name: str) -> bool:
        """vLLM has counted the step's tokens as computed already."""
        request = self.scheduler.requests[name]
        return request.num_computed_tokens >= request.num_tokens


def measure(engine: Engine, steps: int) -> list[SimpleNamespace]:
    """Steps with all places taken, after the first `steps` / 2 of them."""
    samples: list[SimpleNamespace] = []
    for _ in range(steps // 2):
        engine.refill()
        engine.step()
    gc.collect()
    gc.freeze()  # as vLLM's engine does
    while len(samples) < steps:
        engine.refill()
        samples.append(engine.step())
    return samples


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=3000)
    steps = parser.parse_args().steps
    with tempfile.TemporaryDirectory() as folder:
        engine = Engine(make_config(Path(folder)))
        samples = measure(engine, steps)
    microseconds = [sample.microseconds for sample in samples]
    metrics = {
        f"sched.us_p99.r{RUNNING}": results.percentile(microseconds, 99),
        f"sched.us_p50.r{RUNNING}": results.percentile(microseconds, 50),
        f"sched.pickle_us_p99.r{RUNNING}": results.percentile([sample.pickle_us for sample in samples], 99),
    }
    results.write(
        "sched", metrics, steps=steps, us=results.spread(microseconds),
        cpu_us=results.spread([sample.cpu_us for sample in samples]),  # where others use the machine too
        running=results.spread([sample.running for sample in samples]),
        message_bytes=results.spread([sample.message_bytes for sample in samples]),
        us_by_hook={name: results.spread([sample.by_hook.get(name, 0.0) for sample in samples]) for name in HOOKS},
        counters=dict(engine.half.counters),
    )  # fmt: skip


if __name__ == "__main__":
    main()
