"""Wave quantisation: products whose tiles fill the chip's units slightly more than n times take n + 1 waves."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from chipwise.errors import ChipwiseError
from chipwise.predict.explain.advice import Proposal
from chipwise.predict.explain.question import Case
from chipwise.predict.explain.rules.change import columns_of_tile, each_ffn, feed_forwards, up_to

REACH = 0.06  # largest relative widening of a feed-forward


def rule(case: Case) -> Iterator[Proposal]:
    """Proposes, on GPUs, a wider feed-forward that is faster because its tiles fill whole waves."""
    blocks = feed_forwards(case.arch)
    if not blocks or case.sheet is None or case.sheet.kind != "gpu":
        return
    step = columns_of_tile(case.sheet, "bf16") * case.question.deployment.tp
    width = max(block.width for block in blocks)
    widths = range(up_to(width + 1, step), int(width * (1 + REACH)) + 1, step)
    questions = [
        case.question.but(arch=each_ffn(case.arch, lambda block, new=new: replace(block, width=new)))  # type: ignore[misc]
        for new in widths
    ]
    answers = case.pricer.price(questions)
    timed = [
        (answer.ttft_s, new, question)
        for new, question, answer in zip(widths, questions, answers, strict=True)
        if not isinstance(answer, ChipwiseError)
    ]
    if not timed:
        return
    seconds, new, question = min(timed, key=lambda each: each[0])
    if seconds >= case.estimate.ttft_s:
        return
    yield Proposal(
        title=f"FFN width {width} -> {new}: wider, and its tiles fill whole waves",
        touches="architecture",
        how=f"set intermediate_size to {new} and train from scratch; the gain holds for prompts of this length",
        changed=question,
        headline="ttft_p50",
        quality="a little better: the model is larger",
        source="NVIDIA, Matrix Multiplication Background User's Guide, wave quantisation",
    )
