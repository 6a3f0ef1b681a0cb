"""Order inside a real vLLM on a GPU: right tokens and, block by block, right bytes, under memory pressure.

    vllm_order.py [RUNNER ...]    all modes, each in a process of its own; writes vllm-order-*.json, exit code 1: fault
    vllm_order.py RUNNER MODE     one run (v1|v2; none|plain|queue|busy|nofence|nomark), prints one line of JSON

Tiny Llama with random weights, CUDA graphs for decode, stores and loads held back by some milliseconds so that a
missing edge shows. `none` is vLLM alone, whose second round hits its own prefix cache: what the connector's must equal,
token by token, at batch 1. Under preemption tokens may differ by rounding, so there each block's bytes are compared: as
the engine's stream saw them at the store, in the host slot, and on the GPU after the load. `nofence` and
`nomark` are controls that must fail: blocks stored after they were overwritten, and before they were written.
"""

import faulthandler
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
for folder in (HERE.parents[1], HERE.parents[1] / "bench", HERE.parent / "python", HERE):
    sys.path.insert(0, str(folder))

CONTROLS = ("nofence", "nomark")
MODES = ("none", "plain", "queue", "busy", *CONTROLS)
BLOCKS, BLOCK_TOKENS, MODEL_TOKENS = 100, 16, 1024
DEADLINE_SECONDS = 150  # then a run shows where it stands and ends
CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 256, "intermediate_size": 512,
    "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64, "vocab_size": 1024,
    "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "max_position_embeddings": MODEL_TOKENS, "torch_dtype": "bfloat16",
    "hidden_act": "silu", "tie_word_embeddings": False, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip


def make_model(folder: Path) -> None:
    """Random weights large enough that wrong KV changes tokens."""
    import torch
    from safetensors.torch import save_file

    torch.manual_seed(0)
    hidden, inner, vocab = CONFIG["hidden_size"], CONFIG["intermediate_size"], CONFIG["vocab_size"]
    heads, kv_heads = CONFIG["num_attention_heads"] * 64, CONFIG["num_key_value_heads"] * 64
    shapes = {"self_attn.q_proj": (heads, hidden), "self_attn.k_proj": (kv_heads, hidden)}
    shapes |= {"self_attn.v_proj": (kv_heads, hidden), "self_attn.o_proj": (hidden, heads)}
    shapes |= {"mlp.gate_proj": (inner, hidden), "mlp.up_proj": (inner, hidden), "mlp.down_proj": (hidden, inner)}
    weights = {"model.embed_tokens.weight": torch.randn(vocab, hidden), "model.norm.weight": torch.ones(hidden)}
    weights["lm_head.weight"] = 0.08 * torch.randn(vocab, hidden)
    for i in range(CONFIG["num_hidden_layers"]):
        for name, shape in shapes.items():
            weights[f"model.layers.{i}.{name}.weight"] = 0.08 * torch.randn(shape)
        for name in ("input_layernorm", "post_attention_layernorm"):
            weights[f"model.layers.{i}.{name}.weight"] = torch.ones(hidden)
    save_file({name: w.to(torch.bfloat16) for name, w in weights.items()}, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(CONFIG))


def make_llm(options: dict | None, graphs: bool = True, **changes):
    """options: of the connector, None for none."""
    from vllm import LLM

    folder = Path(tempfile.mkdtemp())
    make_model(folder)
    connector = {
        "kv_connector": "KVOffloadConnector", "kv_connector_module_path": "kvoffload.vllm", "kv_role": "kv_both",
        "kv_connector_extra_config": options,
    }  # fmt: skip
    config = {
        "max_model_len": MODEL_TOKENS, "dtype": "bfloat16", "max_num_seqs": 16, "block_size": BLOCK_TOKENS,
        "num_gpu_blocks_override": BLOCKS, "gpu_memory_utilization": 0.2, "max_num_batched_tokens": 512,
        **({} if options is None else {"kv_transfer_config": connector}),
        **({"compilation_config": {"mode": 0, "cudagraph_mode": "FULL_DECODE_ONLY"}} if graphs else {}),
    }  # fmt: skip
    config |= {"enforce_eager": not graphs, **changes}
    return LLM(model=str(folder), skip_tokenizer_init=True, disable_log_stats=False, **config)


