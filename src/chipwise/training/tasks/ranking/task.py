"""Ranking as a task: what its run file alone tells."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from chipwise.core.files import build
from chipwise.errors import SpecError
from chipwise.model.ops.workload import Workload
from chipwise.model.space.space_spec import SpaceSpec
from chipwise.training.laws.scaling import Law
from chipwise.training.tasks.metric import Metric
from chipwise.training.tasks.protocol import Picture, TaskData, Words
from chipwise.training.tasks.ranking.pictures import drawn
from chipwise.training.tasks.ranking.references import proportions

LAW = Law(
    floor=0.3, layers=1.0, head=0.0, text=60.0, size_exponent=0.3, text_exponent=0.34, level_known=False
)  # the shape of other small models; the level is that of the run's own trainings

NDCG = Metric(name="ndcg", title="NDCG@10", unit="share", more_is_better=True, seed_sd=0.015)  # 0.011 over six seeds
LOAD = """\
import torch
from transformers import AutoModel

model = AutoModel.from_pretrained("winner", trust_remote_code=True)
# ids (requests, history + candidates, 1 + tags): the history's items, oldest first, then any number of candidates
scores = model(torch.ones(1, model.config.history + 100, 1 + model.config.bag, dtype=torch.long)).scores"""
WORDS = Words(
    data="histories",
    entry=("request", "requests"),
    tokens="items",
    pace="time per request",
    curve="nats per item",
    does="ranks what comes next",
    reference="transformer in the proportions of SASRec or HSTU",
    load=LOAD,
)
EXAMPLE = "{items: 1682, history: 50, candidates: 128}"


@dataclass(frozen=True, slots=True, kw_only=True)
class RankingTask:
    """A transformer ranks candidates after a history. See :class:`chipwise.training.tasks.protocol.Task`."""

    metric: Metric = NDCG
    pace: str = "ttft_p50"
    words: Words = WORDS
    law: Law = LAW
    defaults: Mapping[str, Any] = field(
        default_factory=lambda: {
            "workload": {"prompt_tokens": 1, "new_tokens": 1},
            "objectives": {"ndcg": "maximize", "ttft_p50": "minimize"},
            "data": {"source": "movielens-100k"},
        }
    )
    per_matrix: bool = True

    def require_fit(self, workload: Workload, space: SpaceSpec) -> None:
        """Raises SpecError for a space that says nothing of requests."""
        if space.ranking is None:
            raise SpecError(f"says what requests hold: {EXAMPLE}", field="space.ranking")

    def references(self, space: SpaceSpec) -> Iterator[dict[str, Any]]:
        """Designs in the proportions of SASRec and HSTU; see :mod:`chipwise.training.tasks.ranking.references`."""
        return proportions(space)

    def family(self, choices: Mapping[str, Any]) -> Hashable:
        """The kind of attention: which is better cannot be told from sizes."""
        return str(choices["mixing"])

    def open(self, data: Mapping[str, Any], *, base: Path, folder: Path, space: SpaceSpec) -> TaskData:
        """Reads the interactions; see :class:`chipwise.training.tasks.ranking.data.RankingData`."""
        from chipwise.training.tasks.ranking.data import RankingData
        from chipwise.training.tasks.ranking.sources import InteractionsSpec

        assert space.ranking is not None
        return RankingData(build(InteractionsSpec, data, field="data"), base, folder, space.ranking)

    def pictures(self, samples: Mapping[str, Any]) -> Sequence[Picture]:
        """Some requests with what winner and reference design rank highest, and recall by length of the list."""
        return drawn(samples)


RANKING = RankingTask()
