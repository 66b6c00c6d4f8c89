"""Decoders in Hugging Face folders: names of weights in GPT-2 and in Llama, whose names most families use."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from chipwise.core.arrays import Float32Array
from chipwise.model.arch.arch import ArchSpec
from chipwise.model.kinds.form import Checkpoint, HfFolders, Tensors, published_name
from chipwise.model.published.write import family_of, to_config

_BLOCKS = {
    "attention_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attention.q": "self_attn.q_proj",
    "attention.k": "self_attn.k_proj",
    "attention.v": "self_attn.v_proj",
    "attention.out": "self_attn.o_proj",
    "attention.q_norm": "self_attn.q_norm",
    "attention.k_norm": "self_attn.k_norm",
    "ffn.gate": "mlp.gate_proj",
    "ffn.up": "mlp.up_proj",
    "ffn.down": "mlp.down_proj",
}
_OUTSIDE = {"embedding": "model.embed_tokens", "norm": "model.norm", "head": "lm_head"}


def _write(arch: ArchSpec, weights: Tensors) -> tuple[dict[str, object], Tensors] | None:
    if family_of(arch) is None:
        return None
    return to_config(arch), {_llama_name(name): value for name, value in weights.items()}


def _llama_name(name: str) -> str:
    """The name that chipwise's weight ``name`` has in a Llama-style checkpoint."""
    return published_name(name, _OUTSIDE, _BLOCKS, "model.layers")


def _read_llama(arch: ArchSpec, held: Checkpoint) -> tuple[ArchSpec, Tensors]:
    names = {_llama_name(name): name for name in held.shapes}
    return arch, {names.get(name, name): value for name, value in held.tensors}


def _read_gpt2(arch: ArchSpec, held: Checkpoint) -> tuple[ArchSpec, Tensors]:
    return arch, dict(_from_gpt2(held.tensors))


def _from_gpt2(tensors: Iterable[tuple[str, Float32Array]]) -> Iterator[tuple[str, Float32Array]]:
    """GPT-2's weights under chipwise's names: transposes its (in, out) matrices, and splits q, k and v."""
    outside = {"wte.weight": "embedding.weight", "wpe.weight": "positions.weight"}
    blocks = {
        "ln_1": "attention_norm",
        "ln_2": "ffn_norm",
        "attn.c_proj": "attention.out",
        "mlp.c_fc": "ffn.up",
        "mlp.c_proj": "ffn.down",
    }
    for full, value in tensors:
        name = full.removeprefix("transformer.")
        if not name.startswith("h."):
            yield outside.get(name, name.replace("ln_f.", "norm.")), value
            continue
        _, number, rest = name.split(".", 2)
        block, _, kind = rest.rpartition(".")
        ours = np.ascontiguousarray(value.T) if kind == "weight" and value.ndim == 2 else value
        if block == "attn.c_attn":
            for part, third in zip("qkv", np.split(ours, 3), strict=True):
                yield f"layers.{number}.attention.{part}.{kind}", third
        else:
            yield f"layers.{number}.{blocks.get(block, block)}.{kind}", ours


FOLDERS = HfFolders(
    write=_write, readers={"gpt2": _read_gpt2, **dict.fromkeys(("llama", "mistral", "qwen2", "qwen3"), _read_llama)}
)
