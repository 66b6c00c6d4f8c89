"""Cuts a narrower attention block out of a larger one, by choosing heads.

The larger block's query heads are divided into equal groups, one group for each of the smaller block's KV heads. From
each group, the first query heads are kept, together with the KV head that the group's first query head used. So a query
head keeps the KV head that it was trained with, or the nearest remaining one. If heads get shorter, rotary pairs are
kept at even intervals, so that the rotary frequencies still cover the whole range.
"""

from __future__ import annotations

from chipwise.errors import SpecError
from chipwise.model.arch.mixers import Attention
from chipwise.model.blocks.cut import Index, rows


def slice_attention(sub: Attention, whole: Attention) -> dict[str, dict[int, Index]]:
    """Maps each weight's name and axis to the indices to keep. Axes that are not listed keep their first values.

    Raises:
        SpecError: ``sub`` has more or longer heads than ``whole``, or another number of position biases.
    """
    for name in ("heads", "kv_heads", "head_size"):
        if getattr(sub, name) > getattr(whole, name):
            raise SpecError(f"{getattr(sub, name)} is more than the larger model's {getattr(whole, name)}", field=name)
    if sub.relative_buckets != whole.relative_buckets:
        raise SpecError(
            f"{sub.relative_buckets} position biases cannot be cut from the larger model's {whole.relative_buckets}",
            field="relative_buckets",
        )
    queries, keys = chosen_heads(sub, whole)
    within = chosen_values(sub, whole)
    q, kv = (rows([head * whole.head_size + i for head in heads for i in within]) for heads in (queries, keys))
    inner = {"q": q, "k": kv, "v": kv, "gate": q}
    axes: dict[str, dict[int, Index]] = {f"{name}.{kind}": {0: i} for name, i in inner.items() for kind in _KINDS}
    axes["out.weight"] = {1: q}
    axes["norm.weight"] = {0: q}
    axes["positions"] = {1: rows(queries)}  # position biases: one column per head
    return axes | {f"{name}.weight": {0: rows(within)} for name in ("q_norm", "k_norm")}


_KINDS = ("weight", "bias")


def chosen_heads(sub: Attention, whole: Attention) -> tuple[list[int], list[int]]:
    """Numbers of the query heads and of the KV heads of ``whole`` that the smaller block ``sub`` keeps.

    >>> eight = Attention(heads=8, kv_heads=4, head_size=32)
    >>> chosen_heads(Attention(heads=6, kv_heads=2, head_size=32), eight)
    ([0, 1, 2, 4, 5, 6], [0, 2])
    """
    begins = [number * whole.heads // sub.kv_heads for number in range(sub.kv_heads)]
    each = sub.heads // sub.kv_heads
    queries = [begin + i for begin in begins for i in range(each)]
    return queries, [begin // (whole.heads // whole.kv_heads) for begin in begins]


def chosen_values(sub: Attention, whole: Attention) -> list[int]:
    """Indices of the values of a head to keep. With rotary positions: pairs (i, i + half) at even intervals.

    >>> chosen_values(Attention(heads=1, kv_heads=1, head_size=4), Attention(heads=1, kv_heads=1, head_size=8))
    [0, 2, 4, 6]
    """
    if not sub.rope:
        return list(range(sub.head_size))
    half, whole_half = sub.head_size // 2, whole.head_size // 2
    pairs = [i * whole_half // half for i in range(half)]
    return pairs + [whole_half + i for i in pairs]
