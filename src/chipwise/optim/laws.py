"""What loss a model that nobody here can train would reach: published scaling laws, with an interval.

Nats a token = ``floor`` + ``size`` · N^-α + ``text`` · D^-β, with N all parameters and D the tokens of one pass over
the text, and a few per cent more where depth and width are out of proportion. The laws were fitted to one lab's
trainings, with its tokenizer and text: figures of two models compare, one figure says little about another text.

The interval (nine of ten) holds three things: how far the constants vary together, as drawn from the published points;
the points' own scatter; and how far the two published fits of the same trainings differ, which grows with
extrapolation. What an unusual shape costs counts as known to its own size.

References:
    Hoffmann et al. 2022, arXiv:2203.15556, appendix D.3, constants of the TeX source: ``HOFFMANN``. Besiroglu et al.
    2024, arXiv:2404.10102, table 1: ``BESIROGLU``; its points and code: github.com/epoch-research/analyzing-chinchilla,
    from which ``benchmarks/scaling_law.py`` computed ``COVARIANCE`` and ``SCATTER``.
    Best depth at a width: Levine et al. 2020, arXiv:2006.12467, equation 11. What leaving it costs: Kaplan et al. 2020,
    arXiv:2001.08361, section 3.1, six layers of 4,288 against 48 of 1,600: a loss 3 % higher.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from chipwise.core.arrays import Float64Array
from chipwise.core.errors import InputError, Unsupported
from chipwise.core.results import Result
from chipwise.core.statistics import Z90
from chipwise.cost.model import Predicted
from chipwise.spec import ArchSpec
from chipwise.spec.mixers import GatedDelta, Mamba2

SMALLEST_PARAMETERS, SMALLEST_TOKENS = 1e7, 1e8  # below, the laws say nothing: it can be trained
FITTED_PARAMETERS, FITTED_TOKENS = (5.7e7, 1.6e10), (1e9, 5e11)  # of the published trainings


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedLaw:
    """A law's constants; sizes in parameters, text in tokens, loss in nats a token."""

    floor: float
    size: float
    text: float
    size_exponent: float
    text_exponent: float
    source: str

    def nats_per_token(self, parameters: float, tokens: float) -> float:
        """The loss that the law expects.

        >>> round(HOFFMANN.nats_per_token(70e9, 1.4e12), 2)  # Chinchilla: 1.6934 + 0.0852 + 0.1423
        1.92
        """
        by_size, by_text = self._parts(parameters, tokens)
        return self.floor + by_size + by_text

    def sensitivities(self, parameters: float, tokens: float) -> Float64Array:
        """Change of the loss by ln ``size``, ln ``text``, ln ``floor`` and the two exponents, (5,)."""
        by_size, by_text = self._parts(parameters, tokens)
        return np.array([by_size, by_text, self.floor, -by_size * math.log(parameters), -by_text * math.log(tokens)])

    def _parts(self, parameters: float, tokens: float) -> tuple[float, float]:
        return self.size * parameters**-self.size_exponent, self.text * tokens**-self.text_exponent


HOFFMANN = PublishedLaw(
    floor=1.6934, size=406.4, text=410.7, size_exponent=0.3392, text_exponent=0.2849, source="Hoffmann et al. 2022"
)
BESIROGLU = PublishedLaw(
    floor=1.8172, size=482.01, text=2085.43, size_exponent=0.3478, text_exponent=0.3658, source="Besiroglu et al. 2024"
)
COVARIANCE = np.array(
    [  # of ln size, ln text, ln floor, size exponent, text exponent, over 4,000 draws of the published points
        (0.0638874, -0.0263541, 0.0020509, 0.0038093, -0.00132198),
        (-0.0263541, 0.179311, 0.00374749, -0.00163942, 0.00877114),
        (0.0020509, 0.00374749, 0.000199479, 0.000121048, 0.000182634),
        (0.0038093, -0.00163942, 0.000121048, 0.000227438, -8.22894e-05),
        (-0.00132198, 0.00877114, 0.000182634, -8.22894e-05, 0.000429322),
    ]
)
SCATTER = 0.0075  # standard deviation of the published points around the law, relative
BEST_DEPTH = (5.039, 0.0555)  # ln width = a + b · depth where a model of this size is best
SHALLOW_COST = 0.03  # relative, of 6 layers of 4,288 where about 42 of 1,600 are best


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ExpectedQuality(Result):
    """What a training is expected to reach; never shown without its interval."""

    loss: Predicted  # in ``unit``, nine of ten within
    unit: str
    source: str  # of the law
    basis: str  # how the figure came about, and of which text
    parameters: float  # that the law was asked about
    tokens: float
    notes: tuple[str, ...] = ()

    def headline(self) -> str:
        """The expected loss with its interval."""
        return str(self)

    def rows(self) -> list[dict[str, object]]:
        """One row: the expected loss, its interval and unit."""
        return [{"unit": self.unit, "value": self.loss.value, "low": self.loss.low, "high": self.loss.high}]

    def __str__(self) -> str:
        value, low, high = (f"{x:.2f}" for x in (self.loss.value, self.loss.low, self.loss.high))
        return f"{value} {self.unit} [{low}, {high}], {self.basis}"


