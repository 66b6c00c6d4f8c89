"""Saturation: the amount of concurrent work above which a chip is fully busy.

Below saturation, a pass takes about the same time for any amount of work, because streaming weights and launching
kernels dominate. Above saturation, the time grows in proportion to the work. The saturation point is the
time of the smallest pass, divided by the time that each further unit of work adds in large passes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from chipwise.errors import ChipwiseError
from chipwise.predict.cost.model import CostEstimate
from chipwise.predict.explain.question import Case, CostQuestion
from chipwise.predict.explain.waterfall import decode_step_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """The time of a pass for different amounts of work (tokens of the pass, or requests in flight)."""

    unit: str
    sizes: tuple[int, ...]
    latency_s: tuple[float, ...]  # seconds of the pass, without waiting
    saturation: float | None = None  # saturation point, in units of ``sizes``


def saturation_point(sizes: Sequence[int], latency_s: Sequence[float]) -> float | None:
    """Time of the smallest pass, divided by the time per unit of size between the two largest passes.

    None if the time does not grow with the size.

    >>> saturation_point([1, 2, 1000, 2000], [1.0, 1.0, 2.0, 4.0])
    500.0
    """
    slope = (latency_s[-1] - latency_s[-2]) / (sizes[-1] - sizes[-2])
    return latency_s[0] / slope if slope > 0 else None


def batch_curve(case: Case, *, most: int = 1024) -> Curve | None:
    """Seconds of a step for growing numbers of requests in flight; None for models that do not generate."""
    if not case.generates:
        return None
    return _curve(case, "requests in flight", [2**i for i in range(most.bit_length())], "batch", "decode")


def token_curve(case: Case, *, most: int = 16_384) -> Curve | None:
    """Seconds of one pass for growing numbers of tokens, attention included; None for training."""
    if case.training:
        return None
    longest = min(most, case.arch.max_tokens) if case.arch.positions == "learned" else most
    sizes = [2**i for i in range(longest.bit_length()) if 2**i <= longest]
    alone = replace(case, question=case.question.but(batch=1))
    return _curve(alone, "tokens of a pass", sizes, "prompt_tokens", "prefill")


def _curve(case: Case, unit: str, sizes: Sequence[int], field: str, phase: str) -> Curve | None:
    alone = case.question.but(shared_tokens=0, cached_tokens=0)
    questions = [alone.but(**{field: size}) for size in sizes]
    answers = case.pricer.price(questions)
    found = [(s, q, a) for s, q, a in zip(sizes, questions, answers, strict=True) if not isinstance(a, ChipwiseError)]
    if len(found) < 3:
        return None
    latency = [_latency_s(case, question, answer, phase) for _, question, answer in found]
    sizes = [size for size, _, _ in found]
    return Curve(
        unit=unit,
        sizes=tuple(sizes),
        latency_s=tuple(latency),
        saturation=saturation_point(sizes, latency),
    )


def _latency_s(case: Case, question: CostQuestion, answer: CostEstimate, phase: str) -> float:
    if phase == "prefill":
        return answer.ttft_s
    return decode_step_s(Case(question=question, estimate=answer, pricer=case.pricer))
