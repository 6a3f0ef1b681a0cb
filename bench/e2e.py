"""A real vLLM on one GPU: time to first token of a prompt whose KV is in host memory, and prefill throughput.

    e2e.py {none|native|lmcache|kvoffload} {v1|v2}

Llama-3.1-8B geometry, bf16, dummy weights (right for times, useless for checking output), 16 GiB of host memory, CUDA
graphs for decode. One process for each system and model runner. Every prompt is asked once cold, then, with vLLM's own
prefix cache emptied, once more: the second answer is `ttft_ms`. The cached tokens that vLLM counted prove that it was a
hit; where they are too few, that is named as a problem and the figure is left out.

KVO_E2E_LENGTHS, KVO_E2E_REPEATS: prompt lengths and repeats. KVO_E2E_LOCK=FILE: several may be started at once; each
imports, then waits for the ones before it to end.
"""

import fcntl
import json
import os
import random
import statistics
import sys
import tempfile
import time
from pathlib import Path

SYSTEM, RUNNER = sys.argv[1], sys.argv[2]
os.environ["VLLM_USE_V2_MODEL_RUNNER"] = {"v1": "0", "v2": "1"}[RUNNER]
os.environ.update(VLLM_ENABLE_V1_MULTIPROCESSING="0", PYTHONHASHSEED="0")
os.environ.update(LMCACHE_CHUNK_SIZE="256", LMCACHE_LOCAL_CPU="True", LMCACHE_TRACK_USAGE="false")
os.environ.update(LMCACHE_MAX_LOCAL_CPU_SIZE="16")

import results  # noqa: E402
from vllm import LLM, SamplingParams  # noqa: E402  (after the environment is set)

LENGTHS = [int(n) for n in os.environ.get("KVO_E2E_LENGTHS", "512,2048,8192,32768,65536").split(",")]
REPEATS = int(os.environ.get("KVO_E2E_REPEATS", "3"))
HOST_BYTES = 16 << 30
HIT_SHARE = 0.95  # a tail shorter than a chunk is computed
KV_BYTES_PER_TOKEN = 2 * 32 * 8 * 128 * 2
LLAMA_8B = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336,
    "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 128256,
    "rms_norm_eps": 1e-5, "rope_theta": 500000.0, "max_position_embeddings": 131072, "torch_dtype": "bfloat16",
    "hidden_act": "silu", "tie_word_embeddings": False, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
CONNECTORS = {
    "none": None,
    "native": {
        "kv_connector": "OffloadingConnector",
        "kv_role": "kv_both",
        "kv_connector_extra_config": {"cpu_bytes_to_use": HOST_BYTES},
    },
    "lmcache": {"kv_connector": "LMCacheConnectorV1", "kv_role": "kv_both"},
    "kvoffload": {
        "kv_connector": "KVOffloadConnector",
        "kv_connector_module_path": "kvoffload.vllm",
        "kv_role": "kv_both",
        "kv_connector_extra_config": {"host": HOST_BYTES},
    },
}


def make_llm() -> LLM:
    folder = Path(tempfile.mkdtemp())
    (folder / "config.json").write_text(json.dumps(LLAMA_8B))
    connector = CONNECTORS[SYSTEM]
    offload = {"kv_transfer_config": connector} if connector else {}
    return LLM(
        model=str(folder), load_format="dummy", skip_tokenizer_init=True, max_model_len=70000, dtype="bfloat16",
        gpu_memory_utilization=0.5, enable_prefix_caching=True, max_num_batched_tokens=16384,
        compilation_config={"mode": 0, "cudagraph_mode": "FULL_DECODE_ONLY"}, **offload,
    )  # fmt: skip


