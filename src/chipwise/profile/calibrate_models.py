"""Calibration from whole models alone: for runtimes whose nodes cannot be timed one by one.

A few dozen random models are measured in the runtime itself. The cost model's rates (``cost/terms.py``) are then fitted
to both phases of all of them at once; rates that whole models cannot tell apart are tied together and fitted as one.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import numpy as np

from chipwise.blocks.lowering import lower
from chipwise.core.errors import Unsupported
from chipwise.cost.terms import terms
from chipwise.hardware.detect import Machine, detect
from chipwise.hardware.device import CheckError, Curve, MachineProfile, MemoryCost, PassCost, Tail
from chipwise.ops import Phase, Workload
from chipwise.profile.calibrate import on_footing, typical_anchors
from chipwise.profile.exporting import export_for
from chipwise.profile.fit import fit_relative, rising
from chipwise.profile.harness import measure
from chipwise.profile.measurement import Measurement
from chipwise.profile.refit import Observed, Sample, compare, predictions, prepare, refit
from chipwise.profile.samples import random_designs
from chipwise.spec import Design

Progress = Callable[[str, float], None]
PROMPTS = (64, 64, 24, 128)  # in turns
NEW_TOKENS = 64
MODEL_S = 1.5  # starting, warming up and timing one model
LEAST_MODELS, MOST_MODELS = 60, 96
FOLDS = 6
KNOTS_BYTES = (1e6, 4e6, 1.6e7, 4.8e7)  # working sets between which streaming in a decode step gets dearer
TIED = (
    ("matmul.*", "node"),
    ("attention.*", "node"),
    ("norm.*", "node"),
    ("elementwise.*", "node"),
    ("gather", "node"),
    ("conv", "node"),
    ("attention.step", "head"),
    ("attention.step", "product"),
    ("attention.step", "rest"),
    ("attention.prompt", "query"),
    ("attention.prompt", "score"),
    ("attention.prompt", "product"),
    ("attention.prompt", "rest"),
    ("attention.*", "value"),
    ("norm.*", "row"),
    ("norm.*", "value"),
    ("elementwise.*", "value"),
    ("gather", "value"),
    ("conv", "value"),
    ("matmul.fp32.vector", "out"),
    ("matmul.fp32.vector", "rest"),
    ("matmul.fp32.matrix", "out"),
    ("matmul.fp32.matrix", "products"),
    ("matmul.int8.vector", "in"),
    ("matmul.int8.vector", "out"),
    ("matmul.int8.matrix", "in"),
    ("matmul.int8.matrix", "out"),
    ("matmul.int8.matrix", "products"),
    ("matmul.int4.vector", "in"),
    ("matmul.int4.vector", "out"),
    ("matmul.int4.matrix", "in"),
    ("matmul.int4.matrix", "out"),
    ("matmul.int4.matrix", "products"),
)
"""Kinds of node (patterns) and a feature: one rate for all that match. What matches none costs nothing of its own: FP32
products have no ``in``, which is what quantising the activations takes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """What is fitted: as a machine profile keeps it."""

    terms: dict[str, dict[str, float]]
    curves: dict[str, Curve]
    passes: dict[str, PassCost]


def calibrate_models(
    *, runtime: str, threads: int = 1, seconds: float = 75.0, seed: int = 0, progress: Progress | None = None
) -> MachineProfile:
    """This machine's profile in ``runtime``; ``progress`` hears a phase's name and the share done.

    ``seconds`` is what is aimed at on an idle machine: it sets how many models are measured. Weight formats that the
    runtime cannot hold are measured in FP32 instead, and get no rates.

    Raises:
        MeasurementError: A measuring process failed.
        Unsupported: Nothing here writes models for this runtime.
    """
    tell = progress or (lambda phase, share: None)
    count = min(MOST_MODELS, max(LEAST_MODELS, round(seconds / MODEL_S)))
    designs = random_designs(count, seed=seed)
    measured = [
        Sample(design=design, measured=found)
        for design, found in measure_models(designs, runtime=runtime, threads=threads, tell=tell)
    ]
    return fit_profile(measured, runtime=runtime, threads=threads)


