"""ONNX Runtime on the CPU, for files of ``deploy/export/onnx.py`` and, with ``onnxruntime_hf.py``, of other exporters.

Needs only numpy and onnxruntime.

All buffers are bound once. The KV cache is input and output in the same buffer, so a decode step copies nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from chipwise.core.arrays import AnyArray
from chipwise.deploy.runtimes import Facts, Session, SinglePass, check_positions, prompt_shape
from chipwise.deploy.runtimes.onnx_session import Loaded, bound, load, metadata_of, open_file, session_options
from chipwise.deploy.runtimes.onnxruntime_denoiser import OnnxDenoiser
from chipwise.deploy.runtimes.onnxruntime_graph import OnnxGraph
from chipwise.deploy.runtimes.onnxruntime_hf import HuggingFaceOnnx
from chipwise.errors import MeasurementError, MissingExtra

try:
    import onnxruntime as ort
except ImportError as error:  # pragma: no cover - depends on what is installed
    raise MissingExtra("onnxruntime", "search") from error


class OnnxRuntimeSession:
    """One exported file, loaded. See :class:`chipwise.deploy.runtimes.Session`."""

    def __init__(self, path: str | Path, *, capacity: int, batch: int = 1, loaded: Loaded | None = None) -> None:
        """Loads the file; ``loaded`` is its session and metadata if it is already open."""
        self._session, facts = loaded or load(path)
        if "encodes" in facts:
            raise MeasurementError(f"{path}: this model is an encoder; open it with OnnxEncoder")
        check_positions(path, facts["max_tokens"], capacity)
        self.vocab_size: int = facts["vocab_size"]
        self.facts: Facts = facts
        self._batch, self.capacity = batch, capacity
        self._learned = facts["positions"] == "learned"
        self._length = 0
        self._seqlens = np.zeros(batch, np.int32)
        self._total = np.zeros((), np.int32)
        self._cache: dict[str, AnyArray] = {}
        for layer, heads, size in facts["kv"]:
            for name in ("key", "value"):
                self._cache[f"{layer}.{name}"] = np.zeros((batch, heads, capacity, size), np.float32)
        self._conv_states: dict[str, AnyArray] = {  # last inputs of convolutions
            name: np.zeros((batch, channels, inputs), np.float32) for name, channels, inputs in facts.get("conv", ())
        }
        self._cache |= self._conv_states
        self._prompts: dict[int, tuple[ort.IOBinding, AnyArray, AnyArray, AnyArray]] = {}  # only for the last length
        self._logits = np.empty((batch, 1, self.vocab_size), np.float32)
        self._token = np.zeros((batch, 1), np.int64)
        self._position = np.zeros((batch, 1), np.int64)
        self._step = self._binding(self._token, self._position, self._logits)

    def prefill(self, tokens: AnyArray) -> AnyArray:
        """Clears the cache and runs ``tokens`` (batch, prompt)."""
        return self._run_prompt(tokens, self._logits if self.facts["logits"] == "last" else None)[:, -1]

    def decode(self, tokens: AnyArray) -> AnyArray:
        """Runs one more token of each sequence, ``tokens`` (batch, 1)."""
        if self._length >= self.capacity:
            raise MeasurementError(f"the cache holds {self.capacity} positions and is full")
        self._token[:] = tokens
        self._position.fill(self._length)
        self._seqlens.fill(self._length)
        self._length += 1
        self._total.fill(self._length)
        self._session.run_with_iobinding(self._step)
        return self._logits[:, 0]

    def all_logits(self, tokens: AnyArray) -> AnyArray:
        """Logits of every position (batch, tokens, vocab) of a model exported with ``logits="all"``."""
        if self.facts["logits"] != "all":
            raise MeasurementError("this model returns only the last position's logits; export it with logits='all'")
        return self._run_prompt(tokens, None).copy()

    def _run_prompt(self, tokens: AnyArray, logits: AnyArray | None) -> AnyArray:
        """Processes a new prompt and returns its logits, written to the array ``logits``.

        If ``logits`` is None, the returned array has the logits of every position.
        """
        batch, length = prompt_shape(tokens, batch=self._batch, capacity=self.capacity)
        self._length = length
        for value in self._conv_states.values():
            value.fill(0.0)
        self._seqlens.fill(length - 1)
        self._total.fill(length)
        if length not in self._prompts:
            positions = np.ascontiguousarray(np.broadcast_to(np.arange(length, dtype=np.int64), tokens.shape))
            held = np.zeros((batch, length), np.int64)
            if logits is None:
                logits = np.empty((batch, length, self.vocab_size), np.float32)
            self._prompts = {length: (self._binding(held, positions, logits), held, positions, logits)}
        binding, held, _, bound_logits = self._prompts[length]
        held[:] = tokens
        self._session.run_with_iobinding(binding)
        return bound_logits

    def _binding(self, tokens: AnyArray, positions: AnyArray, logits: AnyArray) -> ort.IOBinding:
        """The session's inputs and outputs, which are these arrays and the cache."""
        inputs = {"tokens": tokens} | {f"past.{name}": value for name, value in self._cache.items()}
        if self._learned:
            inputs["positions"] = positions
        if self.facts["kv"]:
            inputs |= {"seqlens_k": self._seqlens, "total_sequence_length": self._total}
        outputs = {f"present.{name}": value for name, value in self._cache.items()}
        return bound(self._session, inputs, outputs | {"logits": logits})


