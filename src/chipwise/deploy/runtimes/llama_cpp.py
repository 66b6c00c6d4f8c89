"""llama.cpp on the CPU, for GGUF files from ``deploy/export/gguf.py`` or from elsewhere.

It uses the C interface: one batch for the prompt, one per step; logits are read directly from llama.cpp's memory. The
cache is in FP32, so that logits equal those of the other runtimes, unless ``options={"cache": "f16"}`` selects
llama.cpp's default.
"""

from __future__ import annotations

import ctypes
import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from chipwise.core.arrays import AnyArray
from chipwise.deploy.runtimes import Facts, check_positions, prompt_shape
from chipwise.errors import MeasurementError, MissingExtra, UnknownName

try:
    import llama_cpp
except ImportError as error:  # pragma: no cover - depends on what is installed
    raise MissingExtra("llama-cpp-python", "llama-cpp") from error

CACHES = {"f32": 0, "f16": 1, "q8_0": 8, "q4_0": 2}  # ggml's codes of these types
_LEAST_LEVEL = 3  # log level: 3 is a warning, 4 an error
_warnings: list[str] = []


def _keep(level: int, text: bytes, _: object) -> None:
    """Stores llama.cpp's warnings and errors, which error messages quote; drops other lines of its log."""
    if level >= _LEAST_LEVEL and text.strip():
        _warnings.append(text.decode(errors="replace").strip())


_log = llama_cpp.llama_log_callback(_keep)  # keeps a reference while llama.cpp may call it
llama_cpp.llama_log_set(_log, ctypes.c_void_p(0))


class _Batch:
    """A ``llama_batch`` over numpy arrays, with ``length`` new tokens for each sequence.

    Logits are computed for the last token of each sequence.
    """

    def __init__(self, sequences: int, length: int) -> None:
        count = sequences * length
        self.tokens = np.zeros((sequences, length), np.int32)
        self.positions = np.tile(np.arange(length, dtype=np.int32), (sequences, 1))
        self._ones = np.ones(count, np.int32)
        self._numbers = np.repeat(np.arange(sequences, dtype=np.int32), length)
        wanted = np.zeros((sequences, length), np.int8)
        wanted[:, -1] = 1
        self._wanted = wanted
        int_pointer = ctypes.POINTER(ctypes.c_int32)
        first = self._numbers.ctypes.data
        self._sequences = (int_pointer * count)(*(ctypes.cast(first + 4 * i, int_pointer) for i in range(count)))
        self.struct = llama_cpp.llama_batch(
            n_tokens=count,
            token=self.tokens.ctypes.data_as(int_pointer),
            embd=None,
            pos=self.positions.ctypes.data_as(int_pointer),
            n_seq_id=self._ones.ctypes.data_as(int_pointer),
            seq_id=self._sequences,
            logits=self._wanted.ctypes.data_as(ctypes.POINTER(ctypes.c_int8)),
        )


