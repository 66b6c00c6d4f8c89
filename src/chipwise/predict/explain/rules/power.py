"""Little headroom below the board's power limit, where clocks fall under sustained load: a more efficient chip."""

from __future__ import annotations

from collections.abc import Iterator

from chipwise.core import units
from chipwise.errors import ChipwiseError
from chipwise.hardware import datasheet
from chipwise.predict.explain.advice import Proposal
from chipwise.predict.explain.notes import power_draw
from chipwise.predict.explain.question import Case

HEAD_ROOM = 0.2  # share of the limit above which little is left


def rule(case: Case) -> Iterator[Proposal]:
    """Proposes, where serving draws 80 % of the limit, the chip of this kind that is as fast with the least energy."""
    here = power_draw(case)
    if case.sheet is None or here is None or here.share < 1 - HEAD_ROOM:
        return
    chips = [
        sheet
        for sheet in datasheet.load_all()
        if sheet.board_power is not None and sheet.kind == case.sheet.kind and sheet.name != case.sheet.name
    ]
    answers = case.pricer.price([case.question.but(device=sheet.name) for sheet in chips])
    frugal = [
        (answer.metrics["joules_per_token"].value, sheet)
        for sheet, answer in zip(chips, answers, strict=True)
        if not isinstance(answer, ChipwiseError)
        and answer.peak_memory_bytes <= sheet.usable_bytes
        and answer.tpot_s <= case.estimate.tpot_s
        and "joules_per_token" in answer.metrics
    ]
    if not frugal:
        return
    _, chosen = min(frugal, key=lambda each: each[0])
    yield Proposal(
        title=f"{case.sheet.name} at {units.show(here.share, 'share', digits=2)} of its power limit -> {chosen.name}",
        touches="hardware",
        how=f"rent or buy {chosen.title}; or measure the sustained speed on the machine itself: chipwise measure "
        f"--sustained",
        changed=case.question.but(device=chosen.name),
        headline="joules_per_token",
        source="Patel et al. 2023, POLCA, arXiv:2308.12908, on power limits under language models",
    )
