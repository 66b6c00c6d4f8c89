"""Weights in fewer bits: decode reads less, and the device may multiply faster."""

from __future__ import annotations

from collections.abc import Iterator

from chipwise.core.dtypes import weight_format
from chipwise.model.arch.formats import read_formats
from chipwise.predict.explain.advice import Proposal
from chipwise.predict.explain.question import Case
from chipwise.predict.explain.rules.options import advisable, multiplies, weights_option

# Format, number format that the device must have a rate for, and cost in quality.
_SHEET = (
    ("nvfp4", "fp4", "about a point on hard reasoning benchmarks after calibration; distil to win it back"),
    ("fp8", "fp8", "below what most benchmarks resolve"),
    ("int8", "int8", "below what most benchmarks resolve with per-channel scales; outliers need smoothing"),
    ("q8_0", "", "below what benchmarks resolve"),
    ("mlx_8bit", "", "below what benchmarks resolve"),
    ("int4", "", "small for models above 7 B parameters with GPTQ or AWQ, larger below"),
    ("int4_g128", "", "small for models above 7 B parameters with GPTQ or AWQ, larger below"),
    ("q4_k_m", "", "small for models above 7 B parameters, larger below"),
    ("mlx_4bit", "", "small for models above 7 B parameters, larger below"),
)
_HERE = (
    ("int8", "", "small: 8-bit weights, activations quantised as they come"),
    ("int4", "", "noticeable in small models: measure it, or continue training"),
)


def rule(case: Case) -> Iterator[Proposal]:
    """Proposes each narrower format that the device multiplies fast, or that at least is read faster."""
    formats = read_formats(case.question.weights, len(case.arch.layers)).all
    widest = max(weight_format(name).bits_per_weight for name in formats)
    read = advisable(case)
    for name, rate, quality in _HERE if case.sheet is None else _SHEET:
        if weight_format(name).bits_per_weight >= widest or (case.sheet is not None and name not in read):
            continue
        if rate and case.sheet is not None and not multiplies(case.sheet, rate):
            continue
        yield Proposal(
            title=f"weights in {name}",
            touches="precision",
            how=f"{weights_option(case, name)} (price it here: --weights {name})",
            changed=case.question.but(weights=name),
            quality=quality,
            headline=case.slower,
            source="what is lost: Dettmers and Zettlemoyer 2022, arXiv:2212.09720",
        )
