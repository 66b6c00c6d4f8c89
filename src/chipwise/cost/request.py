"""What one request takes in all: the definition behind every rate, energy and price."""

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