def fit_profile(measured: Sequence[Sample], *, runtime: str, threads: int) -> MachineProfile:
    """The profile that measured models make; each is predicted without itself for the profile's own check."""
    anchors = typical_anchors([whole.measured for whole in measured])
    # Anchors timed beside other work would say more of that work than of the machine.
    wholes = [on_footing(whole, anchors) if whole.measured.clean else whole for whole in measured]
    busy = sum(not whole.measured.clean for whole in wholes)
    blank = MachineProfile(
        machine=detect(),
        runtime=runtime,
        runtime_version=wholes[0].measured.runtime_version,
        threads=threads,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        terms={},
        curves={},
        passes={},
        memory=MemoryCost(base_bytes=0.0, per_table_byte=1.0, per_matrix_byte={}),
        tails={phase.value: Tail(ratio=1.0, extra_s=0.0) for phase in Phase},
        checks={},
        clean=not busy,
        notes=(f"{busy} of {len(wholes)} models were timed on a busy machine; calibrate again when idle",)
        if busy
        else (),
        anchors=anchors,
    )
    checks = cross_check(blank, wholes)
    profile = fitted(blank, wholes)
    lessons = {phase.value: table.lessons() for phase, table in prepare(profile, wholes).tables.items()}
    return replace(profile, checks=checks, lessons=lessons)


def fitted(blank: MachineProfile, wholes: Sequence[Observed]) -> MachineProfile:
    """``blank`` with everything that ``wholes`` teach."""
    rates = fit_rates(wholes)
    peaks, roofs = best_seen(wholes, blank.machine)
    profile = replace(blank, terms=rates.terms, curves=rates.curves, passes=rates.passes, peaks=peaks, roofs=roofs)
    return refit(profile, prepare(profile, wholes))


def best_seen(wholes: Sequence[Observed], machine: Machine) -> tuple[dict[str, float], dict[str, float]]:
    """The most that any model reached: FLOP/s of a prompt by weight format, bytes/s of a step by level of memory.

    A step's level is the smallest that holds the weights and the cache that it reads; levels that no model was of are
    left out. Small models spend their time on launches: what a slower level gave, a faster one gives too.
    """
    peaks: dict[str, float] = {}
    roofs: dict[str, float] = {}
    for whole in wholes:
        prompt, step = (
            [placed.op for placed in lower(whole.design, whole.workload, phase)]
            for phase in (Phase.PREFILL, Phase.DECODE)
        )
        flops = float(sum(op.work().flops for op in prompt))
        weights, rate = whole.design.weights, flops / whole.seconds(Phase.PREFILL, 0.5)
        peaks[weights] = max(rate, peaks.get(weights, 0.0))
        touched = sum(term.streamed_bytes + term.resident_bytes for op in step for term in terms(op))
        caches = (("private caches", machine.l2_bytes), ("shared cache", machine.l3_bytes))
        level = next((name for name, size in caches if size is not None and touched <= size), "DRAM")
        roofs[level] = max(touched / whole.seconds(Phase.DECODE, 0.5), roofs.get(level, 0.0))
    fastest = 0.0
    for level in ("DRAM", "shared cache", "private caches"):
        if level in roofs:
            roofs[level] = fastest = max(fastest, roofs[level])
    return peaks, roofs


def cross_check(blank: MachineProfile, wholes: Sequence[Sample], *, folds: int = FOLDS) -> dict[str, CheckError]:
    """Prediction against measurement, each model predicted by rates that were fitted to others alone."""
    found: dict[str, list[tuple[float, float]]] = {}
    for fold in range(folds):
        unseen = wholes[fold::folds]
        profile = fitted(blank, [whole for i, whole in enumerate(wholes) if i % folds != fold])
        for name, values in predictions(profile, prepare(profile, unseen)).items():
            for whole, value in zip(unseen, values, strict=True):
                truth = _truth(whole, name)
                if truth is not None:
                    found.setdefault(name, []).append((float(value), truth))
    return {name: compare([p for p, _ in pairs], [m for _, m in pairs]) for name, pairs in found.items()}


def _truth(whole: Sample, name: str) -> float | None:
    if name == "memory":
        return whole.peak_memory_bytes
    phase, _, tail = name.partition("_")
    return whole.seconds(Phase(phase), 0.99 if tail else 0.5)


def fit_rates(wholes: Sequence[Observed]) -> Rates:
    """Non-negative rates that explain the medians of both phases of all models, in relative terms."""
    rows = [amounts(whole.design, whole.workload, phase) for whole in wholes for phase in Phase]
    seconds = [whole.seconds(phase, 0.5) for whole in wholes for phase in Phase]
    names = sorted({name for row in rows for name in row})
    solved = fit_relative([[row.get(name, 0.0) for name in names] for row in rows], seconds)
    rate = {name: float(value) for name, value in zip(names, solved, strict=True)}
    kinds: dict[str, set[str]] = {}
    for whole in wholes:
        for phase in Phase:
            for placed in lower(whole.design, whole.workload, phase):
                for term in terms(placed.op):
                    kinds.setdefault(term.model, set()).update(term.amounts)
    return Rates(
        terms={
            kind: {feature: rate.get(_tie(kind, feature), 0.0) for feature in sorted(features)}
            for kind, features in kinds.items()
        },
        curves={kind: _curve(kind, rate) for kind in kinds if kind.startswith("matmul.")},
        passes={
            phase.value: PassCost(call_s=rate[f"call {phase.value}"], per_logit_s=rate["logits"], scale=1.0)
            for phase in Phase
        },
    )


