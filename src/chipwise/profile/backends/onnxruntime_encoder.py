"""Encoders in ONNX Runtime on the CPU: files that ``deploy/onnx_encoder.py`` wrote. Needs numpy and onnxruntime alone.

To the harness an encoder is a model with prefill alone: texts in, embeddings out, nothing generated.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from chipwise.core.arrays import AnyArray
from chipwise.core.errors import MeasurementError
from chipwise.profile.backends.onnxruntime import load


class OnnxEncoder:
    """One exported encoder, loaded; ``facts["encodes"]`` says what it gives of a text."""

    def __init__(self, path: str | Path, *, threads: int = 1, loaded: tuple[Any, dict[str, Any]] | None = None) -> None:
        """Loads the file, unless ``loaded`` is what loading it gave."""
        self._session, self.facts = loaded or load(path, threads=threads)
        if "encodes" not in self.facts:
            raise MeasurementError(f"{path}: this model generates; open it with OnnxRuntimeSession")
        self.vocab_size: int = self.facts["vocab_size"]

    def prefill(self, tokens: AnyArray) -> AnyArray:
        """What :meth:`encode` gives of texts of one length."""
        return self.encode(tokens)

    def decode(self, tokens: AnyArray) -> AnyArray:
        """Nothing: an encoder does not generate.

        Raises:
            MeasurementError: Always.
        """
        raise MeasurementError(f"{self.facts['name']}: an encoder generates nothing")

    def encode(self, tokens: AnyArray, mask: AnyArray | None = None) -> AnyArray:
        """Embeddings (batch, width) of ``tokens`` (batch, tokens), or states (batch, tokens, width).

        ``mask`` is 0 at padding; it is needed only where texts differ in length.

        Raises:
            MeasurementError: A text is longer than the model's positions, or a mask that the file does not take.
        """
        if tokens.shape[1] > self.facts["max_tokens"]:
            raise MeasurementError(
                f"{self.facts['name']}: a text of {tokens.shape[1]} tokens; it has {self.facts['max_tokens']} positions"
            )
        inputs: dict[str, AnyArray] = {"tokens": np.ascontiguousarray(tokens, np.int64)}
        if self.facts["padded"]:
            inputs["mask"] = np.ones(tokens.shape, np.int32) if mask is None else mask.astype(np.int32)
        elif mask is not None and not mask.all():
            raise MeasurementError(f"{self.facts['name']}: export it with padded=True to encode texts with padding")
        result: AnyArray = self._session.run(None, inputs)[0]
        return result
