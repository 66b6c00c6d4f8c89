"""Text as a task: what its run file alone tells."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from chipwise.errors import SpecError
from chipwise.model.ops.workload import Workload
from chipwise.model.space.space_spec import SpaceSpec
from chipwise.training.laws.scaling import START, Law
from chipwise.training.tasks.metric import BITS_PER_BYTE, Metric
from chipwise.training.tasks.protocol import Picture, TaskData, Words
from chipwise.training.tasks.text.references import proportions


@dataclass(frozen=True, slots=True, kw_only=True)
class TextTask:
    """A decoder continues text. See :class:`chipwise.training.tasks.protocol.Task`."""

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
        """Llama-proportioned designs; see :mod:`chipwise.training.tasks.text.references`."""
        return proportions(space)

    def family(self, choices: Mapping[str, Any]) -> Hashable:
        """The vocabulary."""
        return int(choices["vocab_size"])

    def open(self, data: Mapping[str, Any], *, base: Path, folder: Path, space: SpaceSpec) -> TaskData:
        """Reads the text; see :class:`chipwise.training.tasks.text.data.TextData`."""
        from chipwise.training.data.text import load_corpus
        from chipwise.training.data.tokenizer import TokenStore
        from chipwise.training.tasks.text.data import TextData

        return TextData(TokenStore(load_corpus(data, base=base), folder, space.vocab_size))

    def pictures(self, samples: Mapping[str, Any]) -> Sequence[Picture]:
        """None: what models write is a table of the report."""
        return ()


TEXT = TextTask()
