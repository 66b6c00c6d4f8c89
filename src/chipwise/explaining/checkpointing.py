"""Activation checkpointing: what training this model on this chip would take with and without it.

Keeping activations for the backward pass costs memory, computing them again costs time: one forward pass of the layers.
A fact beside an answer about serving; asked about training (``explain --train``), a rule proposes either way.
"""

from __future__ import annotations

from dataclasses import dataclass

from chipwise.core import units
from chipwise.core.errors import ChipwiseError, DoesNotFit
from chipwise.explaining.question import Case
from chipwise.explaining.requests import request_of
from chipwise.serve.formats import wide_format
from chipwise.serve.request import resolved
from chipwise.serve.training import training_step


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpointing:
    """Seconds and bytes of one training step on the prompts of the question; None where memory is too small."""

    sequences: int
    tokens: int
    kept_s: float | None
    kept_bytes: float | None
    recomputed_s: float | None
    recomputed_bytes: float | None

    @property
    def slower(self) -> float | None:
        """How many times longer a step takes with checkpointing; None where only one of the two fits."""
        if self.kept_s is None or self.recomputed_s is None:
            return None
        return self.recomputed_s / self.kept_s


def checkpointing(case: Case) -> Checkpointing | None:
    """Both ways; None where the chip has no data sheet or training cannot be priced on it."""
    question, sheet = case.question, case.sheet
    if sheet is None:
        return None
    found: list[tuple[float, float] | None] = []
    for checkpoint in (False, True):
        try:
            known = resolved(request_of(question.but(weights=wide_format(sheet)), sheet.name))
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


def sentence(found: Checkpointing) -> str:
    """The facts in one line."""
    what = f"training on {found.sequences} x {found.tokens:,} tokens"
    if found.recomputed_s is None or found.recomputed_bytes is None:
        return f"{what} does not fit, with activation checkpointing or without"
    took = f"{units.show(found.recomputed_s, 'time')} a step and {units.show(found.recomputed_bytes, 'bytes')}"
    if found.kept_s is None or found.kept_bytes is None:
        return f"{what} fits with activation checkpointing alone: {took}"
    kept = f"{units.show(found.kept_s, 'time')} a step and {units.show(found.kept_bytes, 'bytes')}"
    return (
        f"{what}: {kept}; with activation checkpointing {took}, {found.recomputed_s / found.kept_s:.2f} times as long"
    )
