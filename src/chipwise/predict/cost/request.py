"""Total of one request: the only definition behind every throughput, energy and price."""

from __future__ import annotations

from typing import Any


def request_total(prefill: Any, step: Any, new_tokens: Any) -> Any:
    """Total of a request: the prompt's pass, which gives the first token, and one decode step for each token after it.

    Args:
        prefill: Seconds, or joules, of the prompt's pass.
        step: The same of one decode step; 0 for a model that generates nothing.
        new_tokens: Tokens of the answer.
    """
    return prefill + (new_tokens - 1) * step


def price_shares(request: Any, step: Any, new_tokens: Any) -> tuple[Any, Any]:
    """Splits a request's total into the prompt's part and the new tokens' part.

    The new tokens' part is one decode step for each after the first. All else is the prompt's: its pass, and what
    others wait for it.

    Args:
        request: Seconds of a request.
        step: Seconds of one decode step without waiting; 0 for a model that generates nothing.
        new_tokens: Tokens of the answer.
    """
    written = (new_tokens - 1) * step
    return request - written, written


def throughput(prefill_s: Any, step_s: Any, new_tokens: Any, in_flight: Any) -> Any:
    """New tokens per second of all requests in flight, each taking :func:`request_total`.

    Args:
        prefill_s: Seconds of the prompt's pass.
        step_s: Seconds of one decode step.
        new_tokens: Tokens of the answer.
        in_flight: Requests at once.
    """
    return in_flight * new_tokens / request_total(prefill_s, step_s, new_tokens)
