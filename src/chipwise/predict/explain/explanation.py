"""The explanation of a model's time on a chip. The terminal, the HTML page and the JSON output all show this value."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from chipwise.core import units
from chipwise.core.digest import plain
from chipwise.core.results import Result
from chipwise.predict.cost.model import Bound, CostEstimate, OpCost
from chipwise.predict.explain.advice import Advice
from chipwise.predict.explain.gains import advise
from chipwise.predict.explain.notes import (
    Checkpointing,
    Shared,
    checkpointing,
    held_note,
    power_draw,
    power_note,
    shared_context,
)
from chipwise.predict.explain.question import Case, PhaseName
from chipwise.predict.explain.saturation import Curve, batch_curve, token_curve
from chipwise.predict.explain.waterfall import TimePart, verdict, waterfall

SCHEMA = "chipwise.explanation/1"
SHOWN = 0.02  # share of a pass; smaller operators are summed up


@dataclass(frozen=True, slots=True, kw_only=True)
class Operator:
    """A kernel of a pass; its numbers are sums over its calls.

    ``ridge`` is the arithmetic intensity at which computing takes as long as moving the bytes.
    """

    place: str
    kind: str
    count: int
    seconds: float
    share: float
    bound: Bound
    flops: float
    bytes: float
    intensity: float | None
    ridge: float | None
    reached: float | None  # share of the limiting rate that the kernel reaches


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseAnswer:
    """The explanation of one phase: a verdict, parts that add up to its time, and its kernels, slowest first."""

    phase: PhaseName
    seconds: float
    verdict: str
    parts: tuple[TimePart, ...]
    operators: tuple[Operator, ...]
    mfu: float | None
    mbu: float | None


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Explanation(Result):
    """What takes a model's time on a chip, and which changes would help."""

    case: Case
    phases: tuple[PhaseAnswer, ...]
    saturation: tuple[Curve, ...]
    memory_bytes: Mapping[str, float]
    capacity_bytes: float | None
    advice: tuple[Advice, ...]
    shared: Shared | None
    training: Checkpointing | None
    notes: tuple[str, ...] = field(default=())

    @property
    def estimate(self) -> CostEstimate:
        """The cost before any change."""
        return self.case.estimate

    def headline(self) -> str:
        """The model, the device, and the time of each phase."""
        times = ", ".join(f"{phase.phase} {units.show(phase.seconds, 'time')}" for phase in self.phases)
        advice = f"{len(self.advice)} piece{'' if len(self.advice) == 1 else 's'} of advice"
        short = "does not fit; as if it did: " if self.does_not_fit else ""
        return f"{self.case.question.arch.name} on {self.estimate.device}: {short}{times}; {advice}"

    @property
    def does_not_fit(self) -> str:
        """Text on the memory that is missing and on alternatives that fit; empty if the model fits."""
        needed, held = self.estimate.peak_memory_bytes, self.capacity_bytes
        if self.estimate.does_not_fit or held is None or needed <= held:
            return self.estimate.does_not_fit
        return f"does not fit: needs {units.show(needed, 'bytes')}, has {units.show(held, 'bytes')}"

    def rows(self) -> list[dict[str, object]]:
        """One row per part of each phase: seconds, share, and cause."""
        return [
            {
                "phase": phase.phase,
                "part": part.name,
                "seconds": part.seconds,
                "share": part.seconds / phase.seconds,
                "why": part.why,
            }
            for phase in self.phases
            for part in phase.parts
        ]

    def to_dict(self) -> dict[str, object]:
        """The output of ``chipwise explain --json``."""
        return to_data(self)


def explain_case(case: Case, *, every: bool = False, other_chips: bool = False) -> Explanation:
    """Explains a case; ``every`` includes uncertain advice, and ``other_chips`` also suggests other devices."""
    curves = (token_curve(case), batch_curve(case))
    held = case.estimate.memory_bytes
    capacity = case.sheet.usable_bytes if case.sheet is not None else None
    return Explanation(
        case=case,
        phases=tuple(_phase(case, phase) for phase in case.phases),
        saturation=tuple(curve for curve in curves if curve is not None),
        memory_bytes=held,
        capacity_bytes=capacity,
        advice=tuple(advise(case, every=every, other_chips=other_chips)),
        shared=shared_context(case),
        training=None if case.training else checkpointing(case),
        notes=(*_notes(case), *case.estimate.notes),
    )


