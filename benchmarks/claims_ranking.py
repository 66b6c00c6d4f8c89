"""Figures of docs/notes/claims.md about ranking; `benchmarks/claims.py` prints them."""

from __future__ import annotations

from statistics import median

import chipwise
from chipwise.model.arch.arch import ArchSpec
from chipwise.model.arch.feed_forward import FeedForward
from chipwise.model.arch.layer import Layer
from chipwise.model.arch.mixers import Attention
from chipwise.model.kinds.ranking.form import with_candidates
from chipwise.model.kinds.ranking.stem import RankingStem, Similarity
from chipwise.model.ops.workload import Phase, Workload
from claims_kernels import rows, say

MEASURED = "ranking-candidates-own-speed-xeon-ort1.31.1-2026-11-23.csv"
COUNTS = (1, 8, 32, 128, 512)


def candidates() -> None:
    """Cost with the history computed once for all candidates, and once per candidate."""
    sasrec = ranker(width=64, depth=2, history=50, items=1_682)
    for way, sizes in (("together", lambda n: (n, 1)), ("one by one", lambda n: (1, n))):
        flops = [flops_of(sasrec, *sizes(count)) for count in COUNTS]
        say(f"SASRec of 2 x 64 after 50 items, {way}: FLOPs over those of one", *(f / flops[0] for f in flops))
    large = ranker(width=512, depth=8, history=512, items=10_000_000)
    for device in ("h100-sxm", "xeon-8480-plus"):
        found = chipwise.candidates(large, device=device, counts=COUNTS)
        for way, cost in (("together", [r.together_s for r in found]), ("one by one", [r.apart_s for r in found])):
            say(f"8 x 512 after 512 items, {device}, {way}: over one", *(c.value / cost[0].value for c in cost))
    for way, name in (("shared", "together"), ("apart", "one by one")):
        say(f"measured, {name}: times one, median over designs", *(median(ratios(way, n)) for n in COUNTS))
        say("  least, most at 128", min(ratios(way, 128)), max(ratios(way, 128)))
        say("  median error of prediction", median(abs(float(r["error"])) for r in measured(way)))


def ranker(*, width: int, depth: int, history: int, items: int) -> ArchSpec:
    """A model in SASRec's proportions."""
    heads = width // 32
    attention = Attention(heads=heads, kv_heads=heads, head_size=32, rope=False, relative_buckets=history + 1)
    layer = Layer(attention=attention, ffn=FeedForward(width=width, gated=False, activation="relu"))
    stem = RankingStem(items=items, history=history, candidates=1)
    return ArchSpec(
        stem=stem,
        head=Similarity(),
        d_model=width,
        layers=(layer,) * depth,
        max_tokens=history + 1,
        positions="none",
    )


def flops_of(arch: ArchSpec, count: int, batch: int) -> int:
    """FLOPs of a batch of requests of so many candidates."""
    graph = chipwise.lower(chipwise.Design(arch=with_candidates(arch, count)), Workload(batch=batch), Phase.PREFILL)
    return sum(placed.op.work().flops for placed in graph)


def measured(way: str) -> list[dict[str, str]]:
    """Rows of the benchmark's file."""
    return [row for row in rows(MEASURED) if row["way"] == way]


def ratios(way: str, count: int) -> list[float]:
    """Measured seconds of so many candidates over those of one, by design."""
    found = measured(way)
    one = {row["design"]: float(row["measured_s"]) for row in found if int(row["candidates"]) == 1}
    return [float(row["measured_s"]) / one[row["design"]] for row in found if int(row["candidates"]) == count]