def amounts(design: Design, workload: Workload, phase: Phase) -> dict[str, float]:
    """What one pass has of every tied feature, of streamed bytes, calls and logits."""
    found: dict[str, float] = {f"call {phase.value}": 1.0, "logits": workload.batch * design.arch.vocab_size}
    streamed: dict[str, float] = {}
    working_set = 0.0
    for placed in lower(design, workload, phase):
        for term in terms(placed.op):
            working_set += term.streamed_bytes + term.resident_bytes
            streamed[term.model] = streamed.get(term.model, 0.0) + term.streamed_bytes
            for feature, amount in term.amounts.items():
                name = _tie(term.model, feature)
                found[name] = found.get(name, 0.0) + amount
    found.pop("", None)
    ramps = rising(KNOTS_BYTES, working_set)
    for kind, size in streamed.items():
        if size:
            found |= {name: size * share for name, share in zip(_streams(kind), ramps, strict=False)}
    return found


def _tie(kind: str, feature: str) -> str:
    """The name under which a feature of a kind of node is fitted; empty for what is left out."""
    return next((f"{k} {f}" for k, f in TIED if f == feature and fnmatchcase(kind, k)), "")


def _streams(kind: str) -> list[str]:
    """What a streamed byte costs, by name: in a step by working set; in a prompt, for many rows at once, one rate."""
    return [f"{kind} byte {i}" for i in range(len(KNOTS_BYTES) if kind.endswith("vector") else 1)]


def _curve(kind: str, rate: dict[str, float]) -> Curve:
    rises = [rate.get(name, 0.0) for name in _streams(kind)]
    return Curve(working_set_bytes=KNOTS_BYTES[: len(rises)], s_per_byte=tuple(map(float, np.cumsum(rises))))


def measure_models(
    designs: Sequence[Design], *, runtime: str, threads: int, tell: Progress
) -> Iterator[tuple[Design, Measurement]]:
    """Each design, as near as ``runtime`` can hold it, measured once under one of a few prompts."""
    with tempfile.TemporaryDirectory(prefix="chipwise-") as folder:
        for i, wanted in enumerate(designs):
            design, path = export_nearest(runtime, wanted, Path(folder))
            workload = Workload(prompt_tokens=PROMPTS[i % len(PROMPTS)], new_tokens=NEW_TOKENS)
            settings: dict[str, Any] = {"repeats": 126, "prefills": 12, "seconds": 0.3, "attempts": 1}
            yield design, measure(path, workload, runtime=runtime, threads=threads, **settings)
            tell("models", (i + 1) / len(designs))


def export_nearest(runtime: str, design: Design, folder: Path) -> tuple[Design, Path]:
    """The first of ``design``'s variants that ``runtime`` can hold, and its file.

    Raises:
        Unsupported: It can hold none of them.
    """
    refusal: Unsupported | None = None
    for variant in variants(design):
        try:
            return variant, export_for(runtime, variant, folder)
        except Unsupported as error:
            refusal = refusal or error
    assert refusal is not None
    raise refusal


def held_by(runtime: str, design: Design) -> Design:
    """The first of ``design``'s variants that ``runtime`` can hold. Raises as :func:`export_nearest`."""
    with tempfile.TemporaryDirectory(prefix="chipwise-") as folder:
        return export_nearest(runtime, design, Path(folder))[0]


def variants(design: Design) -> Iterator[Design]:
    """``design`` and ever plainer ones, for runtimes that cannot hold all: no convolutions, like Llama, all in FP32."""
    arch = design.arch
    bare = tuple(replace(layer, attention_conv=0, ffn_conv=0) for layer in arch.layers)
    sizes = [layer.attention.head_size for layer in arch.layers if layer.attention is not None]
    layers = tuple(
        replace(
            layer,
            attention=layer.attention and replace(layer.attention, head_size=max([32, *sizes[:1]])),
            ffn=layer.ffn and replace(layer.ffn, activation="silu", gated=True),
        )
        for layer in bare
    )
    without = replace(design, arch=replace(arch, layers=bare))
    plain = replace(design, arch=replace(arch, layers=layers, norm="rmsnorm", norm_bias=False))
    yield from (design, without, plain)
    yield from (replace(variant, weights="fp32") for variant in (design, without, plain))
