"""Alternatives to the chip: the cheapest that is as fast per token, and the fastest at any price."""

from __future__ import annotations

from collections.abc import Iterator

from chipwise.errors import ChipwiseError
from chipwise.hardware import datasheet
from chipwise.predict.cost.model import CostEstimate
from chipwise.predict.explain.advice import Proposal
from chipwise.predict.explain.question import Case


def rule(case: Case) -> Iterator[Proposal]:
    """Proposes one of the chips with a known price on which the model fits."""
    if case.sheet is None or not (case.generates or case.training) or "usd_per_1k_tokens" not in case.estimate.metrics:
        return
    chips = [
        sheet
        for sheet in datasheet.load_all()
        if sheet.price is not None and sheet.kind == case.sheet.kind and sheet.name != case.sheet.name
    ]
    answers = case.pricer.price([case.question.but(device=sheet.name) for sheet in chips])
    fitting: list[tuple[str, CostEstimate]] = [
        (sheet.name, answer)
        for sheet, answer in zip(chips, answers, strict=True)
        if not isinstance(answer, ChipwiseError) and answer.peak_memory_bytes <= sheet.usable_bytes
    ]
    as_fast = [item for item in fitting if _seconds(case, item[1]) <= _seconds(case, case.estimate)]
    for chosen, headline in (
        (min(as_fast, key=lambda item: item[1].metrics["usd_per_1k_tokens"].value, default=None), "usd_per_1k_tokens"),
        (min(fitting, key=lambda item: _seconds(case, item[1]), default=None), case.slower),
    ):
        if chosen is not None:
            yield Proposal(
                title=f"{case.sheet.name} -> {chosen[0]}",
                touches="hardware",
                how=f"rent or buy {datasheet.load(chosen[0]).title}",
                changed=case.question.but(device=chosen[0]),
                headline=headline,
                source="prices and rates of the data sheets: chipwise devices show",
            )


def _seconds(case: Case, cost: CostEstimate) -> float:
    return cost.ttft_s if case.slower == "ttft_p50" else cost.tpot_s