class Bench:
    def __init__(self) -> None:
        start = time.perf_counter()
        self.llm = make_llm()
        self.start_seconds = time.perf_counter() - start
        self.rng = random.Random(0)
        self.sampling = SamplingParams(max_tokens=1, temperature=0, detokenize=False, ignore_eos=True)
        self.metrics: dict[str, float] = {}
        self.problems: list[str] = []

    def prompt(self, tokens: int) -> list[int]:
        return [self.rng.randrange(1000, 100000) for _ in range(tokens)]

    def generate(self, prompts: list[list[int]]) -> tuple[float, int]:
        """Seconds for one token of each prompt, and how many prompt tokens came from a cache."""
        start = time.perf_counter()
        outputs = self.llm.generate([{"prompt_token_ids": p} for p in prompts], self.sampling, use_tqdm=False)
        return time.perf_counter() - start, sum(output.num_cached_tokens or 0 for output in outputs)

    def settle(self) -> None:
        """A few steps in which deferred stores can run, then vLLM forgets what its GPU blocks hold."""
        for _ in range(3):
            self.generate([self.prompt(32)])
        time.sleep(0.3)
        if not self.llm.reset_prefix_cache():
            self.problems.append("reset_prefix_cache: a block was still held")

    def record(self, key: str, value: float, cached: int, wanted: int) -> None:
        if SYSTEM != "none" and cached < HIT_SHARE * wanted:
            self.problems.append(f"{key}: only {cached} of {wanted} tokens came from the cache: not a hit, left out")
            return
        if SYSTEM == "none" and cached:
            self.problems.append(f"{key}: {cached} tokens came from a cache although there is none")
        self.metrics[f"e2e.{SYSTEM}.{RUNNER}.{key}"] = value

    def time_to_first_token(self, tokens: int) -> list[tuple[float, float, int]]:
        rows = []
        for _ in range(REPEATS):
            prompt = self.prompt(tokens)
            cold, _ = self.generate([prompt])
            self.settle()
            rows.append((cold, *self.generate([prompt])))
            self.llm.reset_prefix_cache()
        hit, cached = statistics.median(r[1] for r in rows), min(r[2] for r in rows)
        self.record(f"ttft_ms.{tokens}", hit * 1e3, cached, tokens)
        self.metrics[f"e2e.{SYSTEM}.{RUNNER}.ttft_cold_ms.{tokens}"] = statistics.median(r[0] for r in rows) * 1e3
        floor = tokens * KV_BYTES_PER_TOKEN / 55.4e9
        if SYSTEM != "none" and hit < floor:
            self.problems.append(
                f"ttft_ms.{tokens}: {hit * 1e3:.1f} ms, under the link's floor of {floor * 1e3:.1f} ms"
            )
        return rows

    def throughput(self) -> None:
        batch = [self.prompt(512) for _ in range(200)]
        tokens = sum(map(len, batch))
        cold, cached = self.generate(batch)
        self.metrics[f"e2e.{SYSTEM}.{RUNNER}.tokens_per_s.hit0"] = tokens / cold
        if cached:
            self.problems.append(f"tokens_per_s.hit0: {cached} tokens came from a cache")
        time.sleep(0.2)
        self.settle()
        hit, cached = self.generate(batch)
        if SYSTEM != "none":
            self.record("tokens_per_s.hit100", tokens / hit, cached, tokens)


def wait_for_turn() -> None:
    if path := os.environ.get("KVO_E2E_LOCK"):
        descriptor = os.open(path, os.O_CREAT | os.O_RDWR)  # open until the process has ended and freed its GPU memory
        fcntl.flock(descriptor, fcntl.LOCK_EX)


def main() -> None:
    wait_for_turn()
    bench = Bench()
    bench.generate([bench.prompt(256)])
    bench.generate([bench.prompt(4096)])
    rows = {}
    for tokens in LENGTHS:
        rows[tokens] = bench.time_to_first_token(tokens)
        print(f"{SYSTEM} {RUNNER} {tokens}: {[tuple(round(v, 4) for v in row) for row in rows[tokens]]}", flush=True)
    bench.throughput()
    bench.metrics[f"e2e.{SYSTEM}.{RUNNER}.start_s"] = bench.start_seconds
    results.write(
        f"e2e-{SYSTEM}-{RUNNER}", bench.metrics, connector=CONNECTORS[SYSTEM], repeats=REPEATS,
        seconds_cold_hit_cached=rows, problems=bench.problems,
    )  # fmt: skip
    for problem in bench.problems:
        print(f"PROBLEM {problem}", flush=True)
    os._exit(0)  # LMCache's threads may keep the process, and with it the lock, for ever


if __name__ == "__main__":
    main()
