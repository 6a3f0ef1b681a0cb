"""Tiny random checkpoints whose output shows corrupted KV: wide weights, float32, an untied head.

With dummy weights or a tied head, zeroed KV changes no token.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

HIDDEN, LAYERS, HEADS, KV_HEADS, HEAD_DIM, VOCAB, MLP = 256, 4, 4, 2, 64, 1024, 512
WINDOW = 128

COMMON = {
    "hidden_size": HIDDEN,
    "intermediate_size": MLP,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "vocab_size": VOCAB,
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "torch_dtype": "float32",
    "hidden_act": "silu",
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def write_llama(folder: Path, **changes: Any) -> Path:
    """A Llama checkpoint of 4 layers; 4 KiB of KV a token. changes: of its config."""
    config = {
        **COMMON,
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD_DIM,
        **changes,
    }
    shapes = {}
    for layer in range(LAYERS):
        name = f"model.layers.{layer}."
        shapes[name + "self_attn.q_proj.weight"] = (HEADS * HEAD_DIM, HIDDEN)
        shapes[name + "self_attn.k_proj.weight"] = (KV_HEADS * HEAD_DIM, HIDDEN)
        shapes[name + "self_attn.v_proj.weight"] = (KV_HEADS * HEAD_DIM, HIDDEN)
        shapes[name + "self_attn.o_proj.weight"] = (HIDDEN, HEADS * HEAD_DIM)
        shapes |= _mlp(name)
    return _write(folder, config, shapes)


def write_window(folder: Path) -> Path:
    """Sliding-window attention in every layer."""
    changes = {"architectures": ["MistralForCausalLM"], "model_type": "mistral", "sliding_window": WINDOW}
    return write_llama(folder, **changes)


def write_mixed(folder: Path) -> Path:
    """Sliding-window and full attention in turns: two KV groups."""
    kinds = [("sliding_attention", "full_attention")[layer % 2] for layer in range(LAYERS)]
    return write_llama(folder, sliding_window=WINDOW, layer_types=kinds)


def write_deepseek(folder: Path) -> Path:
    """A DeepSeek-V2 checkpoint with dense layers only: multi-head latent attention (MLA)."""
    latent, rope, nope = 512, 64, 64  # the only head size that vLLM's MLA on CPU knows: 576
    config = {
        **COMMON,
        "architectures": ["DeepseekV2ForCausalLM"],
        "model_type": "deepseek_v2",
        "num_key_value_heads": HEADS,
        "kv_lora_rank": latent,
        "q_lora_rank": None,
        "qk_nope_head_dim": nope,
        "qk_rope_head_dim": rope,
        "v_head_dim": HEAD_DIM,
        "first_k_dense_replace": LAYERS,
        "moe_layer_freq": 1,
        "n_routed_experts": 2,
        "n_shared_experts": 1,
        "num_experts_per_tok": 1,
        "moe_intermediate_size": MLP,
    }
    shapes = {}
    for layer in range(LAYERS):
        name = f"model.layers.{layer}."
        shapes[name + "self_attn.q_proj.weight"] = (HEADS * (nope + rope), HIDDEN)
        shapes[name + "self_attn.kv_a_proj_with_mqa.weight"] = (latent + rope, HIDDEN)
        shapes[name + "self_attn.kv_a_layernorm.weight"] = (latent,)
        shapes[name + "self_attn.kv_b_proj.weight"] = (HEADS * (nope + HEAD_DIM), latent)
        shapes[name + "self_attn.o_proj.weight"] = (HIDDEN, HEADS * HEAD_DIM)
        shapes |= _mlp(name)
    return _write(folder, config, shapes)


def _mlp(name: str) -> dict[str, tuple[int, ...]]:
    return {
        name + "mlp.gate_proj.weight": (MLP, HIDDEN),
        name + "mlp.up_proj.weight": (MLP, HIDDEN),
        name + "mlp.down_proj.weight": (HIDDEN, MLP),
        name + "input_layernorm.weight": (HIDDEN,),
        name + "post_attention_layernorm.weight": (HIDDEN,),
    }


def _write(folder: Path, config: dict[str, Any], shapes: dict[str, tuple[int, ...]]) -> Path:
    shapes = {
        "model.embed_tokens.weight": (VOCAB, HIDDEN),
        "model.norm.weight": (HIDDEN,),
        "lm_head.weight": (VOCAB, HIDDEN),
        **shapes,
    }
    random = torch.Generator().manual_seed(20)
    tensors = {}
    for name, shape in shapes.items():
        if len(shape) == 1:
            tensors[name] = torch.ones(shape)
            continue
        deviation = 1.0 if "embed_tokens" in name else 0.08
        tensors[name] = torch.randn(shape, generator=random) * deviation
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    return folder


def write_adapter(folder: Path, seed: int) -> Path:
    """A LoRA adapter for the Llama checkpoint that changes what is kept as KV."""
    rank = 8
    random = torch.Generator().manual_seed(seed)
    tensors = {}
    for layer in range(LAYERS):
        for name in ("k_proj", "v_proj"):
            where = f"base_model.model.model.layers.{layer}.self_attn.{name}"
            tensors[f"{where}.lora_A.weight"] = torch.randn((rank, HIDDEN), generator=random) * 0.1
            tensors[f"{where}.lora_B.weight"] = torch.randn((KV_HEADS * HEAD_DIM, rank), generator=random) * 0.1
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "r": rank,
        "lora_alpha": 2 * rank,
        "bias": "none",
        "target_modules": ["k_proj", "v_proj"],
    }
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / "adapter_model.safetensors")
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return folder
