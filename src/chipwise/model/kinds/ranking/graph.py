"""Input, output and attention of a ranking model as ONNX nodes: history and candidates in, scores out.

Each matrix is read by only one node, so it is stored in a single format.
"""

from __future__ import annotations

from chipwise.model.arch.mixers import Attention
from chipwise.model.blocks.nodes import Nodes, Stream
from chipwise.model.kinds.ranking.candidates.onnx import add_candidates, add_items, add_request_attention, add_scores
from chipwise.model.kinds.ranking.stem import RankingStem


def _stem(s: Stream) -> None:
    s.x = s.read = add_items(s.graph, s.arch, s.arch.stem_as(RankingStem), joined="tables" in s.fused)


def _attend(s: Stream, layer: int, block: Attention, x: str, key: str, last: bool) -> str:
    return add_request_attention(s.graph, s.arch, block, layer=layer, x=x, last=last, joined="qkv" in s.fused)


def _drop(s: Stream, y: str, place: str) -> str:
    """Removes the history from the stream; the result of attention already has only the candidates' positions."""
    s.x = add_candidates(s.graph, s.x, f"{place}.candidates", s.arch.stem_as(RankingStem).history)
    return y


def _head(s: Stream) -> None:
    add_scores(s.graph, s.arch, s.arch.stem_as(RankingStem), x=s.norm("norm"), first=s.read)


def _metadata(s: Stream) -> dict[str, object]:
    """The metadata entries: the sizes of a request."""
    stem = s.arch.stem_as(RankingStem)
    request = {"history": stem.history, "candidates": stem.candidates, "items": stem.items}
    return {"encodes": "scores", "request": request | {"tags": stem.tags, "bag": stem.bag}, "kv": []}


NODES = Nodes(stem=_stem, attend=_attend, head=_head, drop=_drop, metadata=_metadata, logits="last")
