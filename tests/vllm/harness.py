"""A real vLLM engine in this process, with handles to both halves of the connector."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from prompts import BLOCK, ROUNDS
from vllm import LLM, SamplingParams
from vllm.distributed.kv_transfer import get_kv_transfer_group
from vllm.lora.request import LoRARequest

from kvoffload import _C


def transfer_config(**options: Any) -> dict[str, Any]:
    """With the rule of `worth_loading` off: tiny models compute in no time what a test wants to see loaded."""
    return {
        "kv_connector": "KVOffloadConnector",
        "kv_connector_module_path": "kvoffload.vllm",
        "kv_role": "kv_both",
        "kv_connector_extra_config": {"worth_loading": "always", **options},
    }


def force_asynchronous_scheduling() -> None:
    """It is off on CPU: switch it on, and stand in for the CUDA streams and events that it uses."""
    import contextlib

    import torch
    from vllm.platforms.cpu import CpuPlatform

    configure = CpuPlatform.check_and_update_config.__func__

    def configure_asynchronous(cls: Any, vllm_config: Any) -> None:
        configure(cls, vllm_config)
        vllm_config.scheduler_config.async_scheduling = True

    class Nothing:
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            self.device = torch.device("cpu")

        def __getattr__(self, name: str) -> Any:
            return lambda *args, **kwargs: None

    CpuPlatform.check_and_update_config = classmethod(configure_asynchronous)
    torch.Event = Nothing
    torch.cuda.Event = torch.cuda.Stream = Nothing
    torch.cuda.current_stream = Nothing
    torch.cuda.stream = lambda stream: contextlib.nullcontext()


class Engine:
    """One LLM. `connector`: options of kv_connector_extra_config, None for none."""

    def __init__(self, model: Path, connector: dict[str, Any] | None, **config: Any) -> None:
        if connector is not None:
            config["kv_transfer_config"] = transfer_config(**connector)
        config = {"block_size": BLOCK, "max_model_len": 1024, "enable_prefix_caching": True, **config}
        self.llm = LLM(
            model=str(model), load_format="safetensors", skip_tokenizer_init=True, enforce_eager=True, dtype="float32",
            disable_log_stats=False, **config,
        )  # fmt: skip
        self.core = self.llm.llm_engine.engine_core.engine_core
        self.scheduler = self.core.scheduler
        self.preemptions = 0
        preempt = self.scheduler._preempt_request

        def count_preemption(*args: Any, **kwargs: Any) -> None:
            self.preemptions += 1
            preempt(*args, **kwargs)

        self.scheduler._preempt_request = count_preemption

    @property
    def ledger_half(self) -> Any:
        return self.scheduler.connector.ledger_half

    @property
    def mover_half(self) -> Any:
        return get_kv_transfer_group().mover_half

    @property
    def counters(self) -> dict[str, int]:
        return self.ledger_half.counters.copy()

    @property
    def worker_counters(self) -> dict[str, int]:
        """Of this process's worker; there is none here when ranks have processes of their own."""
        return self.mover_half.counters if self.scheduler.vllm_config.parallel_config.world_size == 1 else {}

    def generate(
        self, prompts: Sequence[Sequence[int]], answer: int, salt: str | None = None, adapter: Path | None = None
    ) -> tuple[list[list[int]], list[int]]:
        """Answers, and how many tokens of each prompt were cached. adapter: a LoRA adapter's folder."""
        sampling = SamplingParams(temperature=0, max_tokens=answer, ignore_eos=True, detokenize=False)
        asked: list[Any] = [{"prompt_token_ids": list(prompt)} for prompt in prompts]
        for prompt in asked if salt is not None else ():
            prompt["cache_salt"] = salt
        lora = adapter and LoRARequest(adapter.name, 1 + sum(adapter.name.encode()), str(adapter))
        outputs = self.llm.generate(asked, sampling, use_tqdm=False, lora_request=lora)
        return [list(o.outputs[0].token_ids) for o in outputs], [o.num_cached_tokens for o in outputs]

    def run(self, name: str) -> tuple[list[list[int]], list[int]]:
        return self.generate(ROUNDS[name].prompts, ROUNDS[name].answer)

    def drain(self) -> None:
        """Offline engines stop stepping when no request lives; let stores end and be heard of."""
        while self.scheduler.has_requests():
            self.core.step_fn()

    def forget_local(self) -> None:
        """Empty vLLM's own prefix cache, which also shows that no block is still held."""
        self.drain()
        assert self.llm.reset_prefix_cache(), "a block is still held"

    def fill(self, name: str) -> list[list[int]]:
        """Compute a round from nothing, so that all its chunks are stored."""
        self.forget_local()
        answers, _ = self.run(name)
        self.forget_local()
        return answers

    def check_leaks(self) -> None:
        _C.fault_disarm_all()
        self.forget_local()
        half = self.ledger_half
        assert not half._requests and not half._open_jobs and not len(half._fence) and not half._early, vars(half)
        assert not any(half._lookup._loading), half._lookup._loading
        stats = half.ledger.stats()
        assert not any(stats[name] for name in ("jobs_in_flight", "given_up_jobs", "holds", "quarantined_bytes")), stats
        half.ledger.check()
        pool = self.scheduler.kv_cache_manager.block_pool
        assert pool.get_num_free_blocks() == pool.num_gpu_blocks - 1, "blocks of the device leak"
        if self.scheduler.vllm_config.parallel_config.world_size == 1:
            assert self.mover_half.idle(), vars(self.mover_half)


class Expected:
    """The answers without a connector."""

    def __init__(self, path: Path) -> None:
        self._answers: dict[str, list[list[int]]] = json.loads(path.read_text())

    def __getitem__(self, name: str) -> list[list[int]]:
        return self._answers[name]


def differing(left: Sequence[Any], right: Sequence[Any]) -> int:
    assert len(left) == len(right)
    return sum(a != b for a, b in zip(left, right, strict=True))
