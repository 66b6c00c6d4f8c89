"""Lowers ranking models to operators: item tables (sharded or not), attention within a request, and scores.

Each device processes different requests. If the tables are sharded, the rows that a request needs are spread over all
devices: item numbers are sent in one all-to-all, and rows come back in another.

References:
    Tables sharded over devices, everything else replicated: Naumov et al. 2019, DLRM, arXiv:1906.00091, section 4.1.
    Computing the history once for all candidates: Zhai et al. 2024, arXiv:2402.17152, section 3.3 (M-FALCON).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from chipwise.core.dtypes import Size
from chipwise.model.arch.mixers import Attention
from chipwise.model.kinds.ranking.stem import RankingStem, Scores
from chipwise.model.ops.collective import CollectiveOp
from chipwise.model.ops.pool import PoolOp
from chipwise.predict.served.setting import PlacedOp, Setting, Step

ID_BYTES = 4  # bytes of an item number sent to the device with its row


def stem(setting: Setting, step: Step) -> Iterator[PlacedOp]:
    """The operators that look up a request's item embeddings; each data-parallel replica has a shard of the tables."""
    own = setting.arch.stem_as(RankingStem)
    for part in items(replace(own, shards=max(own.shards, setting.plan.dp)), setting, step):
        yield part.inside("stem")


def items(stem: RankingStem, setting: Setting, step: Step) -> Iterator[PlacedOp]:
    """The operators that embed items: look-ups, sums over tags, and a projection if the model's width differs."""
    arch, formats, width = setting.arch, setting.formats, stem.table_width(setting.arch.d_model)
    ids = step.tokens * (1 + stem.bag)
    if stem.shards > 1:
        yield _exchange("ids", ID_BYTES * ids, stem, setting)

    yield setting.table("items", step.tokens, width, -(-(stem.items + 1) // stem.shards))
    if stem.bag:
        yield setting.table("tags", step.tokens * stem.bag, width, -(-(stem.tags + 1) // stem.shards))
        bag = PoolOp(batch=step.tokens, positions=stem.bag, width=width, activations=formats.activations)
        yield PlacedOp(place="bag", op=bag)
    if stem.shards > 1:  # tags are summed on the devices that hold their rows
        yield _exchange("rows", setting.activation_bytes(step.tokens * width * (2 if stem.bag else 1)), stem, setting)
    if stem.width:
        yield setting.plain_matmul("projection", step.tokens, stem.values, arch.d_model, bias=stem.bias)
    elif stem.bag:
        yield setting.elementwise("features", "add", step.tokens * width)


def _exchange(place: str, payload_bytes: Size, stem: RankingStem, setting: Setting) -> PlacedOp:
    op = CollectiveOp(
        collective="all_to_all",
        payload_bytes=payload_bytes,
        devices=stem.shards,
        activations=setting.formats.activations,
    )
    return PlacedOp(place=place, op=op)


def attend(block: Attention, setting: Setting, step: Step, *, heads: Size, kv_heads: Size) -> Iterator[PlacedOp]:
    """The operators of attention: the history attends to itself, and each candidate to the history and to itself.

    Nothing is cached between requests.
    """
    stem = setting.arch.stem_as(RankingStem)
    history = setting.attention(
        batch=step.batch,
        query_tokens=stem.history,
        past_tokens=0,
        heads=heads,
        kv_heads=kv_heads,
        head_size=block.head_size,
        causal=block.causal,
        owns_cache=False,
        cache=setting.formats.activations,
    )
    candidates = replace(history, query_tokens=stem.candidates, past_tokens=stem.history + 1, causal=False, cross=True)
    yield PlacedOp(place="attend", op=history)
    yield PlacedOp(place="attend_candidates", op=candidates)
    if block.pointwise:
        width = heads * block.head_size
        yield setting.norm_of("norm", step.tokens, width)
        yield setting.elementwise("gate", "mul", step.tokens * width)


def scores(setting: Setting, step: Step) -> Iterator[PlacedOp]:
    """The operators that give each candidate a score."""
    rows, d = step.batch * setting.arch.stem_as(RankingStem).candidates, setting.arch.d_model
    if isinstance(setting.arch.head, Scores):
        yield setting.head_matmul("logits", rows, d, 1)
    else:
        yield setting.elementwise("scores", "mul", rows * d)
