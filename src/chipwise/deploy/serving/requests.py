"""Requests and replies in the shape of OpenAI's API.

References:
    https://platform.openai.com/docs/api-reference/completions and /chat. ``timings`` in replies has the fields
    that llama.cpp's server returns.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from chipwise.core.fields import describe
from chipwise.deploy.serving.engine import Engine, Message, Piece, Prompt, Sampling
from chipwise.errors import ChipwiseError, InputError, SpecError, UnknownName, short

Fields = Mapping[str, object]
ROLES = ("system", "developer", "user", "assistant", "tool")
MOST_STOPS = 16
_UNUSED: Mapping[str, tuple[object, ...]] = {  # fields that are refused unless they have one of these values
    **dict.fromkeys(("n", "best_of"), (1,)),
    **dict.fromkeys(("echo", "logprobs"), (False, 0)),
    **dict.fromkeys(("presence_penalty", "frequency_penalty"), (0,)),
    **dict.fromkeys(("suffix", "top_logprobs"), ("", 0)),
    **dict.fromkeys(("tools", "functions", "logit_bias", "audio"), ([], {})),
    "tool_choice": ("none", "auto"),
    "response_format": ({"type": "text"},),
    "modalities": (["text"],),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A request for one answer."""

    kind: Literal["chat.completion", "text_completion"]
    prompt: Prompt
    sampling: Sampling
    stream: bool
    include_usage: bool
    model: str
    id: str = field(default_factory=lambda: secrets.token_hex(12))
    created: int = field(default_factory=lambda: int(time.time()))

    def reply(self, text: str, last: Piece) -> dict[str, object]:
        """Returns the reply with the complete answer."""
        chat = self.kind == "chat.completion"
        said = {"message": {"role": "assistant", "content": text}} if chat else {"text": text}
        return {
            **self._head(""),
            "choices": [_choice(said, last.finish)],
            "usage": usage(last),
            "timings": timings(last),
        }

    def chunk(self, piece: Piece, *, first: bool) -> dict[str, object]:
        """Returns one part of a streamed answer."""
        role = {"role": "assistant"} if first else {}
        chat = self.kind == "chat.completion"
        said = {"delta": {**role, "content": piece.text}} if chat else {"text": piece.text}
        also = {"usage": None} if self.include_usage else {}
        return {**self._head(".chunk"), "choices": [_choice(said, piece.finish)], **also, "timings": timings(piece)}

    def end(self, last: Piece) -> dict[str, object]:
        """Returns the part with the counts of tokens, which ends a streamed answer if the client asks for it."""
        return {**self._head(".chunk"), "choices": [], "usage": usage(last)}

    def _head(self, part: str) -> dict[str, object]:
        chat = self.kind == "chat.completion"
        kind = f"{self.kind}{part}" if chat else self.kind
        prefix = "chatcmpl" if chat else "cmpl"
        return {"id": f"{prefix}-{self.id}", "object": kind, "created": self.created, "model": self.model}


def _choice(said: Fields, finish: str | None) -> dict[str, object]:
    return {"index": 0, **said, "logprobs": None, "finish_reason": finish}


def usage(last: Piece) -> dict[str, int]:
    """Returns the number of tokens in the prompt, the number of generated tokens, and their sum."""
    whole = last.prompt_tokens + last.tokens
    return {"prompt_tokens": last.prompt_tokens, "completion_tokens": last.tokens, "total_tokens": whole}


def timings(piece: Piece) -> dict[str, object]:
    """Measured times in milliseconds by llama.cpp's names; decoding times exist from the second token on."""
    steps = piece.tokens - 1
    found: dict[str, object] = {"prompt_n": piece.prompt_tokens, "prompt_ms": 1e3 * piece.prompt_s}
    found |= {"predicted_n": piece.tokens, "predicted_ms": 1e3 * piece.decode_s}
    return found | ({"predicted_per_token_ms": 1e3 * piece.decode_s / steps} if steps > 0 else {})


def failure(error: ChipwiseError, *, code: str | None = None) -> dict[str, object]:
    """An error in OpenAI's shape."""
    wrong = isinstance(error, InputError)
    kind = "invalid_request_error" if wrong else "server_error"
    param = error.field if isinstance(error, SpecError) else None
    return {"error": {"message": str(error), "type": kind, "param": param, "code": code}}


