"""Serving with PyTorch: one file with a design and its weights, and a module that updates its KV cache in place.

``Transformer`` extends its cache by concatenation, which suffices for checks. Here the cache has its final size from
the start, so every decode step has the same shapes and can be compiled or captured once.

Axes: B batch, T new tokens, S cached tokens, D model width, N query heads, K KV heads, H head size, V vocabulary.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from chipwise.core.arrays import AnyArray
from chipwise.core.files import write_atomic
from chipwise.deploy.runtimes import Facts
from chipwise.errors import SpecError, Unsupported
from chipwise.model.arch.design import Design
from chipwise.model.arch.io import from_data, to_data
from chipwise.model.blocks.attention.module import AttentionModule
from chipwise.model.kinds.text.module import Transformer
from chipwise.model.walk.weights import weight_shapes

SCHEMA = "chipwise.torch/1"
METADATA = "chipwise"
FORMATS = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def export(design: Design, weights: Mapping[str, AnyArray], path: str | Path) -> Path:
    """Writes ``design`` with ``weights`` (named as the torch module's state dict) to a safetensors file, atomically.

    Weights are stored in the design's format; the model is also computed in this format.

    Raises:
        SpecError: A weight is missing or has the wrong shape.
        Unsupported: PyTorch cannot compute in the design's weight format on this machine.
        StorageError: The disk is full or refuses the file.
    """
    from safetensors.torch import save

    if design.weights not in FORMATS:
        raise Unsupported(f"PyTorch runs {', '.join(FORMATS)} weights here, not {design.weights}")
    tensors = {}
    for name, shape in weight_shapes(design.arch).items():
        if name not in weights:
            raise SpecError("the weights have no such tensor", field=name)
        value = np.ascontiguousarray(weights[name], dtype=np.float32)
        if value.shape != shape:
            raise SpecError(f"has shape {value.shape}; the architecture needs {shape}", field=name)
        tensors[name] = torch.from_numpy(value).to(FORMATS[design.weights])
    facts = {
        "schema": SCHEMA,
        "design": design.digest,
        "name": design.arch.name,
        "weights": design.weights,
        "arch": to_data(design.arch),
    }
    write_atomic(path, save(tensors, metadata={METADATA: json.dumps(facts)}))
    return Path(path)


def load(path: str | Path, *, device: str = "cpu") -> tuple[Transformer, Facts]:
    """Loads the model of a file written by :func:`export` onto ``device``; returns it with the file's metadata.

    Raises:
        SpecError: The file is missing or was not written by :func:`export`.
    """
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt", device=device) as opened:
            facts = json.loads((opened.metadata() or {}).get(METADATA, "{}"))
            if facts.get("schema") != SCHEMA:
                raise SpecError(f"not a model for PyTorch of this version ({SCHEMA})", file=str(path))
            state = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118 - not a mapping
    except (SafetensorError, OSError) as error:
        raise SpecError(f"not a safetensors file: {error}", file=str(path)) from None
    arch = from_data(facts["arch"], file=str(path))
    with torch.device("meta"):
        model = Transformer(arch)
    model.load_state_dict(state, assign=True)
    return model.eval(), facts


class Serving(nn.Module):
    """``model`` with a cache of ``capacity`` positions for ``batch`` sequences."""

    keys: list[Tensor]  # one per layer with attention, (B, K, S, H)
    values: list[Tensor]
    kept: list[dict[str, Tensor]]  # one per layer: last inputs of its convolutions, (B, taps - 1, D) each

    def __init__(self, model: Transformer, *, capacity: int, batch: int) -> None:
        super().__init__()
        self.model, self.capacity = model, capacity
        table = model.embedding.weight
        self.keys, self.values, self.kept = [], [], []
        for layer in model.arch.layers:
            taps = {"attention_conv": layer.attention_conv, "ffn_conv": layer.ffn_conv}
            sizes = {name: (batch, count - 1, model.arch.d_model) for name, count in taps.items() if count}
            self.kept.append({name: table.new_zeros(size) for name, size in sizes.items()})
            shape = (batch, layer.attention.kv_heads, capacity, layer.attention.head_size) if layer.attention else (0,)
            self.keys.append(torch.zeros(shape, dtype=table.dtype, device=table.device))
            self.values.append(torch.zeros(shape, dtype=table.dtype, device=table.device))
        heads = {layer.attention.head_size for layer in model.arch.layers if layer.attention and layer.attention.rope}
        self.angles = {
            size: tuple(part.to(table) for part in model._rotary(size, table.device)) for size in sorted(heads)
        }

    def forward(self, tokens_BT: Tensor, positions_T: Tensor, seen: int, masked: bool) -> Tensor:
        """Logits (B, V) of the last position.

        Args:
            tokens_BT: The new tokens.
            positions_T: Positions of the new tokens, where their keys and values are stored.
            seen: The tokens attend to the first ``seen`` positions of the cache.
            masked: Whether these positions may include positions after a token; each token then attends only up to its
                own position. If false, there are no later positions, and the last token is at ``seen - 1``.
        """
        model = self.model
        x_BTD = model.embedding(tokens_BT)
        if model.positions is not None:
            x_BTD = x_BTD + model.positions(positions_T)
        for i, (owner, layer) in enumerate(zip(model.order, model.arch.layers, strict=True)):
            module: Any = model.layers[owner]
            if layer.attention is not None:
                h_BTD = self._conv(i, "attention_conv", module.read("attention", x_BTD), positions_T)
                y_BTD = self._attention(i, module.attention, h_BTD, positions_T, seen, masked)
                x_BTD = module.added("attention", x_BTD, y_BTD)
            if layer.ffn is not None:
                h_BTD = self._conv(i, "ffn_conv", module.read("ffn", x_BTD), positions_T)
                x_BTD = module.added("ffn", x_BTD, module.ffn(h_BTD))
        return F.linear(model.norm(x_BTD[:, -1]), model.head_table)

    def _conv(self, number: int, name: str, x_BTD: Tensor, positions_T: Tensor) -> Tensor:
        kept = self.kept[number].get(name)
        if kept is None:
            return x_BTD
        conv: Any = getattr(self.model.layers[self.model.order[number]], name)
        y_BTD, last = conv(x_BTD, kept * (positions_T[0] > 0))  # no convolution state at the start of a sequence
        kept.copy_(last)
        return y_BTD  # type: ignore[no-any-return]

    def _attention(
        self, number: int, module: AttentionModule, x_BTD: Tensor, positions_T: Tensor, seen: int, masked: bool
    ) -> Tensor:
        block = module.block
        batch, tokens, _ = x_BTD.shape
        rotary = None
        if block.rope:
            cos, sin = self.angles[block.head_size]
            rotary = cos[positions_T], sin[positions_T]
        q_BNTH, k_BKTH, v_BKTH = module.project(x_BTD, rotary)
        self.keys[number].index_copy_(2, positions_T, k_BKTH)
        self.values[number].index_copy_(2, positions_T, v_BKTH)
        k_BKSH, v_BKSH = self.keys[number][:, :, :seen], self.values[number][:, :, :seen]
        mask = None
        if masked or (block.window is not None and block.window < seen):
            key_S = torch.arange(seen, device=x_BTD.device)
            mask = key_S <= positions_T[:, None]
            if block.window is not None:
                mask = mask & (key_S > positions_T[:, None] - block.window)
        if tokens == 1:  # the query heads of a KV head become rows of one matrix product
            q_BNTH = q_BNTH.reshape(batch, block.kv_heads, block.heads // block.kv_heads, block.head_size)
        y_BNTH = F.scaled_dot_product_attention(
            q_BNTH,
            k_BKSH,
            v_BKSH,
            attn_mask=mask,
            is_causal=mask is None and tokens > 1,
            enable_gqa=tokens > 1 and block.heads != block.kv_heads,
        )
        y_BNTH = y_BNTH.reshape(batch, block.heads, tokens, block.head_size)
        return module.out(y_BNTH.transpose(1, 2).reshape(batch, tokens, block.query_width))  # type: ignore[no-any-return]
