"""Checks for tasks whose requests consist of a prompt and generated tokens."""

from __future__ import annotations

from collections.abc import Iterator

from chipwise.model.ops.workload import Workload
from chipwise.model.space.space_spec import SpaceSpec

LATENCY = "tpot_p50"


def beyond_context(space: SpaceSpec, workload: Workload) -> Iterator[tuple[str, str]]:
    """Returns field and error message if prompt and generated tokens exceed the models' context; empty otherwise."""
    if workload.total_tokens > space.max_tokens:
        yield (
            "space.max_tokens",
            f"the workload needs {workload.total_tokens} tokens; raise max_tokens, which is {space.max_tokens}",
        )
