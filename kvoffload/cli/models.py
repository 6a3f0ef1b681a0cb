"""Page sizes of common models, as inference engines lay their KV cache out: what `--model` and a plain size mean."""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass

from kvoffload.config import format_size, parse_size
from kvoffload.errors import InvalidInput


@dataclass(frozen=True)
class Shape:
    """Blocks of one kind. name: for tables; page_bytes: of one block in one tensor; tensors: pages of a block."""

    name: str
    page_bytes: int
    tensors: int = 1

    @property
    def block_bytes(self) -> int:
        """Bytes of one block in all tensors."""
        return self.page_bytes * self.tensors


@dataclass(frozen=True)
class Model:
    """The KV of one token in one layer: `kv_heads` times `head_dim` items for K and as many for V.

    layers: tensors of one KV group (in models that mix full and sliding attention: half of the layers, as they share
    tensors). latent_items: for MLA, items of a token in place of K and V, the same on every rank. tokens_per_block:
    what vLLM takes on a GPU.
    """

    layers: int
    kv_heads: int = 0
    head_dim: int = 0
    latent_items: int = 0
    tokens_per_block: int = 16

    def items(self, tensor_parallel: int) -> int:
        """Items of one token in one layer on one of `tensor_parallel` ranks, each of which has one head at least."""
        return self.latent_items or 2 * max(1, self.kv_heads // tensor_parallel) * self.head_dim


MODELS = {
    "llama-3.1-8b": Model(layers=32, kv_heads=8, head_dim=128),
    "llama-3.1-70b": Model(layers=80, kv_heads=8, head_dim=128),
    "llama-3.1-405b": Model(layers=126, kv_heads=8, head_dim=128),
    "llama-3.2-1b": Model(layers=16, kv_heads=8, head_dim=64),
    "llama-3.2-3b": Model(layers=28, kv_heads=8, head_dim=128),
    "qwen3-0.6b": Model(layers=28, kv_heads=8, head_dim=128),
    "qwen3-8b": Model(layers=36, kv_heads=8, head_dim=128),
    "qwen3-14b": Model(layers=40, kv_heads=8, head_dim=128),
    "qwen3-32b": Model(layers=64, kv_heads=8, head_dim=128),
    "qwen3-30b-a3b": Model(layers=48, kv_heads=4, head_dim=128),
    "qwen3-235b-a22b": Model(layers=94, kv_heads=4, head_dim=128),
    "mistral-7b": Model(layers=32, kv_heads=8, head_dim=128),
    "mistral-small-24b": Model(layers=40, kv_heads=8, head_dim=128),
    "mixtral-8x7b": Model(layers=32, kv_heads=8, head_dim=128),
    "deepseek-v3": Model(layers=61, latent_items=512 + 64, tokens_per_block=64),
    "gpt-oss-20b": Model(layers=12, kv_heads=8, head_dim=64),
    "gpt-oss-120b": Model(layers=18, kv_heads=8, head_dim=64),
}
TENSOR_PARALLEL = (1, 2, 4, 8)
LAYOUTS = ("fused", "split", "row")
SUFFIXES = "tp1, tp2, tp4, tp8; bf16, fp8; fused, split, row; b16 (tokens of a block)"


def model_shape(text: str) -> Shape:
    """The blocks of a model on one rank.

    text: a name out of MODELS and, each after a colon and in any order: tp1 to tp8 (ranks; default tp1), bf16 or fp8
    (default bf16), fused, split or row (one page a layer; K and V apart; one page for all layers; default fused), b<N>
    (tokens of a block; default: what vLLM takes). Raises InvalidInput that names what is allowed.

    >>> model_shape("llama-3.1-8b")
    Shape(name='llama-3.1-8b', page_bytes=65536, tensors=32)
    >>> model_shape("llama-3.1-70b:tp8:fp8:split")
    Shape(name='llama-3.1-70b:tp8:fp8:split', page_bytes=2048, tensors=160)
    """
    name, *suffixes = text.strip().lower().split(":")
    if name not in MODELS:
        nearest = difflib.get_close_matches(name, MODELS, n=1, cutoff=0.5)
        hint = f"did you mean {nearest[0]!r}? " if nearest else ""
        raise InvalidInput(f"model {name!r} is not known; {hint}known: {', '.join(MODELS)}")
    model, ranks, item_bytes, layout = MODELS[name], 1, 2, "fused"
    tokens = model.tokens_per_block
    for suffix in suffixes:
        number = re.fullmatch(r"(tp|b)([1-9][0-9]{0,3})", suffix)
        if number and number[1] == "b":
            tokens = int(number[2])
        elif number and int(number[2]) in TENSOR_PARALLEL:
            ranks = int(number[2])
        elif suffix in ("bf16", "fp8"):
            item_bytes = 2 if suffix == "bf16" else 1
        elif suffix in LAYOUTS:
            layout = suffix
        else:
            raise InvalidInput(f"model {text!r}: {suffix!r} is not known; after a colon may come: {SUFFIXES}")
    page_bytes, tensors = model.items(ranks) * item_bytes * tokens, model.layers
    if layout == "split" and model.latent_items:
        raise InvalidInput(f"model {text!r}: its K and V are one latent, which 'split' cannot part; use fused or row")
    if layout == "split":
        page_bytes, tensors = page_bytes // 2, 2 * tensors
    elif layout == "row":
        page_bytes, tensors = page_bytes * tensors, 1
    return Shape(text.strip().lower(), page_bytes, tensors)


def size_shape(text: str) -> Shape:
    """Blocks of one page each. text: a size such as "16KiB". Raises InvalidInput.

    >>> size_shape("65536")
    Shape(name='64 KiB', page_bytes=65536, tensors=1)
    """
    page_bytes = parse_size(text, "sizes")
    return Shape(format_size(page_bytes), page_bytes)
