"""Step times that can be added with a pencil, for tests of the scheduler."""

from __future__ import annotations

import numpy as np

from chipwise.predict.load.load import Load
from chipwise.predict.load.step_times import StepTimes


def toy_table(*, token_s: float = 0.0, step_s: float = 0.0, position_s: float = 0.0, sequences: int = 64) -> StepTimes:
    """A step takes ``step_s``, ``token_s`` a token, and ``position_s`` a position that a sequence attends to."""
    most = 4096
    contexts = [0, 100_000]
    counts = np.array([1.0, float(sequences)])
    return StepTimes(
        body_s=[token_s * tokens for tokens in range(most + 1)],
        head_s=[0.0] * (sequences + 1),
        contexts=contexts,
        sequences=counts,
        attention_s=position_s * np.outer(counts, contexts),
        chunks=[0, most],
        pasts=[0, 100_000],
        chunk_s=[[0.0, 0.0], [0.0, 0.0]],
        host_s=step_s,
        sequence_host_s=0.0,
        decode_halfwidth=0.1,
        prompt_halfwidth=0.1,
    )


def toy_load(
    arrival_s: list[float], prompt: int | list[int] = 100, new: int | list[int] = 10, **others: object
) -> Load:
    """Requests with given arrival times."""
    count = len(arrival_s)
    fields: dict[str, object] = {
        "arrival_s": np.array(arrival_s, float),
        "prompt_tokens": np.broadcast_to(np.array(prompt), count).astype(np.int64),
        "new_tokens": np.broadcast_to(np.array(new), count).astype(np.int64),
        "kind": np.zeros(count, np.int64),
        "prefix": np.full(count, -1),
        "prefix_tokens": np.zeros(count, np.int64),
    }
    return Load(**(fields | others))
