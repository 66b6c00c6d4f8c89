"""Notes in explanations: on candidates that share a context, on activation checkpointing, and on power.

Scoring k candidates of s tokens over a cached context of c tokens costs one pass over the context and one pass over k x
s tokens. Without sharing, it costs k passes over c + s tokens. Attention is assumed to read the shared cache once per
candidate; kernels that read it once for all candidates would be faster.

References:
    Juravsky et al. 2024, Hydragen, arXiv:2402.05099; Zheng et al. 2023, SGLang (RadixAttention), arXiv:2312.07104.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from chipwise.core import units
from chipwise.errors import ChipwiseError, DoesNotFit, Unsupported
from chipwise.hardware.runtime import Runtime
from chipwise.predict.explain.question import Case
from chipwise.predict.kernels import caches
from chipwise.predict.served.batching import constants
from chipwise.predict.served.formats import wide_format
from chipwise.predict.served.groups import grouped
from chipwise.predict.served.request import resolved
from chipwise.predict.served.setting import Step
from chipwise.predict.served.steps import Pass, time_passes
from chipwise.predict.served.training_step import training_step

CANDIDATES = (1, 2, 4, 8, 16, 32, 64, 128)
OWN_TOKENS = 16  # tokens of each candidate


@dataclass(frozen=True, slots=True, kw_only=True)
class Shared:
    """Seconds to score several candidates that have the same context, with and without sharing the context's cache."""

    context_tokens: int
    own_tokens: int
    candidates: tuple[int, ...]
    shared_s: tuple[float, ...]
    separate_s: tuple[float, ...]

    def saving(self, i: int) -> float:
        """Seconds without sharing divided by seconds with sharing, for ``candidates[i]`` candidates."""
        return self.separate_s[i] / self.shared_s[i]


def shared_context(case: Case) -> Shared | None:
    """Predicts ``Shared``, with the case's prompt as the context. None if there is no data sheet, or no cache."""
    if case.sheet is None or not case.generates or case.arch.encoder:
        return None
    context, count = case.question.prompt_tokens, np.array(CANDIDATES, dtype=np.int64)
    groups, errors = grouped([case.question.request(case.sheet.name)])
    if errors:
        return None
    ones = np.ones(len(count), dtype=np.int64)
    steps = (
        Step(batch=ones, query_tokens=context * ones, past_tokens=0 * ones),
        Step(batch=count, query_tokens=OWN_TOKENS * ones, past_tokens=context * ones),
        Step(batch=ones, query_tokens=(context + OWN_TOKENS) * ones, past_tokens=0 * ones),
    )
    group = groups[0]
    try:
        times = time_passes(
            [Pass(setting=group.setting, step=step, device=group.device, rows=len(count)) for step in steps]
        )
    except ChipwiseError:
        return None
    once, own, whole = (constants().step_s(each, group.setting, 0) for each in times)
    return Shared(
        context_tokens=context,
        own_tokens=OWN_TOKENS,
        candidates=CANDIDATES,
        shared_s=tuple(map(float, once + own)),
        separate_s=tuple(map(float, count * whole)),
    )


