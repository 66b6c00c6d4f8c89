"""The explanation of a model on a chip, as one value that the terminal, the page and JSON show."""

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
    """A kernel of a pass, over all its calls. ``ridge`` is the intensity at which its two limits are equal."""

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
    reached: float | None  # share of its limit


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseAnswer:
    """One phase: its verdict, the parts that add up to its time, and its kernels, largest first."""

    phase: PhaseName
    seconds: float
    verdict: str
    parts: tuple[TimePart, ...]
    operators: tuple[Operator, ...]
    mfu: float | None
    mbu: float | None


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Explanation(Result):
    """Explains where a model's time goes on a chip, and which changes help."""

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
        """Missing memory, and alternatives that fit; empty if the model fits."""
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
    """Explains a case. ``every`` keeps uncertain advice, ``other_chips`` also suggests other devices."""
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
    """The kernels of a pass, largest first. Equal layers share a row."""
    costs = case.operators(phase)
    total = sum(cost.latency_s for cost in costs)
    alike: dict[tuple[str, str, float, float], list[OpCost]] = {}
    for cost in costs:
        place = re.sub(r"^layers\.\d+\.", "layers.", cost.place)
        alike.setdefault((place, cost.kind, float(cost.work.flops), float(cost.work.bytes)), []).append(cost)
    found = [_operator(place, same, total, known=case.sheet is not None) for (place, *_), same in alike.items()]
    # to six digits: equal shapes, whose sums differ in the last bits between processors, stay in the order of the model
    return tuple(sorted(found, key=lambda each: -float(f"{each.seconds:.6g}")))


def _operator(place: str, same: Sequence[OpCost], total: float, *, known: bool) -> Operator:
    """One row; ``known`` says whether the chip's limits are known."""
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
    """The explanation as plain data, without the kernels of changed models."""
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
        "task": question.task,
        "batch": question.batch,
        "prompt_tokens": question.prompt_tokens,
        "new_tokens": question.new_tokens,
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
        "title": proposal.title,
        "touches": proposal.touches,
        "how": proposal.how,
        "quality": proposal.quality,
        "source": proposal.source,
        "sure": advice.sure,
        "fits": advice.fits,
        "headline": advice.headline.metric,
        "gains": {
            gain.metric: {"before": gain.before, "after": gain.after, **plain(gain.ratio)} for gain in advice.gains
        },
    }
