"""Computes how many bits exported graphs assign to text, from the logits at every position in ONNX Runtime."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from chipwise.core.arrays import AnyArray, Float64Array
from chipwise.core.files import storage
from chipwise.deploy.export.onnx import export
from chipwise.errors import MeasurementError
from chipwise.model.arch.design import Design
from chipwise.model.blocks.quantize import NEAREST, Packing
from chipwise.training.data.recipe import WINDOW_TOKENS
from chipwise.training.data.tokens import Tokens


def exported_bits(
    design: Design, weights: Mapping[str, AnyArray], stream: Tokens, path: Path, *, packing: Packing = NEAREST
) -> Float64Array:
    """Bits that the exported graph assigns to each token of ``stream`` after the first.

    Raises:
        MeasurementError: The graph's logits are not finite.
    """
    from chipwise.deploy.runtimes.onnxruntime import OnnxRuntimeSession

    with storage(path):
        export(design, weights, path, logits="all", packing=packing)
    try:
        window = min(WINDOW_TOKENS, design.arch.max_tokens)
        session = OnnxRuntimeSession(path, capacity=window)
        parts = []
        for start in range(0, len(stream) - 1, window):
            tokens = stream[start : start + window + 1].astype(np.int64)
            parts.append(nats_of(session.all_logits(tokens[None, :-1])[0], tokens[1:]))
    finally:
        path.unlink(missing_ok=True)
    found = np.concatenate(parts) / math.log(2)
    if not np.isfinite(found).all():
        raise MeasurementError(f"{path}: the exported model's logits are not finite")
    return found


def nats_of(logits_TV: NDArray[np.floating], tokens_T: NDArray[np.integer]) -> Float64Array:
    """Cross entropy of each token (T,) in nats, from the logits that predict it; exact to 1e-6 for FP32 logits."""
    shifted = logits_TV - logits_TV.max(axis=1, keepdims=True)
    picked = shifted[np.arange(len(shifted)), tokens_T].astype(np.float64)
    np.exp(shifted, out=shifted)
    found: Float64Array = np.log(shifted.sum(axis=1, dtype=np.float64)) - picked
    return found