def parsed(body: bytes, *, chat: bool, model: str, engine: Engine) -> Request:
    """The request in ``body``.

    Raises:
        UnknownName: The request names a different model.
        InputError: The body is not JSON, or a field is wrong or asks for something that is not supported.
    """
    try:
        data = json.loads(body)
    except (ValueError, RecursionError):
        raise InputError("the body is not JSON") from None
    if not isinstance(data, dict):
        raise InputError(f"the body must be an object, not {describe(data)}")
    if data.get("model") not in (None, model):
        raise UnknownName("model", data["model"], [model])
    for name, allowed in _UNUSED.items():
        if data.get(name) is not None and not any(data[name] == value for value in allowed):
            raise SpecError("is not supported here; leave it out", field=name)
    most = "max_completion_tokens" if chat and data.get("max_completion_tokens") is not None else "max_tokens"
    unstated = None if chat else 16  # OpenAI's default
    sampling = Sampling(
        max_tokens=_whole(data, most, unstated, least=1),
        temperature=_number(data, "temperature", 2.0),
        top_p=_number(data, "top_p", 1.0),
        seed=_whole(data, "seed", None, least=-(2**63)),
        stop=_stops(data.get("stop")),
    )
    options = data.get("stream_options") or {}
    if not isinstance(options, dict):
        raise SpecError(f"must be an object, not {describe(options)}", field="stream_options")
    return Request(
        kind="chat.completion" if chat else "text_completion",
        prompt=engine.prompt_of(_messages(data.get("messages"))) if chat else _prompt(data.get("prompt")),
        sampling=sampling,
        stream=_flag(data, "stream"),
        include_usage=_flag(options, "include_usage"),
        model=model,
    )


def _prompt(value: object) -> Prompt:
    if isinstance(value, list) and len(value) == 1 and isinstance(value[0], str | list):
        value = value[0]  # a list of one prompt
    if isinstance(value, str):
        return value
    if isinstance(value, list) and value and all(type(item) is int for item in value):
        return value
    raise SpecError(f"must be one text or a list of tokens, not {describe(value)}", field="prompt")


def _messages(value: object) -> list[Message]:
    if not isinstance(value, list) or not value:
        raise SpecError(f"must be a list of messages, not {describe(value)}", field="messages")
    return [_message(item, f"messages[{place}]") for place, item in enumerate(value)]


def _message(item: object, where: str) -> Message:
    if not isinstance(item, dict):
        raise SpecError(f"must be an object, not {describe(item)}", field=where)
    role, content = item.get("role"), item.get("content")
    if role not in ROLES:
        raise SpecError(f"must be one of {', '.join(ROLES)}, not {short(role)}", field=f"{where}.role")
    if isinstance(content, list):
        content = "".join(part["text"] for part in content) if all(map(_is_text, content)) else None
    if not isinstance(content, str):
        raise SpecError("must be text, or a list of parts of type text", field=f"{where}.content")
    return {"role": "system" if role == "developer" else str(role), "content": content}


def _is_text(part: object) -> bool:
    return isinstance(part, dict) and part.get("type") == "text" and isinstance(part.get("text"), str)


def _stops(value: object) -> tuple[str, ...]:
    found: Sequence[object] = [value] if isinstance(value, str) else value if isinstance(value, list) else []
    if (value is not None and not isinstance(value, str | list)) or not all(isinstance(s, str) and s for s in found):
        raise SpecError("must be a text that is not empty, or a list of such texts", field="stop")
    if len(found) > MOST_STOPS:
        raise SpecError(f"has {len(found)} texts; at most {MOST_STOPS} are allowed", field="stop")
    return tuple(map(str, found))


def _whole(data: Fields, name: str, usual: int | None, *, least: int) -> int | None:
    value = data.get(name)
    if value is None:
        return usual
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value < 2**63:
        raise SpecError(f"must be a whole number of at least {least}, not {short(value)}", field=name)
    return value


def _number(data: Fields, name: str, most: float) -> float:
    value = data.get(name)
    if value is None:
        return 1.0
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value <= most:
        raise SpecError(f"must be a number from 0 to {most:g}, not {short(value)}", field=name)
    return float(value)


def _flag(data: Fields, name: str) -> bool:
    value = data.get(name)
    if value is not None and not isinstance(value, bool):
        raise SpecError(f"must be true or false, not {short(value)}", field=name)
    return bool(value)