def published_quality(arch: ArchSpec, *, tokens: float) -> ExpectedQuality:
    """The loss that ``arch`` is expected to reach after one pass over ``tokens`` of text, by the published law.

    Args:
        arch: A decoder of at least ten million parameters.
        tokens: Of training, at least 100 million, none seen twice.

    Raises:
        Unsupported: The model does not predict next tokens.
        InputError: Too small a model or too little text for the law to say anything.
    """
    if arch.encoder or not arch.causal or arch.head != "lm":
        raise Unsupported(f"{arch.name}: the published laws are of decoders that predict the next token")
    least, most = _counted(arch)
    if most < SMALLEST_PARAMETERS or not SMALLEST_TOKENS <= tokens < math.inf:
        raise InputError(
            f"{arch.name}: the published laws say nothing of {_said(most)} parameters after "
            f"{_said(tokens)} tokens (from 10M parameters and 100M tokens on); train it: chipwise train"
        )
    middle = math.sqrt(least * most)
    out_of_shape = shape_cost(arch)
    law = BESIROGLU.nats_per_token(middle, tokens)
    loss = law * (1 + out_of_shape)
    change = BESIROGLU.sensitivities(middle, tokens)
    variance = float(change @ COVARIANCE @ change) + (SCATTER * law) ** 2 + (out_of_shape * law) ** 2
    variance += (law - HOFFMANN.nats_per_token(middle, tokens)) ** 2
    half = Z90 * math.sqrt(variance)
    ends = [BESIROGLU.nats_per_token(count, tokens) - law for count in (most, least)]
    return ExpectedQuality(
        loss=Predicted(value=loss, low=loss + ends[0] - half, high=loss + ends[1] + half),
        unit="nats/token",
        source=BESIROGLU.source,
        basis="predicted, published law, another tokenizer and text",
        parameters=middle,
        tokens=tokens,
        notes=tuple(_notes(arch, least, most, tokens)),
    )


def published_change(before: ArchSpec, after: ArchSpec, *, tokens: float) -> Predicted:
    """By how many nats a token the expected loss changes where ``after`` is trained instead of ``before``.

    Both stand under the same law, so most of what it does not know cancels: the interval is narrower than those of
    :func:`published_quality`. How far two trainings of one model differ is not in it.

    Raises:
        Unsupported: As there.
        InputError: As there.
    """
    one, other = (published_quality(arch, tokens=tokens) for arch in (before, after))
    sizes, shapes = (one.parameters, other.parameters), (shape_cost(before), shape_cost(after))
    laws = [[law.nats_per_token(size, tokens) for size in sizes] for law in (BESIROGLU, HOFFMANN)]
    by_fit = (laws[0][1] - laws[0][0]) - (laws[1][1] - laws[1][0])
    by_shape = laws[0][1] * shapes[1] - laws[0][0] * shapes[0]
    change = BESIROGLU.sensitivities(sizes[1], tokens) - BESIROGLU.sensitivities(sizes[0], tokens)
    half = Z90 * math.sqrt(float(change @ COVARIANCE @ change) + by_fit**2 + by_shape**2)
    value = other.loss.value - one.loss.value
    better, worse = (
        sum(abs(BESIROGLU.nats_per_token(_counted(arch)[i], tokens) - law) for arch, i, law in ends)
        for ends in (
            ((before, 0, laws[0][0]), (after, 1, laws[0][1])),
            ((before, 1, laws[0][0]), (after, 0, laws[0][1])),
        )
    )
    return Predicted(value=value, low=value - better - half, high=value + worse + half)


def shape_cost(arch: ArchSpec) -> float:
    """By which share the loss is higher than in the best proportion of depth to width, by published figures.

    Quadratic in the logarithm of depth over best depth, through the one published cost.
    """
    return _cost_of(len(arch.layers), sum(arch.layer_parameters(layer, active=True) for layer in arch.layers))


def _cost_of(depth: int, layer_parameters: float) -> float:
    shallow = math.log(6 / best_depth(12 * 6 * 4288**2))
    return SHALLOW_COST * (math.log(depth / best_depth(layer_parameters)) / shallow) ** 2


def best_depth(layer_parameters: float) -> float:
    """Layers in which so many parameters are best spent: the depth that solves 12 · depth · width² = parameters.

    >>> round(best_depth(1e12)), round(math.exp(5.039 + 0.0555 * best_depth(1e12)), -3)  # "30K for 1 trillion"
    (95, 30000.0)
    """
    intercept, slope = BEST_DEPTH
    low, high = 1e-6, 1e3
    while high - low > 1e-9 * high:
        depth = (low + high) / 2
        small = math.log(12 * depth) + 2 * (intercept + slope * depth) < math.log(layer_parameters)
        low, high = (depth, high) if small else (low, depth)
    return high


def _counted(arch: ArchSpec) -> tuple[float, float]:
    """Fewest and most parameters that ``arch`` may count as: those a token meets once, and all as often as they run."""
    shared = [layer for layer in arch.layers if layer.shares is not None]
    again = sum(arch.layer_parameters(layer) for layer in shared)
    return float(arch.active_parameters()), float(arch.parameters() + again)


def _notes(arch: ArchSpec, least: float, most: float, tokens: float) -> list[str]:
    notes = []
    if least < most:
        notes.append(
            f"counts as {_said(least)} to {_said(most)} parameters (experts a token does "
            "not meet, layers that share weights): the interval holds both, the figure is of their geometric mean"
        )
    for what, value, (low, high) in (("parameters", most, FITTED_PARAMETERS), ("tokens", tokens, FITTED_TOKENS)):
        if not low <= value <= high:
            notes.append(f"{_said(value)} {what} are outside the published trainings' {_said(low)} to {_said(high)}")
    if any(isinstance(layer.attention, GatedDelta | Mamba2) for layer in arch.layers):
        notes.append("the published trainings had attention in every layer, this model has recurrences")
    return notes


def _said(count: float) -> str:
    factor, letter = next(((f, c) for f, c in ((1e12, "T"), (1e9, "B")) if count >= f), (1e6, "M"))
    return f"{count / factor:.3g}{letter}"
