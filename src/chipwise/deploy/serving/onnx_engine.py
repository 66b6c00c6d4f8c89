"""ONNX Runtime as an engine: the weights are loaded once, each slot has its own cache.

A request keeps one slot from its prompt to its last token, so its logits do not depend on other requests.
"""

from __future__ import annotations

import queue
import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from chipwise.deploy.export.tokenizer_files import TOKENIZER, ends_of, read_tokenizer
from chipwise.deploy.runtimes import Session
from chipwise.deploy.runtimes.onnxruntime import OnnxRuntime, OnnxRuntimeSession
from chipwise.deploy.runtimes.onnxruntime_hf import HuggingFaceOnnx
from chipwise.deploy.serving.engine import Gone, Message, Piece, Prompt, Sampling, joined
from chipwise.deploy.serving.texts import ChatTemplate, Written, chosen
from chipwise.errors import SpecError, Unsupported

LOOK_S = 0.2  # seconds after which a waiting request checks again whether its client is still there


class OnnxEngine:
    """An exported decoder and the ``tokenizer.json`` in its folder. See :class:`Engine`.

    Raises:
        SpecError: There is no tokenizer, or it cannot be read.
        Unsupported: The model generates no text.
        MeasurementError: ONNX Runtime cannot load the file.
    """

    def __init__(self, path: Path, *, slots: int, context: int, threads: int) -> None:
        file = next((f for f in (path.parent / TOKENIZER, path.parent.parent / TOKENIZER) if f.is_file()), None)
        if file is None:
            raise SpecError("there is no tokenizer.json next to it, so it cannot read text", file=str(path))
        self._free: queue.Queue[Session] = queue.Queue()
        self.name, self.context = path.stem, context
        for session in OnnxRuntime().open_shared(path, count=slots, capacity=context, threads=threads):
            if not isinstance(session, OnnxRuntimeSession | HuggingFaceOnnx) or "encodes" in session.facts:
                raise Unsupported(f"{path}: this model generates no text; chipwise serve takes decoders")
            self.name, self.context = session.facts.get("name", path.stem), session.capacity
            self._free.put(session)
        self.runtime, self.version, self.slots = "onnxruntime", OnnxRuntime().version(), slots
        about = read_tokenizer(file, max_tokens=self.context)
        self._tokenizer = Tokenizer.from_file(str(file))
        self._ends = ends_of(file, about)
        self._start = about.roles.get("bos", about.roles.get("eos"))
        special = {f"{role}_token": self._tokenizer.id_to_token(number) for role, number in about.roles.items()}
        self._template = None if about.chat_template is None else ChatTemplate(about.chat_template, special)
        self.chats = self._template is not None

    def prompt_of(self, messages: Sequence[Message]) -> Prompt:
        """The prompt of a chat; without a chat template, the contents of the messages."""
        if self._template is None:
            return joined(messages)
        # the template writes the special tokens itself
        return list(self._tokenizer.encode(self._template.render(messages), add_special_tokens=False).ids)

    def generate(self, prompt: Prompt, sampling: Sampling, *, gone: Gone) -> Generator[Piece, None, None]:
        """Yields the answer in pieces, one for each token that completes a character."""
        ids = list(self._tokenizer.encode(prompt).ids) if isinstance(prompt, str) else list(prompt)
        if not ids and self._start is not None:
            ids = [self._start]
        if not 0 < len(ids) < self.context:
            raise SpecError(
                f"has {len(ids):,} tokens; the context takes from 1 to {self.context - 1:,}", field="prompt"
            )
        with self._slot(gone) as session:
            size = session.vocab_size if session is not None else 0
            if session is not None and not all(0 <= token < size for token in ids):
                raise SpecError(f"must be tokens from 0 to {size - 1:,}", field="prompt")
            if session is not None:
                yield from self._answer(session, ids, sampling, gone)

    def _answer(self, session: Session, ids: list[int], sampling: Sampling, gone: Gone) -> Iterator[Piece]:
        room = self.context - len(ids)
        most = room if sampling.max_tokens is None else min(room, sampling.max_tokens)
        generator, written = np.random.default_rng(sampling.seed), Written(self._tokenizer, sampling.stop)
        started = time.perf_counter()
        logits = session.prefill(np.array([ids], np.int64))
        first = time.perf_counter()
        for count in range(1, most + 1):
            token = chosen(logits[0], sampling, generator)
            ended = token in self._ends
            text = "" if ended else written.add(token)
            last = ended or written.stopped or count == most
            if last and not written.stopped:
                text += written.rest()
            ended = ended or written.stopped
            if gone():
                return
            if text or last:
                yield Piece(
                    text=text,
                    tokens=count,
                    prompt_tokens=len(ids),
                    prompt_s=first - started,
                    decode_s=time.perf_counter() - first,
                    finish=None if not last else "stop" if ended else "length",
                )
            if last:
                return
            logits = session.decode(np.array([[token]], np.int64))

    @contextmanager
    def _slot(self, gone: Gone) -> Iterator[Session | None]:
        """A free session, in order of arrival; None if the client left while it waited."""
        session = None
        while session is None and not gone():
            try:
                session = self._free.get(timeout=LOOK_S)
            except queue.Empty:
                continue
        try:
            yield session
        finally:
            if session is not None:
                self._free.put(session)

    def close(self) -> None:
        """Does nothing, because the sessions are freed with the engine."""
