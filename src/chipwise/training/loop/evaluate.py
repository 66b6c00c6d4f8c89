"""Quality of given weights in bits per byte of held-out text, so that vocabularies can be compared.

All tokens of the text count, separators included; the stream is read in windows as long as those of the training.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from chipwise.core.arrays import AnyArray
from chipwise.errors import InputError
from chipwise.model.arch.arch import ArchSpec
from chipwise.model.arch.design import Design
from chipwise.model.blocks.quantize import NEAREST, Packing
from chipwise.model.kinds.text.module import Transformer
from chipwise.model.walk.module import load, matrix_inputs, module_of
from chipwise.training.data.dataset import DataFile, Split, with_held
from chipwise.training.data.tokenizer import TokenData
from chipwise.training.loop.loss import head_loss

if TYPE_CHECKING:
    from chipwise.training.loop.trainer import Recipe

WINDOW_TOKENS = 128
_ROWS = 32  # windows at a time

Weights = Mapping[str, NDArray[np.floating]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Quality:
    """Quality of a model on held-out text."""

    bits_per_byte: float
    perplexity: float  # per token
    tokens: int
    bytes: int


def quantised_bits_per_byte(
    arch: ArchSpec, weights: Weights | str | Path, form: str, data: TokenData, max_bytes: int | None = None
) -> Quality:
    """Quality on validation text after every projection and the head are rounded as ``form`` stores them.

    The token table is not rounded. ``form`` is a format or the name of a mixture (:mod:`chipwise.model.arch.formats`).
    """
    model = quantised(load_model(arch, weights), form)
    return evaluate(model, data, max_bytes=max_bytes)


def evaluate(
    model: Transformer,
    data: TokenData,
    *,
    split: Split = "validation",
    max_bytes: int | None = None,
    dtype: torch.dtype = torch.float32,
) -> Quality:
    """Quality of ``model`` on ``split``, computed in ``dtype``; ``max_bytes`` limits it to the first entries."""
    if data.vocab_size != model.arch.vocab_size:
        raise InputError(f"the model has {model.arch.vocab_size} tokens, the text was encoded with {data.vocab_size}")
    stream, size_bytes = data.held_out(split, max_bytes=max_bytes)
    tokens = torch.from_numpy(stream.astype(np.int64)).to(model.head_table.device)
    count, nats = len(tokens) - 1, 0.0
    window = min(WINDOW_TOKENS, model.arch.max_tokens)
    full = count // window
    with torch.no_grad(), torch.autocast(tokens.device.type, dtype=torch.bfloat16, enabled=dtype == torch.bfloat16):
        inputs, targets = (tokens[i : i + full * window].view(full, window) for i in (0, 1))
        for start in range(0, full, _ROWS):
            nats += _nats(model, inputs[start : start + _ROWS], targets[start : start + _ROWS])
        if full * window < count:
            nats += _nats(model, tokens[None, full * window : -1], tokens[None, full * window + 1 :])
    return Quality(
        bits_per_byte=nats / math.log(2) / size_bytes,
        perplexity=math.exp(min(700.0, nats / count)) if math.isfinite(nats) else math.inf,
        tokens=count,
        bytes=size_bytes,
    )


def _nats(model: Transformer, inputs: Tensor, targets: Tensor) -> float:
    x, _ = model.hidden(inputs)
    logits = nn.functional.linear(x.reshape(-1, x.shape[-1]), model.head_table).float()
    return float(nn.functional.cross_entropy(logits, targets.reshape(-1), reduction="sum"))


def load_model(arch: ArchSpec, weights: Weights | str | Path) -> Any:
    """The torch module of ``arch`` with these weights, in FP32."""
    arrays = read(weights) if isinstance(weights, str | Path) else weights
    return load(arch, arrays)


def read(path: str | Path) -> dict[str, NDArray[np.floating]]:
    """The weights that a safetensors file holds, by name.

    Raises:
        InputError: It cannot be read.
    """
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    try:
        return dict(load_file(path))
    except (SafetensorError, OSError) as error:
        raise InputError(f"{path}: cannot be read as weights: {error}") from None


def quantised(model: Any, form: str, packing: Packing = NEAREST) -> Any:
    """A copy of ``model`` with projections and head rounded to ``form``.

    ``form`` is a format or the name of a mixture (:mod:`chipwise.model.arch.formats`). A tied head becomes a separate
    table, as in the exported file.
    """
    arch = dataclasses.replace(model.arch, tie_embeddings=False)
    state = dict(model.state_dict())
    if arch.stem is None:
        state["head.weight"] = model.head_table
    design = Design(arch=arch, weights=form)
    for name, value in state.items():
        if (stored := design.format_of(name)) != "fp32":
            state[name] = rounded(value, stored, packing, name)
    copy = module_of(arch)
    copy.load_state_dict({name: value.clone() for name, value in state.items()})
    return copy.eval()


def calibrated(arch: ArchSpec, weights: Mapping[str, AnyArray], data: DataFile, recipe: Recipe) -> Packing:
    """How matrices are packed where a batch of training data shows what they multiply."""

    def run(model: nn.Module) -> None:
        held = data.load()
        held.loss(with_held(model, held), held.batch(arch, recipe, 0, seed=0), torch.float32)

    return Packing(inputs=matrix_inputs(arch, weights, run))


def rounded(weight_NK: Tensor, form: str, packing: Packing = NEAREST, name: str = "") -> Tensor:
    """The weight ``name`` (outputs, inputs) as the deployed model will hold it: packed by the very code of exports."""
    matrix = np.ascontiguousarray(weight_NK.detach().numpy(), np.float32)
    return torch.from_numpy(packing.pack(name, matrix, form).restored())


def mean_loss(model: Transformer, inputs: Tensor, targets: Tensor, dtype: torch.dtype) -> Tensor:
    """Mean cross entropy in nats of a batch (rows, tokens), differentiable; products run in ``dtype``."""
    with torch.autocast(inputs.device.type, dtype=torch.bfloat16, enabled=dtype == torch.bfloat16):
        x, _ = model.hidden(inputs)
    return head_loss(x.reshape(-1, x.shape[-1]).to(dtype), model.head_table, targets.reshape(-1))
