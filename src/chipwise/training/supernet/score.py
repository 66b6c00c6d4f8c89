"""Scores sub-models with weights from the supernet, without training them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from chipwise.core.arrays import AnyArray
from chipwise.errors import InputError
from chipwise.model.arch.arch import ArchSpec
from chipwise.model.kinds.text.module import Transformer
from chipwise.model.nn.precision import fastest_precision, torch_dtype
from chipwise.training.data.tokens import TokenData
from chipwise.training.loop.evaluate import read
from chipwise.training.supernet.sliced import part_of, with_weights


def score(
    weights: Mapping[str, AnyArray | Tensor] | str | Path,
    whole: ArchSpec,
    archs: Sequence[ArchSpec],
    data: Mapping[int, TokenData] | TokenData,
    *,
    max_validation_bytes: int | None = None,
    dtype: torch.dtype | None = None,
) -> list[float]:
    """Validation bits per byte of the sub-models ``archs``, with the weights of the supernet ``whole``.

    Args:
        weights: Weights of ``whole``, or a safetensors file of them.
        whole: The supernet's architecture.
        archs: Sub-models of ``whole``.
        data: The text, tokenised for each vocabulary size.
        max_validation_bytes: Limit, in bytes, on the validation text that is evaluated.
        dtype: Number format of matrix products. Default: the faster one on this machine.

    Raises:
        InputError: The weights cannot be read, or ``data`` lacks a vocabulary.
        SpecError: An architecture is not a sub-model of ``whole``.
    """
    tensors = read_weights(weights)
    texts = {data.vocab_size: data} if isinstance(data, TokenData) else data
    missing = sorted({arch.vocab_size for arch in archs} - texts.keys())
    if missing:
        raise InputError(f"there is no tokenised text for vocabulary sizes {missing}, only for {sorted(texts)}")
    chosen = dtype or torch_dtype(fastest_precision())

    def bits_per_byte(model: Transformer) -> float:
        data = texts[model.arch.vocab_size]
        return data.quality(model.eval(), max_bytes=max_validation_bytes, dtype=chosen).bits_per_byte

    with torch.no_grad():
        return [with_weights(arch, part_of(arch, whole, tensors), bits_per_byte) for arch in archs]


def read_weights(weights: Mapping[str, AnyArray | Tensor] | str | Path) -> dict[str, Tensor]:
    """Converts arrays, tensors or a safetensors file to tensors by weight name.

    Raises:
        InputError: The file cannot be read.
    """

    arrays: Mapping[str, AnyArray | Tensor] = read(weights) if isinstance(weights, str | Path) else weights
    return {name: torch.as_tensor(value) for name, value in arrays.items()}
