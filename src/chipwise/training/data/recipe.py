"""The training recipe: batch size, learning rates and schedule."""

from __future__ import annotations

import math
from dataclasses import dataclass

from chipwise.core.fields import later
from chipwise.errors import SpecError
from chipwise.model.arch.arch import ArchSpec

WINDOW_TOKENS = 128
TEXT_TABLE_DECAY = 0.1
"""Weight decay of tables in text models that start from random weights; it lowered bits per byte from 1.129 to 1.074
after 6.7 passes over 4.9 MB
(docs/notes/training.md)."""
STEPS = "-steps"  # suffix of file names whose budget is counted in steps


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """Recipe of a training run. The defaults are the result of measurements: docs/notes/training.md."""

    window_tokens: int = WINDOW_TOKENS
    batch_windows: int = 16
    matrix_rate: float = 0.01  # learning rate of the layers' matrices
    table_rate: float = 0.024  # learning rate of the token table, head, norms and biases
    weight_decay: float = 0.1  # of the layers' matrices
    table_decay: float = later(0.0)  # weight decay of the token table, the head and other matrices outside the layers
    rounds: int = 3  # iterations of orthogonalisation
    momentum: float = 0.8  # of the matrices' gradients; all other parameters use 0.1 less
    warmup_steps: int = 20
    decay_share: float = 0.5  # last part of the budget, in which the rate decays to zero
    clip_norm: float = 1.0
    rate_width: int | None = 192  # the rates hold at this width and scale with 1/√width; None: no scaling

    def __post_init__(self) -> None:
        for name in ("window_tokens", "batch_windows"):
            if getattr(self, name) < 1:
                raise SpecError(f"must be at least 1, not {getattr(self, name)}", field=name)
        if not 0 < self.decay_share <= 1:
            raise SpecError(f"must be above 0 and at most 1, not {self.decay_share}", field="decay_share")

    def rates(self, d_model: int) -> tuple[float, float]:
        """Peak learning rates for a model of this width: for the layers' matrices, and for all other parameters."""
        share = 1.0 if self.rate_width is None else math.sqrt(self.rate_width / d_model)
        return self.matrix_rate * share, self.table_rate * share


def tokens_per_step(arch: ArchSpec, recipe: Recipe | None = None) -> int:
    """Tokens that one training step of ``arch`` processes."""
    recipe = recipe or Recipe()
    return recipe.batch_windows * min(recipe.window_tokens, arch.max_tokens)


def budget_name(budget: float, *, counted: bool) -> str:
    """The budget as used in a training run's file names: ``4`` (CPU seconds) or ``300-steps``."""
    return f"{int(budget)}{STEPS}" if counted else f"{budget:g}"
