"""ONNX files of other exporters in ONNX Runtime on the CPU. Needs only numpy and onnxruntime.

Inputs and outputs must have Hugging Face's names, as written by Optimum, transformers.js and ONNX Runtime GenAI. Input
names: ``input_ids``, ``attention_mask``, ``position_ids``, ``token_type_ids``, ``past_key_values.<layer>.key`` and
``.value``. Output names: ``present.<layer>.key`` and ``.value``; the first output may have any name. A file without a
cache is run as an encoder: a pass returns the file's first output, and no tokens are generated.

The runtime's default optimisations are used. Each step returns a longer cache, which the next step uses without a copy.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime as ort

from chipwise.core.arrays import AnyArray
from chipwise.deploy.runtimes import TEXT_INPUTS, TEXT_PAST, Facts, prompt_shape
from chipwise.errors import MeasurementError

_PRESENT = "present."
_TYPES = {
    "tensor(float)": np.float32,
    "tensor(float16)": np.float16,
    "tensor(int64)": np.int64,
    "tensor(int32)": np.int32,
}
_MOST_TOKENS = 1 << 20  # largest token id for the search of the vocabulary size


class HuggingFaceOnnx:
    """A loaded file with Hugging Face's names. See :class:`chipwise.deploy.runtimes.Session`.

    Raises:
        MeasurementError: The file has an unsupported input, or the shape of its cache is unknown.
    """

    def __init__(self, path: Path, session: ort.InferenceSession, *, capacity: int, batch: int) -> None:
        self._path, self._session, self.capacity, self._batch = path, session, capacity, batch
        self._types: dict[str, np.dtype[np.generic]] = {}
        self._empty: dict[str, AnyArray] = {}  # the cache before the first token
        for item in session.get_inputs():
            if item.type not in _TYPES or not (item.name in TEXT_INPUTS or item.name.startswith(TEXT_PAST)):
                raise MeasurementError(
                    f"{path}: its input {item.name!r} ({item.type}) is not supported; supported are "
                    f"{', '.join(TEXT_INPUTS)}, {TEXT_PAST}<layer>.key and .value, as Optimum writes them"
                )
            self._types[item.name] = np.dtype(_TYPES[item.type])
            if item.name.startswith(TEXT_PAST):
                self._empty[item.name] = self._no_past(item)
        if "input_ids" not in self._types:
            raise MeasurementError(f"{path}: it has no input 'input_ids', so it is not a text model")
        outputs = [item.name for item in session.get_outputs()]
        self._answer = outputs[0]
        self._next = {name: _PRESENT + name.removeprefix(TEXT_PAST) for name in self._empty}  # outputs' names by input
        lacking = sorted(set(self._next.values()) - set(outputs))
        if lacking:
            raise MeasurementError(f"{path}: it takes a cache but does not return {lacking[0]!r}; export it again")
        self.facts: Facts = {} if self._empty else {"encodes": self._answer}
        self._length = 0
        self._cache: dict[str, ort.OrtValue] = {}  # values owned by the runtime
        self.vocab_size = self._vocabulary()

    def prefill(self, tokens: AnyArray) -> AnyArray:
        """Clears the cache and processes ``tokens`` (batch, prompt); for an encoder, returns its output."""
        prompt_shape(tokens, batch=self._batch, capacity=self.capacity)
        self._length, self._cache = 0, {}
        answer = self._run(tokens)
        return answer[:, -1] if self._empty else answer

    def decode(self, tokens: AnyArray) -> AnyArray:
        """Runs one more token of each sequence, ``tokens`` (batch, 1)."""
        if not self._empty:
            raise MeasurementError(f"{self._path}: exported without a cache, so it cannot decode; export it with one")
        if self._length >= self.capacity:
            raise MeasurementError(f"the cache holds {self.capacity} positions and is full")
        return self._run(tokens)[:, -1]

    def _run(self, tokens: AnyArray) -> AnyArray:
        batch, count = tokens.shape
        total = self._length + count
        given = {
            "input_ids": tokens,
            "attention_mask": np.ones((batch, total)),
            "position_ids": np.broadcast_to(np.arange(self._length, total), tokens.shape),
            "token_type_ids": np.zeros(tokens.shape),
        }
        binding = self._session.io_binding()
        for name, kind in self._types.items():
            if name in given:
                binding.bind_cpu_input(name, np.ascontiguousarray(given[name], kind))
            elif self._length:
                binding.bind_ortvalue_input(name, self._cache[name])
            else:
                binding.bind_cpu_input(name, np.repeat(self._empty[name], batch, axis=0))
        names = [self._answer, *self._next.values()]
        for name in names:
            binding.bind_output(name, "cpu")
        try:
            self._session.run_with_iobinding(binding)
        except Exception as error:  # the runtime's errors have no common base class
            raise MeasurementError(
                f"{self._path}: ONNX Runtime failed at {batch} x {count} tokens after {self._length} others: {error}"
            ) from None
        answer, *kept = binding.get_outputs()
        self._cache = dict(zip(self._next, kept, strict=True))
        self._length = total
        numbers: AnyArray = answer.numpy().astype(np.float32, copy=False)
        return numbers

    def _no_past(self, item: ort.NodeArg) -> AnyArray:
        """An empty cache, (1, heads, 0, size)."""
        if len(item.shape) != 4 or not all(isinstance(item.shape[axis], int) for axis in (1, 3)):
            raise MeasurementError(
                f"{self._path}: the cache {item.name} has shape {item.shape}; the number of heads and their size must "
                "be numbers, as in (batch, heads, positions, size)"
            )
        return np.zeros((1, item.shape[1], 0, item.shape[3]), _TYPES[item.type])

    def _vocabulary(self) -> int:
        """Vocabulary size: the width of the logits if it is fixed, else found by trial."""
        shape = self._session.get_outputs()[0].shape
        if self._empty and len(shape) == 3 and isinstance(shape[-1], int):
            return shape[-1]
        known, unknown = 0, 1
        while unknown < _MOST_TOKENS and self._knows(unknown):
            known, unknown = unknown, 2 * unknown
        while unknown - known > 1:
            middle = (known + unknown) // 2
            known, unknown = (middle, unknown) if self._knows(middle) else (known, middle)
        return known + 1

    def _knows(self, token: int) -> bool:
        """Whether the model accepts the id ``token``; an embedding fails for ids without a row."""
        self._length, self._cache = 0, {}
        try:
            self._run(np.full((self._batch, 1), token))
        except MeasurementError:
            return False
        return True
