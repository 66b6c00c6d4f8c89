"""Settings of the ranking task that need no data: a transformer ranks candidate items after a history."""

from dataclasses import replace

from chipwise.training.tasks.metric import Metric
from chipwise.training.tasks.one_pass import LATENCY, LAW, defaults
from chipwise.training.tasks.protocol import Need, Task, TaskLabels
from chipwise.training.tasks.ranking.references import proportions
from chipwise.training.tasks.ranking.sections import sections

NDCG = Metric(name="ndcg", title="NDCG@10", unit="share", more_is_better=True, seed_sd=0.015)  # 0.011 over six seeds
LOAD = """\
import torch
from transformers import AutoModel

model = AutoModel.from_pretrained("winner", trust_remote_code=True)
# ids (requests, history + candidates, 1 + tags): the history's items, oldest first, then any number of candidates
scores = model(torch.ones(1, model.config.history + 100, 1 + model.config.bag, dtype=torch.long)).scores"""

RANKING = Task(
    name="ranking",
    forms=("ranker",),
    metric=NDCG,
    latency_metric=LATENCY,
    labels=TaskLabels(
        data="histories",
        entry=("request", "requests"),
        tokens="items",
        latency="time per request",
        curve="nats per item",
        verb="ranks what comes next",
        reference="transformer in the proportions of SASRec or HSTU",
        load=LOAD,
    ),
    law=replace(LAW, floor=0.3),
    needs=Need(part="ranking", message="is missing; describe requests: {items: 1682, history: 50, candidates: 128}"),
    defaults=defaults(NDCG, source="movielens-100k"),
    references=proportions,
    family=lambda choices: choices["mixing"],  # the kind of attention; only training shows which is better
    data="chipwise.training.tasks.ranking.data:RankingData",
    report_sections=sections,
    per_matrix=True,
)