class Run:
    def __init__(self, mode: str) -> None:
        options = {"host": "3GiB", "blocks_per_chunk": 1, "worth_loading": "always"}  # pinned beside the graph captures
        self.mode, self.rng, self.llm = mode, random.Random(0), make_llm(None if mode == "none" else options)
        self.cached = 0

    def prompts(self, count: int, least: int, most: int) -> list[list[int]]:
        return [[self.rng.randrange(3, 1000) for _ in range(self.rng.randint(least, most))] for _ in range(count)]

    def generate(self, prompts: list[list[int]], tokens: int) -> list[list[int]]:
        from vllm import SamplingParams

        sampling = SamplingParams(max_tokens=tokens, temperature=0, ignore_eos=True, detokenize=False)
        outputs = self.llm.generate([{"prompt_token_ids": p} for p in prompts], sampling, use_tqdm=False)
        self.cached = sum(output.num_cached_tokens or 0 for output in outputs)
        return [list(output.outputs[0].token_ids) for output in outputs]

    def settle(self) -> None:
        """Steps in which deferred stores run; then vLLM forgets what its blocks hold."""
        for _ in range(6):
            self.generate(self.prompts(1, 20, 20), 2)
            time.sleep(0.05)
        assert self.llm.reset_prefix_cache(), "a block is still held"

    def one_by_one(self) -> dict:
        prompts = self.prompts(10, 33, 700)
        cold = [self.generate([p], 24)[0] for p in prompts]
        if self.mode != "none":
            self.settle()
        again, cached = [], 0
        for prompt in prompts:
            if self.mode == "none":  # its own prefix cache has it from the call before, as the pool is small
                self.llm.reset_prefix_cache()
                self.generate([prompt], 24)
            again.append(self.generate([prompt], 24)[0])
            cached += self.cached
        return {"cold": cold, "again": again, "cached": cached}

    def pressure(self) -> dict:
        prompts = self.prompts(16, 150, 400)
        for _ in range(3):
            self.generate(prompts, 100)
            self.settle()
        return {"preemptions": metric(self.llm, "vllm:num_preemptions")}


def metric(llm, name: str) -> float:
    return sum(m.value for m in llm.get_metrics() if m.name == name)


def child(mode: str) -> dict:
    if mode == "none":
        run = Run(mode)
        return run.one_by_one() | run.pressure()
    import contextlib

    from backends import BusyStreams, CudaTorch
    from block_check import BlockCheck

    check = BlockCheck(marks=mode != "nomark")
    if mode == "nofence":
        from kvoffload.vllm.fence import Fence

        flush = Fence.jobs_to_flush
        Fence.jobs_to_flush = lambda self: flush(self) and ()
    with BusyStreams(CudaTorch(), 8) if mode == "busy" else contextlib.nullcontext():
        run = Run(mode)
        return run.one_by_one() | run.pressure() | check.report()


def spawn(runner: str, mode: str, script: str = __file__) -> dict:
    """The line of JSON that `script RUNNER MODE` prints."""
    env = os.environ | {
        "VLLM_USE_V2_MODEL_RUNNER": {"v1": "0", "v2": "1"}[runner],
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "PYTHONHASHSEED": "0",
    }
    if mode == "queue":
        env["CUDA_DEVICE_MAX_CONNECTIONS"] = "1"
    done = subprocess.run([sys.executable, script, runner, mode], env=env, capture_output=True, text=True)
    lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    if done.returncode or not lines:
        return {"crash": (done.stdout[-1500:] + done.stderr[-3000:])}
    return json.loads(lines[-1].removeprefix("RESULT "))


def judge(mode: str, got: dict, alone: dict) -> list[str]:
    if "crash" in got or "crash" in alone:
        return [f"crashed: {got.get('crash') or alone.get('crash')}"]
    faults = []
    wrong = got["wrong_stores"] + got["wrong_loads"]
    if mode in CONTROLS:
        return [] if got["wrong_stores"] else ["the control did not fail: this test proves nothing"]
    if wrong:
        faults.append(f"{wrong} blocks with wrong bytes")
    if got["cold"] != alone["cold"] or got["again"] != alone["again"]:
        faults.append("tokens at batch 1 differ from vLLM alone")
    if got["cached"] < 0.9 * alone["cached"]:
        faults.append(f"too few hits: {got['cached']} tokens, vLLM's own cache has {alone['cached']}")
    if not (got["preemptions"] and got["stores_checked"] and got["loads_checked"]):
        faults.append("no preemption, store or load took place")
    return faults


def main(runners: list[str]) -> int:
    import results

    metrics, details, failed = {}, {}, False
    for runner in runners:
        alone = spawn(runner, "none")
        for mode in os.environ.get("KVO_ORDER_MODES", ",".join(MODES[1:])).split(","):
            start = time.perf_counter()
            got = spawn(runner, mode)
            faults = judge(mode, got, alone)
            failed |= bool(faults)
            details[f"{runner}.{mode}"] = {k: v for k, v in got.items() if k not in ("cold", "again")} | {
                "faults": faults
            }
            metrics[f"order.vllm.{runner}.{mode}.faults"] = len(faults)
            for key in ("wrong_stores", "wrong_loads", "stores_checked", "loads_checked", "preemptions"):
                metrics[f"order.vllm.{runner}.{mode}.{key}"] = got.get(key, -1)
            print(f"{runner} {mode}: {faults or 'right'} in {time.perf_counter() - start:.0f} s", flush=True)
            results.write(f"vllm-order-{'-'.join(runners)}", metrics, runs=details)  # now: a later mode may be cut off
    return int(failed)


if __name__ == "__main__":
    if len(sys.argv) == 3 and sys.argv[2] in MODES:
        faulthandler.dump_traceback_later(DEADLINE_SECONDS, exit=True)
        print("RESULT " + json.dumps(child(sys.argv[2])), flush=True)
    else:
        sys.exit(main(sys.argv[1:] or ["v1", "v2"]))
