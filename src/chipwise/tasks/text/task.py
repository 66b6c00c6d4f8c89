"""Text as a task: what its run file alone tells."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from chipwise.core.errors import SpecError
from chipwise.ops import Workload
from chipwise.optim.scaling import START, Law
from chipwise.space import SpaceSpec
from chipwise.space.metric import BITS_PER_BYTE, Metric
from chipwise.tasks.protocol import Picture, TaskData, Words
from chipwise.tasks.text.references import proportions


@dataclass(frozen=True, slots=True, kw_only=True)
class TextTask:
    """A decoder continues text. See :class:`chipwise.tasks.protocol.Task`."""

    metric: Metric = BITS_PER_BYTE
    pace: str = "tpot_p50"
    words: Words = field(default_factory=Words)
    law: Law = START
    defaults: Mapping[str, Any] = field(default_factory=dict)
    per_matrix: bool = False

    def require_fit(self, workload: Workload, space: SpaceSpec) -> None:
        """Raises SpecError where a prompt and its new tokens are more than models keep."""
        needed = workload.total_tokens
        if needed > space.max_tokens:
            raise SpecError(
                f"the workload needs {needed} tokens, models keep {space.max_tokens}; raise it",
                field="space.max_tokens",
            )

    def references(self, space: SpaceSpec) -> Iterator[dict[str, Any]]:
        """Llama-proportioned designs; see :mod:`chipwise.tasks.text.references`."""
        return proportions(space)

    def family(self, choices: Mapping[str, Any]) -> Hashable:
        """The vocabulary."""
        return int(choices["vocab_size"])

    def open(self, data: Mapping[str, Any], *, base: Path, folder: Path, space: SpaceSpec) -> TaskData:
        """Reads the text; see :class:`chipwise.tasks.text.data.TextData`."""
        from chipwise.tasks.text.data import TextData
        from chipwise.training.data import load_corpus
        from chipwise.training.tokenizer import TokenStore

        return TextData(TokenStore(load_corpus(data, base=base), folder, space.vocab_size))

    def pictures(self, samples: Mapping[str, Any]) -> Sequence[Picture]:
        """None: what models write is a table of the report."""
        return ()


TEXT = TextTask()