class OnnxEncoder(SinglePass):
    """A loaded encoder. The harness treats its pass as a prefill; ``facts["encodes"]`` names its output."""

    def __init__(self, path: str | Path, *, loaded: Loaded | None = None) -> None:
        """Loads the file; ``loaded`` is its session and metadata if it is already open."""
        self._session, self.facts = loaded or load(path)
        if "encodes" not in self.facts:
            raise MeasurementError(f"{path}: this model is a decoder; open it with OnnxRuntimeSession")
        self.vocab_size: int = self.facts["vocab_size"]

    def prefill(self, tokens: AnyArray) -> AnyArray:
        """Encodes texts of equal length; see :meth:`encode`."""
        return self.encode(tokens)

    def encode(self, tokens: AnyArray, mask: AnyArray | None = None) -> AnyArray:
        """Embeddings (batch, width) of ``tokens`` (batch, tokens), or hidden states (batch, tokens, width).

        ``mask`` is 0 at padding; it is needed only if texts differ in length.

        Raises:
            MeasurementError: A text has more tokens than the model has positions, or the file does not accept a mask.
        """
        if tokens.shape[1] > self.facts["max_tokens"]:
            raise MeasurementError(
                f"{self.facts['name']}: a text has {tokens.shape[1]} tokens, but the model has "
                f"{self.facts['max_tokens']} positions"
            )
        inputs: dict[str, AnyArray] = {"tokens": np.ascontiguousarray(tokens, np.int64)}
        if self.facts["padded"]:
            inputs["mask"] = np.ones(tokens.shape, np.int32) if mask is None else mask.astype(np.int32)
        elif mask is not None and not mask.all():
            raise MeasurementError(f"{self.facts['name']}: export it with padded=True to encode texts with padding")
        result: AnyArray = self._session.run(None, inputs)[0]
        return result


class OnnxClassifier(SinglePass):
    """A loaded model of images, sounds or short texts. The harness treats its pass as a prefill."""

    def __init__(self, path: str | Path, *, batch: int = 1, loaded: Loaded | None = None) -> None:
        """Loads the file for ``batch`` inputs at a time; ``loaded`` is its session and metadata if already open."""
        self._session, self.facts = loaded or load(path)
        if "image" not in self.facts:
            raise MeasurementError(f"{path}: this model reads neither images nor sounds")
        self.vocab_size = 0
        given, result = self._session.get_inputs()[0].name, self._session.get_outputs()[0]
        shape = self.facts.get("gives", result.shape[1:])
        dtype = np.int64 if "numbers" in self.facts else np.float32
        self._images = np.zeros((batch, *self.facts["image"]), dtype)
        self._logits = np.empty((batch, *shape), np.float32)
        self._words = np.zeros((batch, self.facts.get("question", 0)), np.int64)
        words = {"words": self._words} if "question" in self.facts else {}
        self._binding = bound(self._session, {given: self._images, **words}, {result.name: self._logits})

    def prefill(self, images: AnyArray, words: AnyArray | None = None) -> AnyArray:
        """The model's outputs for ``images``, which may be images, spectrograms, sounds or texts.

        For images (batch, C, Y, X): logits (batch, classes). If the images have questions, ``words`` (batch, Q) are
        the questions and the classes are answers. For spectrograms (batch, bands, frames) or sounds (batch, samples):
        logits (batch, positions, characters), or hidden states. For texts (batch, words): logits (batch, classes).
        """
        self._images[:] = images
        if words is not None:
            self._words[:] = words
        self._session.run_with_iobinding(self._binding)
        return self._logits


