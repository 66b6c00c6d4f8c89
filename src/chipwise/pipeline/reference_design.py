"""The reference design of a run: the strongest transformer that a careful engineer would choose for the same limits.

Llama-style: pre-norm RMSNorm, SwiGLU of 8/3 the width, rotary grouped-query attention, tied table, equal layers, and
dimensions that are multiples of the kernels' tiles. Width, depth, KV heads and format vary; of those that the cost
model predicts within the limits, the largest is taken that its training can still fill. For each vocabulary the largest
one that is measured within the limits gets the same first training as every candidate, and the best of them the same
full training as the finalists.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from chipwise.pipeline.limits import HEADROOM, within
from chipwise.pipeline.measuring import Measurer
from chipwise.pipeline.other_devices import OtherDevices
from chipwise.run.budget_spec import Allowance
from chipwise.run.spec import RunSpec
from chipwise.run.trials import Candidate, Trials
from chipwise.space import SpaceSpec
from chipwise.space.constraints import total_penalty
from chipwise.space.designs import design_of
from chipwise.targets.chance import Bounds, kept, values_of
from chipwise.targets.target import Target

ALIGNMENT = 32
HEAD_SIZES = (32, 64)
ASPECT = (24, 128)  # width over depth: SmolLM2-135M has 19, GPT-2 64, Llama-3.2-1B and Llama-3-8B 128
LEAST_TOKENS = 0.25  # a parameter
TRAINED_FLOPS = 1.5e11  # a CPU second: 951,424 parameters at 26,797 tokens/s, six FLOPs each (docs/notes/training.md)
MEASURED_AT_MOST = 4  # most designs measured for one vocabulary


def most_parameters(allowance: Allowance) -> float:
    """Parameters beyond which one final training is no training: a quarter of a token for each, at least.

    Where limits are loose, the largest design within them would be a poor rival. Of trainings on a GPU nothing is
    known beforehand, so nothing is left out.
    """
    if allowance.unit == "tokens":
        return allowance.final / LEAST_TOKENS
    if allowance.unit == "cpu":
        return math.sqrt(TRAINED_FLOPS * allowance.final / (6 * LEAST_TOKENS))
    return math.inf


def reference_designs(
    trials: Trials, spec: RunSpec, target: Target, *, measurer: Measurer, others: OtherDevices | None = None
) -> list[Candidate]:
    """The largest reference design of each vocabulary that is measured within the limits; begun ones are continued."""
    found = (
        largest_within(trials, spec, target, vocab_size, measurer=measurer, others=others)
        for vocab_size in spec.space.vocab_size
    )
    return [item for item in found if item is not None]


def largest_within(
    trials: Trials,
    spec: RunSpec,
    target: Target,
    vocab_size: int,
    *,
    measurer: Measurer,
    others: OtherDevices | None = None,
) -> Candidate | None:
    """The largest reference design of one vocabulary that is measured within the limits, and that training can fill.

    It is given with what was measured of it just now, so that a search goes on alike when it is resumed.

    One that broke a limit in an earlier measurement, also as an exported model at the end of a run, is passed over, and
    so is one that is predicted to break one on ``others``.
    """
    alive = [item for item in _tried(trials, vocab_size) if item.alive]
    good = next((trials[item.number] for item in alive if measurer.within_limits(item)), None)
    while good is None and len(_tried(trials, vocab_size)) < MEASURED_AT_MOST:
        done = [dict(item.notes.choices) for item in _tried(trials, vocab_size)]
        fitting = (
            pair
            for pair in _largest_first(spec, target, vocab_size)
            if pair[0] not in done
            and (others is None or others.keeps_limits(design_of(pair[0], spec=spec.space, name="baseline")))
        )
        choices, predicted = next(fitting, (None, None))
        if choices is None or predicted is None:
            break
        item = trials[trials.add_reference(choices, predicted=predicted)]
        good = trials[item.number] if measurer.within_limits(item) else None
    return good


def _tried(trials: Trials, vocab_size: int) -> list[Candidate]:
    return [item for item in trials.all() if item.is_reference and item.design.arch.vocab_size == vocab_size]


def _largest_first(
    spec: RunSpec, target: Target, vocab_size: int
) -> list[tuple[Mapping[str, Any], Mapping[str, Bounds]]]:
    """Designs predicted within the limits, most parameters first; of equals the one predicted to be fastest.

    Those that keep the soft limits too come before all others; those too large for their training come last, the
    smallest first. Each measurement corrects later predictions.
    """
    most = most_parameters(spec.allowance)
    limits = (*spec.limits, *target.limits)

    def fits(predicted: Mapping[str, Bounds]) -> bool:
        if target.measures:
            return within(limits, values_of(predicted), headroom=HEADROOM)
        return kept(limits, predicted, {}, spec.confidence_share)

    fitting: list[tuple[bool, bool, int, float, int, Mapping[str, Any], Mapping[str, Bounds]]] = []
    for choices in proportions(spec.space):
        if choices["vocab_size"] != vocab_size:
            continue
        design = design_of(choices, spec=spec.space, name="baseline")
        predicted = target.predict(design)
        values = values_of(predicted)
        if fits(predicted):
            beyond, size = total_penalty(spec.limits, values) > 0, design.arch.parameters()
            order = (beyond, size > most, size if size > most else -size, values["tpot_p50"])
            fitting.append((*order, len(fitting), choices, predicted))
    return [(choices, predicted) for *_, choices, predicted in sorted(fitting)]


def proportions(spec: SpaceSpec, *, aspect: tuple[float, float] = ASPECT) -> Iterator[dict[str, Any]]:
    """Llama-proportioned designs around a space, as choices; up to half as wide and deep again as its largest.

    Args:
        spec: The space.
        aspect: The least and greatest width over depth.
    """
    for weights in spec.formats:
        for vocab_size in spec.vocab_size:
            for d_model in range(64, int(max(spec.d_model) * 1.5) + 1, ALIGNMENT):
                for depth in range(1, int(max(spec.depth) * 1.5) + 1):
                    if not aspect[0] <= d_model / depth <= aspect[1]:
                        continue
                    for head_size in HEAD_SIZES:
                        heads = d_model // head_size
                        if d_model % head_size or heads < 2:
                            continue
                        for kv_heads in {heads, max(1, heads // 2), max(1, heads // 4)}:
                            if heads % kv_heads:
                                continue
                            layer = {
                                "heads": heads,
                                "kv_heads": kv_heads,
                                "ffn": "swiglu",
                                "ffn_width": max(ALIGNMENT, round(d_model * 8 / 3 / ALIGNMENT) * ALIGNMENT),
                            }
                            yield {
                                "d_model": d_model,
                                "depth": depth,
                                "vocab_size": vocab_size,
                                "head_size": head_size,
                                "tie_embeddings": True,
                                "weights": weights,
                                "sharing": "none",
                                "layers": [layer] * depth,
                            }
