"""A run that trains nothing before its final trainings: candidates are chosen by the scaling law alone.

Cheap and crude. What it is worth beside short trainings was not measured (docs/judging.md).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from chipwise.run.choose import Chooser, Floats, Observation
from chipwise.space.space import Rows


class ProxyChooser:
    """Chooses by the law; see :class:`chipwise.run.choose.Chooser`, which ranks what was trained in the end."""

    def __init__(self, chooser: Chooser) -> None:
        self._own = chooser

    def next(self, count: int, observations: Sequence[Observation], taken: Sequence[Sequence[int]]) -> Rows:
        """Up to ``count`` rows, none of them in ``taken``; ``observations`` do not matter."""
        return self._own.by_law(count, taken)

    def nearest(self, choices: Mapping[str, Any]) -> list[int]:
        """See :meth:`chipwise.run.choose.Chooser.nearest`."""
        return self._own.nearest(choices)

    def in_other_formats(self, row: Sequence[int]) -> Rows:
        """See :meth:`chipwise.run.choose.Chooser.in_other_formats`."""
        return self._own.in_other_formats(row)

    def law(self, rows: Rows) -> Floats:
        """See :meth:`chipwise.run.choose.Chooser.law`."""
        return self._own.law(rows)

    def expected(self, observations: Sequence[Observation], rows: Rows) -> tuple[Floats, Floats]:
        """See :meth:`chipwise.run.choose.Chooser.expected`."""
        return self._own.expected(observations, rows)