def _phase(case: Case, phase: PhaseName) -> PhaseAnswer:
    parts = waterfall(case, phase)
    return PhaseAnswer(
        phase=phase,
        seconds=sum(part.seconds for part in parts),
        verdict=verdict(case, phase, parts),
        parts=parts,
        operators=operators(case, phase),
        mfu=case.estimate.mfu.get(phase),
        mbu=case.estimate.mbu.get(phase),
    )


def operators(case: Case, phase: PhaseName) -> tuple[Operator, ...]:
    """The kernels of a pass, slowest first. A kernel that is the same in several layers is one row."""
    costs = case.operators(phase)
    total = sum(cost.latency_s for cost in costs)
    alike: dict[tuple[str, str, float, float], list[OpCost]] = {}
    for cost in costs:
        place = re.sub(r"^layers\.\d+\.", "layers.", cost.place)
        alike.setdefault((place, cost.kind, float(cost.work.flops), float(cost.work.bytes)), []).append(cost)
    found = [_operator(place, same, total, known=case.sheet is not None) for (place, *_), same in alike.items()]
    # rounded to six digits, so that equal shapes keep the model's order although their last bits depend on the machine
    return tuple(sorted(found, key=lambda each: -float(f"{each.seconds:.6g}")))


def _operator(place: str, same: Sequence[OpCost], total: float, *, known: bool) -> Operator:
    """Merges equal kernels into one row; ``known`` says whether the chip's limits are known."""
    seconds, count = sum(cost.latency_s for cost in same), sum(cost.count for cost in same)
    flops, moved = float(same[0].work.flops * count), float(same[0].work.bytes * count)
    compute, memory = (sum(getattr(cost, name) or 0.0 for cost in same) for name in ("compute_s", "memory_s"))
    intensity = flops / moved if moved and flops else None
    return Operator(
        place=place,
        kind=same[0].kind,
        count=count,
        seconds=seconds,
        share=seconds / total,
        bound=same[0].bound,
        flops=flops,
        bytes=moved,
        intensity=intensity,
        ridge=intensity * memory / compute if known and intensity and compute else None,
        reached=min(1.0, max(compute, memory) / seconds) if known else None,
    )


def _notes(case: Case) -> list[str]:
    power, held = power_draw(case), held_note(case)
    return [*([] if power is None else [power_note(power)]), *([] if held is None else [held])]


def to_data(found: Explanation) -> dict[str, object]:
    """The explanation as plain data. The kernels of the changed models in the advice are left out."""
    question, cost = found.case.question, found.estimate
    return {
        "schema": SCHEMA,
        "model": question.arch.name,
        "parameters": question.arch.parameters(),
        "active_parameters": question.arch.active_parameters(),
        "device": cost.device,
        "devices": cost.devices,
        "runtime": cost.runtime,
        "weights": question.weights,
        "defaults": list(cost.defaults),
        "does_not_fit": found.does_not_fit,
        "kv": question.deployment.kv,
        **{name: getattr(question, name) for name in ("task", "batch", "prompt_tokens", "new_tokens")},
        **({"images": question.images, "image_size": list(question.image_size)} if question.images else {}),
        **({} if (sound_s := question.audio_s or question.arch.sound_s) is None else {"audio_s": sound_s}),
        "provenance": cost.provenance,
        "metrics": plain(
            {
                name: value
                for name, value in cost.metrics.items()
                if found.case.generates or found.case.training or name.startswith("ttft")
            }
        ),
        "phases": plain(found.phases),
        "saturation": plain(found.saturation),
        "decode_step_s": cost.decode_step_s if found.case.generates else None,
        "memory_bytes": dict(found.memory_bytes),
        "peak_memory_bytes": cost.peak_memory_bytes,
        "capacity_bytes": found.capacity_bytes,
        "training": plain(found.training),
        "shared_context": plain(found.shared),
        "advice": [_advice_data(number, each) for number, each in enumerate(found.advice, start=1)],
        "notes": list(found.notes),
    }


def _advice_data(number: int, advice: Advice) -> dict[str, object]:
    proposal = advice.proposal
    return {
        "number": number,
        "rule": advice.rule,
        **{name: getattr(proposal, name) for name in ("title", "touches", "how", "quality", "source")},
        "sure": advice.sure,
        "fits": advice.fits,
        "headline": advice.headline.metric,
        "gains": {
            gain.metric: {"before": gain.before, "after": gain.after, **plain(gain.ratio)} for gain in advice.gains
        },
    }
