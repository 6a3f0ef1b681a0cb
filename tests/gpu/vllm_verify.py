"""Every block's bytes are hashed at its store and after each load, in a real vLLM under load and preemption.

    vllm_verify.py [RUNNER ...]   all modes, each in a process of its own; writes vllm-verify-*.json, exit code 1: fault
    vllm_verify.py RUNNER MODE    one run (v1|v2; graphs|eager|spoiled), prints one line of JSON

KVO_VERIFY_REQUESTS of a run (1024) go to the engine of `vllm_order.py` in waves: prompts that begin alike at random
lengths, many more tokens than the GPU has blocks for, host memory for a part of what is stored and a disk for the rest.
`mismatches` counts blocks whose bytes differ: as the engine's stream saw them at the store, in the host slot, and on
the GPU after a load, be it of what came back from disk. `spoiled` is the control: slots are written over, which it must
see. Where there is no GPU it is tried out on the CPU, with `eager` and the control.
"""

import faulthandler
import json
import os
import random
import sys
import tempfile

import vllm_order  # also makes what is imported below importable

MODES = ("graphs", "eager", "spoiled")
COUNTED = ("requests", "stores_checked", "loads_checked", "hit_tokens", "preemptions", "promote")
WAVE, STEMS = 64, 48
DEADLINE_SECONDS = 420  # then a run shows where it stands and ends


def make_prompts(rng: random.Random, stems: list[list[int]]) -> list[list[int]]:
    prompts = []
    for _ in range(WAVE):
        stem = rng.choice(stems)
        tail = [rng.randrange(3, 1000) for _ in range(rng.randint(1, 40))]
        prompts.append(stem[: rng.randint(16, len(stem))] + tail)
    return prompts


def child(mode: str) -> dict:
    import torch
    from block_check import BlockCheck
    from vllm import SamplingParams

    check = BlockCheck(spoils=mode == "spoiled")
    folder = tempfile.mkdtemp()
    options = {
        "host": "32MiB", "disk": folder, "disk_size": "512MiB", "blocks_per_chunk": 2, "worth_loading": "always",
    }  # fmt: skip
    if torch.cuda.is_available():
        llm = vllm_order.make_llm(options, mode != "eager")
    else:
        llm = vllm_order.make_llm(options, False, block_size=32, num_gpu_blocks_override=50, dtype="float32")
    rng, done = random.Random(1), 0
    stems = [[rng.randrange(3, 1000) for _ in range(rng.randint(100, 500))] for _ in range(STEMS)]
    while done < int(os.environ.get("KVO_VERIFY_REQUESTS", "1024")):
        prompts = [{"prompt_token_ids": prompt} for prompt in make_prompts(rng, stems)]
        lengths = [rng.randint(4, 64) for _ in prompts]
        sampling = [SamplingParams(max_tokens=n, temperature=0, ignore_eos=True, detokenize=False) for n in lengths]
        outputs = llm.generate(prompts, sampling, use_tqdm=False)
        done += sum(len(o.outputs[0].token_ids) == n for o, n in zip(outputs, lengths, strict=True))
    found = check.report()
    names = {"preemptions": "vllm:num_preemptions", "hit_tokens": "vllm:external_prefix_cache_hits"}
    counted = {key: vllm_order.metric(llm, name) for key, name in names.items()}
    return found | counted | {"requests": done, "mismatches": found["wrong_stores"] + found["wrong_loads"]}


def judge(mode: str, got: dict) -> list[str]:
    if "crash" in got:
        return [f"crashed: {got['crash']}"]
    if mode == "spoiled":
        return [] if got["wrong_loads"] else ["the control did not fail: this test proves nothing"]
    faults = [f"{got['mismatches']} blocks with wrong bytes"] if got["mismatches"] else []
    idle = [name for name in COUNTED if not got[name]]
    return faults + [f"no {name.replace('_', ' ')}" for name in idle]


def main(runners: list[str]) -> int:
    import results
    import torch

    metrics: dict[str, float] = {"verify.requests": 0, "verify.mismatches": 0, "verify.faults": 0}
    details = {}
    modes = MODES if torch.cuda.is_available() else ("eager", "spoiled")
    for runner in runners:
        for mode in os.environ.get("KVO_VERIFY_MODES", ",".join(modes)).split(","):
            got = vllm_order.spawn(runner, mode, __file__)
            faults = judge(mode, got)
            details[f"{runner}.{mode}"] = got | {"faults": faults}
            metrics["verify.faults"] += len(faults)
            if mode != "spoiled":
                metrics["verify.requests"] += got.get("requests", 0)
                metrics["verify.mismatches"] += got.get("mismatches", 0)
            for key in ("mismatches", *COUNTED):
                metrics[f"verify.{runner}.{mode}.{key}"] = got.get(key, -1)
            print(f"{runner} {mode}: {faults or 'right'}", flush=True)
            results.write(f"vllm-verify-{'-'.join(runners)}", metrics, runs=details)  # now: a later mode may be cut off
    return int(metrics["verify.faults"] > 0)


if __name__ == "__main__":
    if len(sys.argv) == 3 and sys.argv[2] in MODES:
        faulthandler.dump_traceback_later(DEADLINE_SECONDS, exit=True)
        print("RESULT " + json.dumps(child(sys.argv[2])), flush=True)
    else:
        sys.exit(main(sys.argv[1:] or ["v1", "v2"]))
