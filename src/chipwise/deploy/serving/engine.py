"""The interface of a model that the server needs: text in, pieces of text out.

Importing this module does not load any runtime.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from chipwise.core.tables import Table

CHAT_PAGE = Path(__file__).with_name("chat.html")
Prompt = str | Sequence[int]
"""A text, or its tokens."""
Message = dict[str, str]
"""A message of a chat: ``role`` and ``content``."""
Gone = Callable[[], bool]
"""Function that returns whether the client has disconnected and no longer waits for the answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How the next token is chosen, and when an answer ends."""

    max_tokens: int | None = None  # maximum number of generated tokens; None: as many as the context holds
    temperature: float = 1.0  # 0: always the most likely token
    top_p: float = 1.0  # choose among the most likely tokens that have this probability together
    seed: int | None = None
    stop: tuple[str, ...] = ()  # the answer ends before these texts


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """A part of an answer. Counts and times refer to the answer up to and including this part."""

    text: str
    tokens: int  # generated tokens, including the one that ends the answer
    prompt_tokens: int
    prompt_s: float  # time from the start of the prompt to the first token
    decode_s: float  # time from the first token to this one
    finish: Literal["stop", "length"] | None = None  # in the last piece: why the answer ended


@dataclass(frozen=True, slots=True, kw_only=True)
class Promise:
    """The predicted time of a decode step, or of a pass if the model has no steps."""

    tpot_s: float
    low_s: float | None
    high_s: float | None
    of: str  # runtime, threads and request


class Engine(Protocol):
    """A loaded model that answers several requests at the same time; others wait for a free slot.

    ``generate`` raises an :class:`~chipwise.errors.InputError` before its first piece if the request is wrong. A caller
    that closes the iterator frees the slot. The same prompt and sampling with a temperature of 0 give the same text,
    whatever else is running.
    """

    name: str  # name of the model
    runtime: str
    version: str
    context: int  # maximum number of tokens of a prompt and its answer together
    slots: int
    chats: bool  # whether the model has a chat template

    def prompt_of(self, messages: Sequence[Message]) -> Prompt:
        """The prompt of a chat; without a chat template, the contents of the messages one after another."""
        ...

    def generate(self, prompt: Prompt, sampling: Sampling, *, gone: Gone) -> Generator[Piece, None, None]:
        """Yields the answer to ``prompt`` in pieces; stops early if ``gone`` returns True."""
        ...

    def close(self) -> None:
        """Ends the runtime."""
        ...


ENGINES = Table(
    "engine",
    "chipwise.engines",
    {
        ".onnx": "chipwise.deploy.serving.onnx_engine:OnnxEngine",
        ".gguf": "chipwise.deploy.serving.llama_engine:LlamaEngine",
    },
)
"""Engine classes, called as ``engine(path, slots=, context=, threads=)``, by the suffix of the model file."""


def joined(messages: Sequence[Message]) -> str:
    """The contents of messages as one text, for models that were not trained on chats."""
    return "\n\n".join(message["content"] for message in messages)
