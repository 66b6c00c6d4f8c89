"""Base of tasks whose requests are a prompt and new tokens."""

from __future__ import annotations

from collections.abc import Iterator

from chipwise.model.ops.workload import Workload
from chipwise.model.space.space_spec import SpaceSpec

LATENCY = "tpot_p50"


def beyond_context(space: SpaceSpec, workload: Workload) -> Iterator[tuple[str, str]]:
    """A prompt and its new tokens that are more than models keep."""
    if workload.total_tokens > space.max_tokens:
        yield (
            "space.max_tokens",
            f"the workload needs {workload.total_tokens} tokens, models keep {space.max_tokens}; raise it",
        )
