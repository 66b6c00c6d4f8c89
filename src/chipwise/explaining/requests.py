"""Questions as the serving model reads them."""

from __future__ import annotations

from chipwise.explaining.question import Question
from chipwise.serve.request import Request


def request_of(question: Question, device: str) -> Request:
    """The question as the serving model reads it."""
    return Request(
        model=question.arch,
        device=question.device or device,
        runtime=question.runtime,
        weights=question.weights,
        kv=question.kv,
        tp=question.tp,
        pp=question.pp,
        ep=question.ep,
        dp=question.dp,
        batch=question.batch,
        prompt_tokens=question.prompt_tokens,
        new_tokens=question.new_tokens,
        cached_tokens=question.cached_tokens,
        wide_layers=question.wide_layers,
    )