def held_note(case: Case) -> str | None:
    """Note on the chip's cache that holds all bytes of a pass; None if no cache of known bandwidth is large enough."""
    runtime = case.question.deployment.runtime
    if case.sheet is None or case.training or not isinstance(runtime, Runtime):
        return None
    phase = case.phases[-1]
    moved = sum(float(cost.work.bytes * cost.count) for cost in case.operators(phase))
    held = caches.caches_of(case.sheet, runtime.stack)
    cache = next((each for each in held if moved <= each.capacity_bytes), None)
    if cache is None:
        return None
    rate = float(caches.bandwidth_bytes_per_s(np.array([moved]), case.sheet, runtime.stack)[0])
    shown = [units.show(each, "bandwidth") for each in (rate, caches.memory_bytes_per_s(case.sheet, runtime.stack))]
    return (
        f"{case.title(phase)} reads {units.show(moved, 'bytes')}, which {cache.name} "
        f"({units.show(cache.capacity_bytes, 'bytes')}) holds: read at {shown[0]}, not at the {shown[1]} of memory"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpointing:
    """Seconds and bytes of a training step without checkpointing (``kept``) and with it (``recomputed``).

    The seconds and bytes of a variant are None if its step does not fit in memory.
    """

    sequences: int
    tokens: int
    kept_s: float | None
    kept_bytes: float | None
    recomputed_s: float | None
    recomputed_bytes: float | None

    @property
    def slower(self) -> float | None:
        """Step time with checkpointing divided by the step time without it; None unless both steps fit in memory."""
        if self.kept_s is None or self.recomputed_s is None:
            return None
        return self.recomputed_s / self.kept_s


def checkpointing(case: Case) -> Checkpointing | None:
    """Predicts a training step with and without checkpointing.

    None if the chip has no data sheet, or if training this model cannot be predicted.
    """
    question, sheet = case.question, case.sheet
    if sheet is None:
        return None
    found: list[tuple[float, float] | None] = []
    for checkpoint in (False, True):
        try:
            known = resolved(question.but(weights=wide_format(sheet)).request(sheet.name))
            step = training_step(
                known.setting, known.device, batch=question.batch, tokens=question.prompt_tokens, checkpoint=checkpoint
            )
        except DoesNotFit:
            found.append(None)
        except ChipwiseError:
            return None
        else:
            found.append((step.step.value, step.peak_memory_bytes))
    kept, recomputed = found
    return Checkpointing(
        sequences=question.batch,
        tokens=question.prompt_tokens,
        kept_s=kept[0] if kept else None,
        kept_bytes=kept[1] if kept else None,
        recomputed_s=recomputed[0] if recomputed else None,
        recomputed_bytes=recomputed[1] if recomputed else None,
    )


def checkpointing_note(found: Checkpointing) -> str:
    """The note on activation checkpointing, as one line."""
    what = f"training on {found.sequences} x {found.tokens:,} tokens"
    if found.recomputed_s is None or found.recomputed_bytes is None:
        return f"{what} does not fit, with activation checkpointing or without"
    took = f"{units.show(found.recomputed_s, 'time')} a step and {units.show(found.recomputed_bytes, 'bytes')}"
    if found.kept_s is None or found.kept_bytes is None:
        return f"{what} fits only with activation checkpointing: {took}"
    kept = f"{units.show(found.kept_s, 'time')} a step and {units.show(found.kept_bytes, 'bytes')}"
    return (
        f"{what}: {kept}; with activation checkpointing {took}, {found.recomputed_s / found.kept_s:.2f} times as long"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PowerDraw:
    """Power of all devices in watts, averaged over prefill and decode, and their power limit."""

    drawn_w: float
    limit_w: float

    @property
    def share(self) -> float:
        """Drawn power as a share of the power limit."""
        return self.drawn_w / self.limit_w


def power_draw(case: Case) -> PowerDraw | None:
    """Power while serving; None if the board's power limit is unpublished or the model does not generate."""
    energy = case.estimate.metrics.get("joules_per_token")
    if case.sheet is None or energy is None or not case.generates:
        return None
    try:
        limit_w = case.sheet.board_power_w * case.estimate.devices
    except Unsupported:
        return None
    drawn_w = energy.value * case.estimate.metrics["throughput"].value
    return PowerDraw(drawn_w=min(drawn_w, limit_w), limit_w=limit_w)


def power_note(found: PowerDraw) -> str:
    """The note on power, as one line."""
    return (
        f"power: about {units.show(found.drawn_w, 'power')} of {units.show(found.limit_w, 'power')} while serving, "
        f"{units.show(max(0.0, 1 - found.share), 'share', digits=2)} below the limit at which clocks fall"
    )
