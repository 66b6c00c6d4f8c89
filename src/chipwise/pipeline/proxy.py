"""A run that trains nothing before its final trainings: candidates are chosen by the scaling law alone.

Cheap and crude. What it is worth beside short trainings was not measured (docs/judging.md).
"""

from __future__ import annotations

from collections.abc import Sequence

from chipwise.pipeline.choosing import Deferring, Observation
from chipwise.space.search_space import Rows


class ProxyChooser(Deferring):
    """Chooses by the law; see :class:`chipwise.pipeline.choosing.Chooser`, which ranks what was trained in the end."""

    def next(self, count: int, observations: Sequence[Observation], taken: Sequence[Sequence[int]]) -> Rows:
        """Up to ``count`` rows, none of them in ``taken``; ``observations`` do not matter."""
        return self._own.by_law(count, taken)
