"""Low precision for the layers that tolerate it; the others keep their format and their bytes.

If the loss of quantising each layer separately was measured, the most sensitive layers are kept wide; elsewhere the
first and the last layers are, as in published recipes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from chipwise.core import units
from chipwise.core.dtypes import weight_format
from chipwise.model.arch.formats import formats_word
from chipwise.predict.explain.advice import Proposal
from chipwise.predict.explain.question import Case
from chipwise.predict.explain.rules.options import CONVERTED, advisable, multiplies

KEPT = (0.1, 0.25)  # shares of the layers that are kept wide
EIGHT_BITS = ("fp8", "int8", "q8_0", "mlx_8bit")
HERE = {"fp32": "int8", "int8": "int4"}  # the next narrower of the formats exported here
RECIPES = "Nemotron-H, arXiv:2504.03624 (first and last layers in BF16); Dettmers et al. 2022, arXiv:2208.07339"


def rule(case: Case) -> Iterator[Proposal]:
    """Proposes, for wide weights, the chip's fastest 8-bit format in all layers except a few."""
    question, layers = case.question, len(case.arch.layers)
    if case.sheet is None:
        yield from _here(case)
        return
    if weight_format(question.weights).dtype.bits < 16 or layers < 8:
        return
    name = _narrow(case)
    if name is None:
        return
    for share in KEPT:
        kept = _kept(question.sensitivity, layers, max(2, round(share * layers)))
        yield Proposal(
            title=f"weights in {name}, except for {len(kept)} of {layers} layers",
            touches="precision",
            how=f"leave layers {', '.join(map(str, sorted(kept)))} out of the quantisation{_ignore(case)}",
            changed=question.but(weights=name, wide_layers=kept),
            headline=case.slower,
            quality=_quality(question.sensitivity, kept),
            source=RECIPES,
        )


def _here(case: Case) -> Iterator[Proposal]:
    """Proposals on this machine, where a layer may have any exported format; layers that share weights have one."""
    question, layers = case.question, case.arch.layers
    narrow, owners = HERE.get(question.weights), [i for i, _ in case.arch.owned_layers()]
    if narrow is None or len(owners) < 2:
        return
    losses = [question.sensitivity[i] for i in owners] if question.sensitivity else []
    for count in dict.fromkeys(max(1, round(share * len(owners))) for share in KEPT):
        kept = _kept(losses, len(owners), count)
        wide = {owners[i] for i in kept}
        own = (i if layer.shares is None else layer.shares for i, layer in enumerate(layers))
        word = formats_word((question.weights if i in wide else narrow for i in own), question.weights)
        yield Proposal(
            title=f"weights in {narrow}, except for {count} of {len(owners)} layers and the head",
            touches="precision",
            how=f"export it so: --weights '{word}'",
            changed=question.but(weights=word),
            headline=case.slower,
            quality=_quality(losses, kept),
            source=RECIPES,
        )


def _ignore(case: Case) -> str:
    """The option that excludes layers, for runtimes that read checkpoints of llm-compressor."""
    return "" if case.question.served_by.name in CONVERTED else " (llm-compressor: ignore)"


def _narrow(case: Case) -> str | None:
    """The format of 8 bits that the runtime reads, fp8 where the chip multiplies it; None if there is none."""
    read = [name for name in EIGHT_BITS if name in advisable(case)]
    if "fp8" in read and case.sheet is not None and not multiplies(case.sheet, "fp8"):
        read.remove("fp8")
    return read[0] if read else None


def _kept(sensitivity: Sequence[float], layers: int, count: int) -> frozenset[int]:
    """The most sensitive layers, or those at both ends."""
    if sensitivity:
        return frozenset(sorted(range(layers), key=lambda i: -sensitivity[i])[:count])
    return frozenset([*range(count - count // 2), *range(layers - count // 2, layers)])


def _quality(sensitivity: Sequence[float], kept: frozenset[int]) -> str:
    if not sensitivity:
        return "less than with all layers narrow; no sensitivity was given, so the first and last layers stay wide"
    whole = sum(sensitivity)
    left = whole - sum(sensitivity[i] for i in kept)
    return f"{units.number(left)} of the measured {units.number(whole)} in loss over all layers, quantised one by one"
