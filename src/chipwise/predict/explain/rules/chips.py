"""Rules on memory, on the number and power of the devices, and on other chips."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

from chipwise.core import units
from chipwise.errors import ChipwiseError, Unsupported
from chipwise.hardware import datasheet
from chipwise.hardware.datasheet import DeviceProfile
from chipwise.hardware.suited import most_devices
from chipwise.predict.cost.model import CostEstimate
from chipwise.predict.explain.advice import Proposal, Touches
from chipwise.predict.explain.notes import power_draw
from chipwise.predict.explain.question import Case
from chipwise.predict.explain.rules.options import TENSOR_PARALLEL, option
from chipwise.predict.served.remedies import Remedy, remedies_of, together

TOUCHES: dict[str, Touches] = {"weights": "precision", "tp": "parallelism", "batch": "batching"}
SOURCE = "Chen et al. 2016, arXiv:1604.06174; Korthikanti et al. 2022, arXiv:2205.05198"
HEAD_ROOM = 0.2  # least free share of the power limit; below it the rule applies


def fits(case: Case) -> Iterator[Proposal]:
    """Proposes, for models that do not fit in memory, the smallest change of each kind that makes them fit.

    The kinds are a weight format with fewer bits, more devices, and fewer requests in flight. If no single change is
    enough, fewer bits and more devices are combined.
    """
    capacity = None if case.sheet is None else case.sheet.known_bytes
    if case.sheet is None or capacity is None or case.estimate.peak_memory_bytes <= capacity:
        return
    now = case.question
    sorts = remedies_of(
        runtime=now.served_by, device=case.sheet, weights=now.weights, tp=now.deployment.tp, batch=now.batch
    )
    found = [proposal for sort in sorts if (proposal := _first(case, sort, capacity)) is not None]
    if not found and (proposal := _first(case, together(sorts), capacity)) is not None:
        found = [proposal]
    yield from found


def _first(case: Case, sort: Sequence[Remedy], capacity: float) -> Proposal | None:
    """Proposes the first remedy in ``sort`` that makes the model fit; None if no remedy is enough."""
    questions = [case.question.but(**dict(remedy.changes)) for remedy in sort]
    answers = case.pricer.price(questions)
    for remedy, question, answer in zip(sort, questions, answers, strict=True):
        if not isinstance(answer, ChipwiseError) and answer.peak_memory_bytes <= capacity:
            return Proposal(
                title=f"{remedy.words}, so that it fits",
                touches=TOUCHES[remedy.field],
                how=f"serve with {remedy.words} ({remedy.option})",
                changed=question,
                headline="peak_memory",
                urgent=True,
                source="memory predicted by chipwise estimate",
            )
    return None


def checkpointing(case: Case) -> Iterator[Proposal]:
    """Proposes to turn activation checkpointing on for a training step without it, or off for a step with it.

    Checkpointing trades time for memory: layers keep only their inputs, and run again in the backward pass.
    """
    if not case.training:
        return
    if case.question.checkpoint:
        yield Proposal(
            title="keep activations instead of computing them twice",
            touches="training",
            how="train without activation checkpointing, as long as memory allows it",
            changed=case.question.but(checkpoint=False),
            headline="ttft_p50",
            source=SOURCE,
        )
        return
    yield Proposal(
        title="recompute activations layer by layer",
        touches="training",
        how="torch.utils.checkpoint around each layer, or the trainer's gradient checkpointing",
        changed=case.question.but(checkpoint=True),
        headline="peak_memory",
        quality="no loss: the results stay the same",
        source=SOURCE,
        urgent=_too_large(case),
    )


def _too_large(case: Case) -> bool:
    capacity = None if case.sheet is None else case.sheet.known_bytes
    return capacity is not None and case.estimate.peak_memory_bytes > capacity


def tensor_parallel(case: Case) -> Iterator[Proposal]:
    """Proposes twice and four times as many devices for lower latency, and half as many for a lower price.

    More devices read the sharded weights in parallel, but communicate twice per layer.
    """
    if case.sheet is None:
        return
    try:
        case.sheet.link("device")
    except Unsupported:
        return
    tp, most = case.question.deployment.tp, most_devices(case.sheet, case.question.served_by)
    for more in (2 * tp, 4 * tp):
        if more <= most:
            yield Proposal(
                title=f"tensor-parallel degree {tp} -> {more}",
                touches="parallelism",
                how=option(TENSOR_PARALLEL, case, more) or f"shard every matrix over {more} devices",
                changed=case.question.but(tp=more),
                source="Shoeybi et al. 2019, Megatron-LM, arXiv:1909.08053",
            )
    if tp > 1:
        yield Proposal(
            title=f"tensor-parallel degree {tp} -> {tp // 2}, for a lower price",
            touches="parallelism",
            how=f"{option(TENSOR_PARALLEL, case, tp // 2) or 'fewer shards'}, and twice the replicas",
            changed=case.question.but(tp=tp // 2),
            headline="usd_per_1k_tokens",
            source="Pope et al. 2022, arXiv:2211.05102, section 3",
        )


def other_chip(case: Case) -> Iterator[Proposal]:
    """Proposes the cheapest chip that is at least as fast as this one, and the fastest chip at any price.

    Only chips with a known price and enough memory for the model are considered.
    """
    if case.sheet is None or not (case.generates or case.training) or "usd_per_1k_tokens" not in case.estimate.metrics:
        return
    fitting = list(_others(case, "price"))
    as_fast = [item for item in fitting if _seconds(case, item[1]) <= _seconds(case, case.estimate)]
    for chosen, headline in (
        (min(as_fast, key=lambda item: item[1].metrics["usd_per_1k_tokens"].value, default=None), "usd_per_1k_tokens"),
        (min(fitting, key=lambda item: _seconds(case, item[1]), default=None), case.slower),
    ):
        if chosen is not None:
            yield Proposal(
                title=f"{case.sheet.name} -> {chosen[0].name}",
                touches="hardware",
                how=f"rent or buy {chosen[0].title}",
                changed=case.question.but(device=chosen[0].name),
                headline=headline,
                source="prices and rates of the data sheets: chipwise devices show",
            )


def _others(case: Case, states: Literal["price", "board_power"]) -> Iterator[tuple[DeviceProfile, CostEstimate]]:
    """Other chips of the same kind on which the model fits, with the model's estimate on each.

    A chip is left out if its data sheet lacks the fact ``states``, which is ``price`` or ``board_power``.
    """
    chips = [
        sheet
        for sheet in datasheet.load_all()
        if case.sheet is not None
        and getattr(sheet, states) is not None
        and sheet.kind == case.sheet.kind
        and sheet.name != case.sheet.name
    ]
    answers = case.pricer.price([case.question.but(device=sheet.name) for sheet in chips])
    for sheet, answer in zip(chips, answers, strict=True):
        if not isinstance(answer, ChipwiseError) and answer.peak_memory_bytes <= sheet.usable_bytes:
            yield sheet, answer


def _seconds(case: Case, cost: CostEstimate) -> float:
    return cost.ttft_s if case.slower == "ttft_p50" else cost.tpot_s


def power(case: Case) -> Iterator[Proposal]:
    """Proposes the chip with the least energy per token that is no slower than this one.

    The rule applies if serving draws 80 % of the board's power limit or more, because clocks fall near the limit under
    sustained load.
    """
    here = power_draw(case)
    if case.sheet is None or here is None or here.share < 1 - HEAD_ROOM:
        return
    frugal = [
        (answer.metrics["joules_per_token"].value, sheet)
        for sheet, answer in _others(case, "board_power")
        if answer.tpot_s <= case.estimate.tpot_s and "joules_per_token" in answer.metrics
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
