"""A scaling law of model size and text, fitted to a search's short training runs to extrapolate to the full budget.

Bits per byte = ``floor`` + ``layers`` · N^-a + ``head`` · H^-a + ``text`` · D^-b. N is the number of parameters in the
layers, H that in the head (vocabulary times width), and D the number of bytes of text read in training. Each further
pass over the same text counts less than the one before. In a fixed time, a small model reads more text, so the best
size and vocabulary depend on the budget. Short training runs favour small models, and the law says by how much. The
search's quality model learns the effect of a candidate's shape as a deviation from the law.

References:
    The form: Hoffmann et al. 2022, arXiv:2203.15556, equation 2, with a separate term for the head. Further passes:
    Muennighoff et al. 2023, arXiv:2305.16264, equation 5. The constants are fitted anew in each run; until a run has
    trained models, ``START`` is used, fitted by ``benchmarks/real/text_law.py`` to training runs of 0.3 to 11 passes.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from chipwise.core.arrays import Float64Array
from chipwise.core.statistics import nnls

EXPONENTS = (0.2, 0.3, 0.4, 0.5)
BELIEF = 0.15  # weight of each of START's predictions, relative to an observed training run
USUAL_LAYERS, USUAL_HEAD, USUAL_TEXT = 1e6, 5e5, 3e7  # parameters, and bytes read in ten minutes of training
PASSES_EXPONENT = 1.5  # roughly how the Fréchet distance of images falls with sampling steps (tasks/diffusion)


@dataclass(frozen=True, slots=True, kw_only=True)
class Law:
    """Constants of the law; sizes are in parameters, text in bytes."""

    floor: float
    layers: float
    head: float
    text: float
    size_exponent: float
    text_exponent: float
    level_known: bool = True  # False: only START's shape is used; the level is fitted to the run's training runs
    one_pass: float = 0.0  # relative rise in loss if one sampling step is taken instead of many
    repeats: float = math.inf  # what all passes over the data after the first are worth at most, in first passes
    smallest: float = 0.5  # least size of a design to choose by the law, relative to the largest within the limits

    def loss(self, layers: ArrayLike, head: ArrayLike, text_bytes: ArrayLike) -> Float64Array:
        """Expected bits per byte, (n,), of models with these sizes after training on this much text."""
        n, h, d = (np.asarray(item, float) for item in (layers, head, text_bytes))
        sizes = self.layers * n**-self.size_exponent + self.head * h**-self.size_exponent
        return np.asarray(self.floor + sizes + self.text * d**-self.text_exponent)

    def fresh(self, text_bytes: ArrayLike, unique_bytes: float) -> Float64Array:
        """Bytes of new text, (n,), that are worth as much as reading ``text_bytes`` from a text of ``unique_bytes``.

        Each further pass is worth less than the one before.

        >>> START.fresh([3e6, 40e6], unique_bytes=5e6).round(-4).tolist()
        [3000000.0, 21520000.0]
        """
        read = np.asarray(text_bytes, float)
        if math.isinf(self.repeats) or math.isinf(unique_bytes):
            return read
        again = np.maximum(read / unique_bytes - 1, 0.0)
        later = -self.repeats * np.expm1(-again / self.repeats)  # in units of first passes
        return np.asarray(np.minimum(read, unique_bytes) + unique_bytes * later)

    @property
    def slope(self) -> float:
        """Decrease of the ln loss when a model of the usual size reads twice the usual amount of text.

        The usual values are ``USUAL_LAYERS``, ``USUAL_HEAD`` and ``USUAL_TEXT``.

        >>> round(START.slope, 3)
        0.086
        """
        once, twice = self.loss(USUAL_LAYERS, USUAL_HEAD, np.array([1.0, 2.0]) * USUAL_TEXT)
        return float(np.log(once / twice))

    def of_passes(self, count: ArrayLike) -> Float64Array:
        """Factor, (n,), on the loss of models that generate in ``count`` passes; approaches 1 for many passes."""
        return np.asarray(1 + self.one_pass * np.asarray(count, float) ** -PASSES_EXPONENT)


START = Law(floor=0.413, layers=18.2, head=23.0, text=137.0, size_exponent=0.4, text_exponent=0.34, repeats=4.0)


def fit_law(layers: ArrayLike, head: ArrayLike, text_bytes: ArrayLike, loss: ArrayLike, *, start: Law = START) -> Law:
    """Fits the law to training runs by relative least squares, regularised towards ``start``; arrays are (n,).

    If only the form of ``start`` is known (``level_known`` is false), its predictions are first multiplied by a factor
    that fits these training runs.
    """
    n, h, d, y = (np.asarray(item, float) for item in (layers, head, text_bytes, loss))
    if not len(y):
        return start
    level = 1.0 if start.level_known else float(np.median(y / start.loss(n, h, d)))
    grid = np.meshgrid(np.geomspace(1e5, 3e6, 3), np.geomspace(1e5, 3e6, 3), np.geomspace(1e6, 1e8, 3))
    some_n, some_h, some_d = (axis.ravel() for axis in grid)
    all_n, all_h, all_d = np.r_[n, some_n], np.r_[h, some_h], np.r_[d, some_d]
    all_y = np.r_[y, level * start.loss(some_n, some_h, some_d)]
    weight = np.r_[np.ones(len(y)), np.full(len(some_n), BELIEF)] / all_y
    best: tuple[float, Law] | None = None
    for a, b in itertools.product(EXPONENTS, EXPONENTS):
        columns = np.column_stack([np.ones(len(all_y)), all_n**-a, all_h**-a, all_d**-b])
        found = nnls(columns * weight[:, None], all_y * weight)
        error = float(((((columns @ found) - all_y) * weight) ** 2).sum())
        if best is None or error < best[0]:
            floor, size, top, text = (float(value) for value in found)
            law = Law(floor=floor, layers=size, head=top, text=text, size_exponent=a, text_exponent=b)
            best = (error, law)
    assert best is not None
    return best[1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """Seconds of training per token: a constant, plus terms proportional to the parameters of layers and head."""

    token_s: float
    layer_parameter_s: float
    head_parameter_s: float

    def tokens_per_s(self, layer_parameters: ArrayLike, head_parameters: ArrayLike) -> Float64Array:
        """Training throughput in tokens/s, (n,)."""
        layers, head = np.asarray(layer_parameters, float), np.asarray(head_parameters, float)
        return np.asarray(1 / (self.token_s + self.layer_parameter_s * layers + self.head_parameter_s * head))

    @property
    def slowness(self) -> float:
        """Training time of a model of the usual size (:attr:`Law.slope`), relative to the machine of ``PACE``."""
        rates = [pace.tokens_per_s(USUAL_LAYERS, USUAL_HEAD) for pace in (PACE, self)]
        return float(rates[0] / rates[1])

    def times(self, factor: float) -> Pace:
        """The seconds per token on a machine on which training takes ``factor`` times as long."""
        return Pace(
            token_s=self.token_s * factor,
            layer_parameter_s=self.layer_parameter_s * factor,
            head_parameter_s=self.head_parameter_s * factor,
        )


PACE = Pace(token_s=9.6e-6, layer_parameter_s=3.05e-11, head_parameter_s=2.77e-11)


def fit_pace(layer_parameters: ArrayLike, head_parameters: ArrayLike, tokens_per_s: ArrayLike) -> Pace:
    """Fits the seconds per token to observed training runs, regularised towards ``PACE``; all arguments are (n,)."""
    layers, head = np.asarray(layer_parameters, float), np.asarray(head_parameters, float)
    known = 1 / np.asarray(tokens_per_s, float)
    if not len(known):
        return PACE
    more_layers, more_head = (g.ravel() for g in np.meshgrid(np.geomspace(3e4, 3e6, 3), np.geomspace(6e4, 2e6, 3)))
    scale = float(np.median(known * PACE.tokens_per_s(layers, head)))  # this machine's speed relative to PACE
    believed = scale / PACE.tokens_per_s(more_layers, more_head)
    target = np.r_[known, believed]
    weight = np.r_[np.ones(len(known)), np.full(len(believed), BELIEF)] / target
    columns = np.column_stack([np.ones(len(target)), np.r_[layers, more_layers], np.r_[head, more_head]])
    token, layer, top = (float(v) for v in nnls(columns * weight[:, None], target * weight))
    return Pace(token_s=token, layer_parameter_s=layer, head_parameter_s=top)
