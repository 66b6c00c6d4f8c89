"""Converts generated tokens to text one by one, renders chat templates, and chooses the next token."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from jinja2 import TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers.decoders import DecodeStream

from chipwise.core.arrays import AnyArray
from chipwise.deploy.serving.engine import Message, Sampling
from chipwise.errors import SpecError

if TYPE_CHECKING:
    from tokenizers import Tokenizer


class Written:
    """The text of tokens that arrive one by one: only complete characters, and nothing from the first stop text on.

    Args:
        tokenizer: The model's tokenizer.
        stop: Texts that end the answer. If the text so far ends with the beginning of one of them, that ending is held
            back until later tokens show whether the rest of the stop text follows.
    """

    def __init__(self, tokenizer: Tokenizer, stop: Sequence[str]) -> None:
        self._tokenizer, self._stop = tokenizer, stop
        self._stream = DecodeStream(skip_special_tokens=True)
        self._tokens: list[int] = []
        self._decoded, self._held = "", ""
        self.stopped = False

    def add(self, token: int) -> str:
        """Adds a token; returns the text that is now certain, which may be empty."""
        self._tokens.append(token)
        return self._take(self._stream.step(self._tokenizer, token) or "")

    def rest(self) -> str:
        """Returns the text that was held back, at the end of the answer."""
        whole = self._tokenizer.decode(self._tokens, skip_special_tokens=True)
        more = whole[len(self._decoded) :] if whole.startswith(self._decoded) else ""
        text = self._take(more)
        return text if self.stopped else text + self._held

    def _take(self, text: str) -> str:
        self._decoded += text
        self._held += text
        places = [place for stop in self._stop if (place := self._held.find(stop)) >= 0]
        if places:
            self.stopped = True
            return self._held[: min(places)]
        kept = max((_overlap(self._held, stop) for stop in self._stop), default=0)
        certain, self._held = self._held[: len(self._held) - kept], self._held[len(self._held) - kept :]
        return certain


def _overlap(text: str, stop: str) -> int:
    """Length of the longest suffix of ``text`` that is a prefix of ``stop``."""
    return next((size for size in range(min(len(text), len(stop)), 0, -1) if text.endswith(stop[:size])), 0)


def chosen(logits: AnyArray, sampling: Sampling, generator: np.random.Generator) -> int:
    """Chooses the next token from ``logits`` (vocab,): the most likely one, or a random one among the likely ones."""
    if sampling.temperature == 0:
        return int(logits.argmax())
    scaled = logits.astype(np.float64) / sampling.temperature
    weights = np.exp(scaled - scaled.max())
    weights /= weights.sum()
    if sampling.top_p < 1:
        order = np.argsort(-weights, kind="stable")
        before = np.cumsum(weights[order]) - weights[order]
        weights[order[before >= max(sampling.top_p, 1e-9)]] = 0
        weights /= weights.sum()
    return int(generator.choice(len(weights), p=weights))


class ChatTemplate:
    """A model's chat template, rendered in Jinja's sandbox, which gives it no access to Python.

    Args:
        text: The template, in Jinja's language.
        special: Texts of special tokens, such as ``bos_token``.
    """

    def __init__(self, text: str, special: Mapping[str, str | None]) -> None:
        room = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
        )
        room.globals["raise_exception"] = _refused
        try:
            self._template = room.from_string(text)
        except TemplateError as error:
            raise SpecError(f"is not a template: {error}", field="chat_template") from None
        self._special = special

    def render(self, messages: Sequence[Message]) -> str:
        """The prompt of a chat, up to the beginning of the answer.

        Raises:
            SpecError: The template refuses the messages.
        """
        try:
            return str(self._template.render(messages=messages, add_generation_prompt=True, **self._special))
        except (TemplateError, TypeError) as error:
            raise SpecError(f"the model's chat template refuses these messages: {error}", field="messages") from None


def _refused(message: str) -> None:
    raise TemplateError(message)
