"""llama.cpp's results for a GGUF file, computed by the server in the package ``xllamacpp``.

The package has no function for logits; its server returns the log probability of every token, which equals the logit
minus a constant. llama.cpp ends its process if it does not accept a file, so :func:`ask` starts a separate one.
"""

from __future__ import annotations

import importlib.util
import json
import sys
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NotRequired, TypedDict, Unpack

import numpy as np

from chipwise.core.arrays import Float32Array
from chipwise.core.digest import plain
from chipwise.core.workers import Message, answer_of, answer_once
from chipwise.errors import MeasurementError, MissingExtra

CACHES = {"f32": "GGML_TYPE_F32", "f16": "GGML_TYPE_F16", "q8_0": "GGML_TYPE_Q8_0", "q4_0": "GGML_TYPE_Q4_0"}
TIMEOUT_S = 600.0
BEGIN = 4  # tokens of the text that a generated continuation starts from


def available() -> bool:
    """Whether xllamacpp is installed."""
    return importlib.util.find_spec("xllamacpp") is not None


class LlamaServer:
    """One GGUF file with a tokenizer, loaded by llama.cpp in this process.

    Args:
        path: The file.
        cache: Format of keys and values: ``f32``, ``f16`` (llama.cpp's default), ``q8_0`` or ``q4_0``. With ``f32``,
            the attention kernel that rounds to FP16 is not used.
        context: Maximum number of tokens of a prompt and its continuation together.
        slots: Requests that are answered at the same time.
        threads: Threads that compute.

    Raises:
        MissingExtra: xllamacpp is not installed.
        MeasurementError: llama.cpp cannot load the file.
    """

    def __init__(
        self, path: str | Path, *, cache: str = "f16", context: int = 512, slots: int = 1, threads: int = 1
    ) -> None:
        try:
            import xllamacpp
        except ImportError:
            raise MissingExtra("xllamacpp", "all") from None
        settings = xllamacpp.CommonParams()
        settings.model.path = str(path)
        settings.n_ctx, settings.n_parallel, settings.verbosity = context * slots, slots, -1
        settings.warmup = settings.ui = settings.kv_unified = False
        settings.cache_ram_mib = 0  # otherwise prompts of earlier requests fill up to 8 GiB of memory
        settings.cpuparams.n_threads = settings.cpuparams_batch.n_threads = threads
        settings.cache_type_k = settings.cache_type_v = getattr(xllamacpp.ggml_type, CACHES[cache])
        if cache == "f32":
            settings.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
        try:
            self._server = xllamacpp.Server(settings)
        except RuntimeError as error:
            raise MeasurementError(f"{path}: llama.cpp cannot load this file: {error}") from None
        self._letter = self.tokens("a")[-1]

    @property
    def address(self) -> str:
        """Address of the server, which only this machine can reach."""
        return str(self._server.listening_address)

    def tokens(self, text: str, *, special: bool = False) -> list[int]:
        """The tokens of ``text``; with ``special`` also the special tokens that the file adds to texts."""
        asked = {"content": text, "add_special": special, "parse_special": True}
        return [int(number) for number in self._post("/tokenize", asked)["tokens"]]

    def text(self, prompt: str | Sequence[int], new: int) -> str:
        """The most likely continuation of ``prompt``, with at most ``new`` tokens."""
        asked = {"prompt": prompt if isinstance(prompt, str) else list(prompt), "n_predict": new, "temperature": 0}
        return str(self._post("/completion", asked)["content"])

    def complete(self, prompt: Sequence[int], new: int) -> None:
        """Generates exactly ``new`` tokens after ``prompt``, whose cache is kept for the next call."""
        self._post(
            "/completion",
            {"prompt": list(prompt), "n_predict": new, "temperature": 0, "ignore_eos": True, "cache_prompt": True},
        )

    def log_probabilities(self, tokens: Sequence[int], vocab_size: int) -> Float32Array:
        """Natural log probability of each token id after ``tokens``.

        The server returns probabilities only when it outputs a whole character, so the output is constrained to a
        letter; the returned probabilities are those before the constraint.
        """
        asked = {
            "prompt": list(tokens),
            "n_predict": 1,
            "temperature": 0,
            "n_probs": vocab_size,
            "logit_bias": [[self._letter, 1e4]],
        }
        found = self._post("/completion", asked)["completion_probabilities"][0]["top_logprobs"]
        values = np.full(vocab_size, -np.inf, np.float32)
        values[[item["id"] for item in found]] = [item["logprob"] for item in found]
        return values

    def _post(self, place: str, data: Mapping[str, object]) -> Message:
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(self.address + place, json.dumps(data).encode(), headers)
        try:
            with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request) as reply:
                answer: Message = json.load(reply)
        except urllib.error.HTTPError as error:
            raise MeasurementError(f"llama.cpp refused {place}: {error.read().decode(errors='replace')}") from None
        return answer


class Question(TypedDict):
    """Arguments of :func:`ask`: what llama.cpp computes for a file.

    Attributes:
        vocab_size: Number of tokens in the model's vocabulary.
        text: Text to read; ``tokens`` in the answer are the tokens of this text.
        most_tokens: Maximum number of tokens; later tokens of the text are ignored.
        positions: Number of positions to evaluate: the last positions of the text, up to ``most_tokens``. ``places`` in
            the answer lists them; ``log_probabilities`` has, for each of them, the log probabilities of the next token.
            Every position after the first adds one token to the cache.
        new: Maximum number of tokens to generate. The prompt is the beginning of ``text``. ``text`` in the answer is
            the generated text.
        begin: Maximum number of tokens in this prompt. Default: ``BEGIN``.
        cache: See :class:`LlamaServer`. Default: ``f32``.
    """

    vocab_size: int
    text: str
    most_tokens: int
    positions: int
    new: int
    begin: NotRequired[int]
    cache: NotRequired[str]


class Request(Question):
    """A request to the separate process, with all fields."""

    path: str


class Answer(TypedDict):
    """Reply of the separate process."""

    tokens: list[int]
    places: list[int]
    log_probabilities: list[list[float]]
    text: str


def ask(path: str | Path, **question: Unpack[Question]) -> Answer:
    """Results of llama.cpp for the file ``path``, computed in a separate process.

    Raises:
        MissingExtra: xllamacpp is not installed.
        WorkerError: llama.cpp ended the process or did not answer.
        MeasurementError: llama.cpp cannot load the file.
    """
    if not available():
        raise MissingExtra("xllamacpp", "all")
    request: Request = {"path": str(path), "begin": BEGIN, "cache": "f32", **question}
    found: Answer = plain(answer_of(__name__, request, timeout_s=TIMEOUT_S, name="llama.cpp"))
    return found


def answer(request: Request) -> Answer:
    """Computes the reply to a request of :func:`ask`."""
    most, new, size = request["most_tokens"], request["new"], request["vocab_size"]
    server = LlamaServer(request["path"], cache=request["cache"], context=max(64, most + new))
    tokens = server.tokens(request["text"])[:most]
    places = list(range(max(0, len(tokens) - request["positions"]), len(tokens)))
    return {
        "tokens": tokens,
        "places": places,
        "log_probabilities": [server.log_probabilities(tokens[: place + 1], size).tolist() for place in places],
        "text": server.text(tokens[: max(1, min(request["begin"], most - new))], new),
    }


def main() -> int:
    """Reads a request from standard input and writes its reply."""
    return answer_once(answer)


if __name__ == "__main__":
    sys.exit(main())
