"""Totals of one request, from which throughput, energy and price are computed."""

from __future__ import annotations

from typing import overload

from chipwise.core.arrays import AnyArray, Float64Array
from chipwise.core.dtypes import Size


@overload
def request_total(prefill: float, step: float, new_tokens: int) -> float: ...
@overload
def request_total(prefill: Float64Array, step: Float64Array, new_tokens: int | AnyArray) -> Float64Array: ...
def request_total(prefill: Size, step: Size, new_tokens: Size) -> Size:
    """Total of a request: the pass over the prompt, which gives the first token, and a decode step per further token.

    Args:
        prefill: Seconds, or joules, of the prompt's pass.
        step: Seconds, or joules, of one decode step; 0 for a model that generates nothing.
        new_tokens: Tokens of the answer.
    """
    return prefill + (new_tokens - 1) * step


@overload
def price_shares(request: float, step: float, new_tokens: int) -> tuple[float, float]: ...
@overload
def price_shares(
    request: Float64Array, step: Float64Array, new_tokens: int | AnyArray
) -> tuple[Float64Array, Float64Array]: ...
def price_shares(request: Size, step: Size, new_tokens: Size) -> tuple[Size, Size]:
    """Splits the seconds of a request into the prompt's part and the new tokens' part.

    The new tokens' part is one decode step for each token after the first. The prompt's part is the remaining time: the
    pass over the prompt, and the time that the request waits for the prompts of other requests.

    Args:
        request: Seconds of a request.
        step: Seconds of one decode step without waiting; 0 for a model that generates nothing.
        new_tokens: Tokens of the answer.
    """
    written = (new_tokens - 1) * step
    return request - written, written


@overload
def throughput(prefill_s: float, step_s: float, new_tokens: int, in_flight: int) -> float: ...
@overload
def throughput(
    prefill_s: Float64Array, step_s: Float64Array, new_tokens: int | AnyArray, in_flight: int | AnyArray
) -> Float64Array: ...
def throughput(prefill_s: Size, step_s: Size, new_tokens: Size, in_flight: Size) -> Size:
    """New tokens per second, summed over all requests in flight. :func:`request_total` gives the time of a request.

    Args:
        prefill_s: Seconds of the prompt's pass.
        step_s: Seconds of one decode step.
        new_tokens: Tokens of the answer.
        in_flight: Number of concurrent requests.
    """
    return in_flight * new_tokens / (prefill_s + (new_tokens - 1) * step_s)