class OnnxRanker(SinglePass):
    """A loaded ranking model. The harness treats its pass as a prefill, with item ids as prompts."""

    def __init__(
        self, path: str | Path, *, batch: int = 1, candidates: int | None = None, loaded: Loaded | None = None
    ) -> None:
        """Loads the file; ``loaded`` is its session and metadata if it is already open.

        It processes ``batch`` requests at a time with ``candidates`` each (the design's number unless given).
        """
        self._session, self.facts = loaded or load(path)
        if "request" not in self.facts:
            raise MeasurementError(f"{path}: this model does not rank candidates")
        request = self.facts["request"]
        self.vocab_size, self._history = 0, request["history"]
        count = request["candidates"] if candidates is None else candidates
        sizes = {"history": self._history, "candidates": count}
        self._ids = {name: np.zeros((batch, size), np.int64) for name, size in sizes.items()}
        self._tags: dict[str, AnyArray] = {}
        if request["bag"]:
            tagged = {"history_tags": self._history, "candidate_tags": count}
            self._tags = {name: np.zeros((batch, size, request["bag"]), np.int64) for name, size in tagged.items()}
        self._scores = np.empty((batch, count), np.float32)
        self._binding = bound(self._session, self._ids | self._tags, {"scores": self._scores})

    def prefill(self, requests: AnyArray) -> AnyArray:
        """Scores (batch, C) of requests (batch, S + C, 1 + bag): the history, then the candidates, with their tags."""
        for part, where in ((self._ids, 0), (self._tags, slice(1, None))):
            for value, places in zip(
                part.values(), (slice(0, self._history), slice(self._history, None)), strict=False
            ):
                value[:] = requests[:, places, where]
        self._session.run_with_iobinding(self._binding)
        return self._scores


class OnnxRuntime:
    """ONNX Runtime with its CPU provider. See :class:`chipwise.deploy.runtimes.Runtime`."""

    name = "onnxruntime"

    def version(self) -> str:
        """The runtime's own version."""
        return str(ort.__version__)

    def open(self, path: Path, *, capacity: int, batch: int, threads: int, options: Mapping[str, object]) -> Session:
        """Loads a model that chipwise exported, or a file of another exporter, which the runtime optimises."""
        if set(options) == {"feed"}:
            return OnnxGraph(path, Path(str(options["feed"])), threads=threads)
        if options:
            raise MeasurementError(f"the onnxruntime backend takes no options, but {sorted(options)} were given")
        return _session(path, *_loaded(path, threads), capacity=capacity, batch=batch)

    def open_shared(self, path: Path, *, count: int, capacity: int, threads: int) -> list[Session]:
        """Opens ``count`` sessions of one sequence each over one copy of the weights.

        Sessions may run at the same time in different threads, but each session in only one thread at a time. Each
        cache holds ``capacity`` positions, or all positions of the model if it has fewer.

        Raises:
            MeasurementError: The file is not a model that this runtime can run.
        """
        session, facts = _loaded(path, threads)
        most = capacity if facts is None else min(capacity, facts.get("max_tokens", capacity))
        return [_session(path, session, facts, capacity=most, batch=1) for _ in range(count)]


def _loaded(path: Path, threads: int) -> tuple[ort.InferenceSession, Facts | None]:
    """Returns the session and the file's metadata; a file of another exporter has no metadata and is optimised."""
    settings = session_options(threads)
    session = open_file(path, settings)
    facts = metadata_of(session)
    if facts is None:
        del session  # so that its memory is not counted as the model's
        settings.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_ALL
        session = open_file(path, settings)
    return session, facts


def _session(path: Path, session: ort.InferenceSession, facts: Facts | None, *, capacity: int, batch: int) -> Session:
    if facts is None:
        return HuggingFaceOnnx(path, session, capacity=capacity, batch=batch)
    loaded = (session, facts)
    if "steps" in facts:
        return OnnxDenoiser(path, batch=batch, loaded=loaded)
    if "image" in facts:
        return OnnxClassifier(path, batch=batch, loaded=loaded)
    if "request" in facts:
        return OnnxRanker(path, batch=batch, loaded=loaded)
    if "encodes" in facts:
        return OnnxEncoder(path, loaded=loaded)
    return OnnxRuntimeSession(path, capacity=capacity, batch=batch, loaded=loaded)