class LlamaCppSession:
    """One GGUF file, loaded. See :class:`chipwise.deploy.runtimes.Session`."""

    def __init__(self, path: Path, *, capacity: int, batch: int, threads: int, cache: str) -> None:
        self._model = self._context = None
        _warnings.clear()
        if not path.is_file():
            raise MeasurementError(f"{path}: there is no such file")
        how = llama_cpp.llama_model_default_params()
        how.n_gpu_layers = 0
        self._model = llama_cpp.llama_model_load_from_file(str(path).encode(), how)
        if not self._model:
            raise MeasurementError(f"{path}: llama.cpp cannot load this model: {'; '.join(_warnings[-3:])}")
        own: Facts = json.loads(self._metadata("chipwise") or "{}")
        self.facts: Facts = {**own, "design": own.get("design", ""), "name": self._metadata("general.name") or ""}
        check_positions(path, llama_cpp.llama_model_n_ctx_train(self._model), capacity)
        self.vocab_size: int = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(self._model))
        made = llama_cpp.llama_context_default_params()
        made.n_ctx, made.n_seq_max, made.kv_unified = capacity * batch, batch, False
        made.n_batch = made.n_ubatch = capacity * batch
        made.n_threads = made.n_threads_batch = threads
        made.type_k = made.type_v = CACHES[cache]
        if cache == "f32":  # the flash attention kernel rounds to FP16
            made.flash_attn_type = llama_cpp.LLAMA_FLASH_ATTN_TYPE_DISABLED
        self._context = llama_cpp.llama_init_from_model(self._model, made)
        if not self._context:
            raise MeasurementError(f"{path}: llama.cpp cannot run this model: {'; '.join(_warnings[-3:])}")
        self._memory = llama_cpp.llama_get_memory(self._context)
        self._batch, self._capacity, self._length = batch, capacity, 0
        self._step = _Batch(batch, 1)
        self._prompts: dict[int, _Batch] = {}  # kept only for the last prompt length
        self._view: tuple[int, AnyArray] = (0, np.zeros((batch, self.vocab_size), np.float32))

    def prefill(self, tokens: AnyArray) -> AnyArray:
        """Clears the cache and runs ``tokens`` (batch, prompt)."""
        batch, length = prompt_shape(tokens, batch=self._batch, capacity=self._capacity)
        llama_cpp.llama_memory_clear(self._memory, False)
        if length not in self._prompts:
            self._prompts = {length: _Batch(batch, length)}
        self._length = length
        return self._run(self._prompts[length], tokens)

    def decode(self, tokens: AnyArray) -> AnyArray:
        """Runs one more token of each sequence, ``tokens`` (batch, 1)."""
        if self._length >= self._capacity:
            raise MeasurementError(f"the cache holds {self._capacity} positions and is full")
        self._step.positions.fill(self._length)
        self._length += 1
        return self._run(self._step, tokens)

    def _run(self, batch: _Batch, tokens: AnyArray) -> AnyArray:
        batch.tokens[:] = tokens
        code = llama_cpp.llama_decode(self._context, batch.struct)
        if code:
            raise MeasurementError(f"llama.cpp could not run {tokens.shape} tokens (code {code}): {_warnings[-1:]}")
        pointer = llama_cpp.llama_get_logits(self._context)
        address = ctypes.addressof(pointer.contents)
        if address != self._view[0]:
            self._view = (address, np.ctypeslib.as_array(pointer, (self._batch, self.vocab_size)))
        return self._view[1]

    def _metadata(self, key: str) -> str | None:
        """A string of the file's metadata; None if it has no such key."""
        size = llama_cpp.llama_model_meta_val_str(self._model, key.encode(), ctypes.create_string_buffer(1), 1)
        if size < 0:
            return None
        buffer = ctypes.create_string_buffer(size + 1)
        llama_cpp.llama_model_meta_val_str(self._model, key.encode(), buffer, size + 1)
        return buffer.value.decode()

    def __del__(self) -> None:
        if self._context:
            llama_cpp.llama_free(self._context)
        if self._model:
            llama_cpp.llama_model_free(self._model)


class LlamaCpp:
    """llama.cpp. See :class:`chipwise.deploy.runtimes.Runtime`."""

    name = "llama.cpp"

    def version(self) -> str:
        """The version of llama-cpp-python, which contains llama.cpp."""
        return str(llama_cpp.__version__)

    def open(
        self, path: Path, *, capacity: int, batch: int, threads: int, options: Mapping[str, object]
    ) -> LlamaCppSession:
        """Loads a GGUF file. Options: ``cache``, the format of keys and values (f32, f16, q8_0, q4_0)."""
        cache = str(options.get("cache", "f32"))
        if cache not in CACHES:
            raise UnknownName("cache format", cache, CACHES)
        if set(options) - {"cache"}:
            raise MeasurementError(f"the llama.cpp backend takes only the option `cache`, not {sorted(options)}")
        return LlamaCppSession(Path(path), capacity=capacity, batch=batch, threads=threads, cache=cache)
