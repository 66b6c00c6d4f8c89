"""Predicts the loss of models that are too large to train here, by a scaling law of size, shape and text.

    nats per token = e^s · (floor + size · (n / 1e8)^-a + text · (t / 1e11)^-b · (N / 1e8)^g)

where N is the number of parameters in the layers (without embeddings and head), t the training tokens (each seen once),
and n the effective parameters of the shape:

    n = N / ((1 + depth / layers) · (1 + width / d_model)) · e^-(ffn · ln²(share / 10)) · (2 / queries per KV head)^kv
        · e^-(attention · ln²(heads · head size / d_model)) · (1 - e^(-bits / γ)) / (1 - e^(-16 / γ))

The two factors that divide N are penalties: few layers allow few sequential steps, and a narrow residual stream carries
few features. Both penalties shrink as the model grows. At equal parameters, the feed-forwards' share of a layer, a
narrower attention and fewer key-value heads matter little. A weight with few bits stores less information. Each of the
constants ffn, kv, attention and γ comes from a single published figure, and its standard deviation is as large as the
constant itself (for γ, about a third of it). For a mixture of experts, or for layers that share weights, N is the
geometric mean of the parameters active per token and of all parameters; the interval covers both. The law contains the
covariance of its constants. Errors that two designs have in common therefore cancel in the difference of their losses.
The largest of these errors is that of ``s``, which depends on tokenizer and text. Your own training runs narrow the
uncertainty of all constants (:mod:`chipwise.training.laws.law_fit`); a single run determines ``s``.

References:
    Form in size and text: Hoffmann et al. 2022, arXiv:2203.15556, equation 2; parameters of the layers and the small
    effect of shape: Kaplan et al. 2020, arXiv:2001.08361, section 3.1 and figure 5 (``ffn``). Training runs of many
    widths and depths: McLeish et al. 2025, Gemstones, arXiv:2502.06857. Key-value heads at equal parameters: Shazeer
    2019, arXiv:1911.02150, table 3 (``kv``; ``attention``: if all heads together have 1/8 of the model's width, the
    perplexity is 31 instead of 29.9). Effective parameters of models trained in few bits: Kumar et al. 2024,
    arXiv:2411.04330, equation 3, γ = 2.67 bits. Mechanisms behind the terms 1 / width and 1 / depth: arXiv:2606.25008.
    Beyond the range of the fitted training runs, the interval grows by the difference from the law of Besiroglu et al.
    2024, arXiv:2404.10102, table 1.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike

from chipwise.core.arrays import Float64Array
from chipwise.core.files import read_mapping
from chipwise.core.record import Record
from chipwise.core.results import Result
from chipwise.core.statistics import Z90
from chipwise.errors import InputError, SpecError
from chipwise.model.arch.arch import ArchSpec
from chipwise.model.arch.design import Design
from chipwise.predict.cost.model import Predicted
from chipwise.training.laws.shapes import Shapes, recurrent

DATA = Path(__file__).parent / "data" / "law.json"
CONSTANTS = (
    "level", "ln_floor", "ln_size", "size_exponent", "ln_text", "text_exponent", "text_growth",
    "ln_depth", "ln_width", "ffn", "kv", "attention", "ln_bits", "between",
)  # fmt: skip
SMALLEST_PARAMETERS, SMALLEST_TOKENS = 1e7, 1e8  # the law does not apply to smaller models, which can be trained
PARAMETERS, TOKENS, FFN_SHARE, QUERIES_PER_KV, BITS = (
    1e8,
    1e11,
    10.0,
    2.0,
    16.0,
)  # reference sizes, at which the powers are one and the logarithms zero
ALIKE = math.log(2)  # distance in log size beyond which the errors of two shapes are independent


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedLaw:
    """A published law of nats per token, for N parameters in total and D tokens: floor + size · N^-α + text · D^-β."""

    floor: float
    size: float
    text: float
    size_exponent: float
    text_exponent: float

    def nats_per_token(self, parameters: ArrayLike, tokens: ArrayLike) -> Float64Array:
        """Expected loss after training on ``tokens``.

        >>> float(BESIROGLU.nats_per_token(70e9, 1.4e12).round(2))  # Chinchilla: 1.8172 + 0.0814 + 0.0751
        1.97
        """
        n, d = np.asarray(parameters, float), np.asarray(tokens, float)
        return np.asarray(self.floor + self.size * n**-self.size_exponent + self.text * d**-self.text_exponent)


BESIROGLU = PublishedLaw(floor=1.8172, size=482.01, text=2085.43, size_exponent=0.3478, text_exponent=0.3658)


@dataclass(frozen=True, slots=True, kw_only=True)
class Law:
    """A law: its constants, in the order of ``CONSTANTS``, and their uncertainty.

    Attributes:
        constants: Values of the constants, (14,).
        covariance: Covariance of the constants, (14, 14).
        scatter: Standard deviation of ln loss between shapes, around the law.
        noise: Standard deviation of ln loss between training runs (or checkpoints) of one shape.
        layer_parameters: Smallest and largest parameter count of the layers in the fitted training runs.
        tokens: Smallest and largest number of tokens in the fitted training runs.
        source: Description of the fitted training runs.
    """

    constants: Float64Array
    covariance: Float64Array
    scatter: float
    noise: float
    layer_parameters: tuple[float, float]
    tokens: tuple[float, float]
    source: str

    def __post_init__(self) -> None:
        size = len(CONSTANTS)
        if self.constants.shape != (size,) or self.covariance.shape != (size, size):
            raise SpecError(f"a law needs {size} constants: {', '.join(CONSTANTS)}")

    def nats_per_token(self, shapes: Shapes, tokens: ArrayLike) -> Float64Array:
        """Expected loss of each shape after ``tokens``, (n,)."""
        floor, by_size, by_text = self._parts(shapes, tokens)[0]
        return np.asarray(math.exp(self.constants[0]) * (floor + by_size + by_text))

    def sensitivities(self, shapes: Shapes, tokens: ArrayLike) -> Float64Array:
        """Derivatives of ln loss with respect to each constant, (n, 14)."""
        least, most, width, depth, ffn_share, queries, attention, bits = shapes.columns()
        c = dict(zip(CONSTANTS, self.constants, strict=True))
        (floor, by_size, by_text), size, effective, text = self._parts(shapes, tokens)
        slope = by_size * -c["size_exponent"]  # with respect to ln n
        apart = np.log(most / least)
        found = [
            floor + by_size + by_text,
            floor,
            by_size,
            -by_size * effective,
            by_text,
            -by_text * text,
            by_text * size,
            slope * -_share(c["ln_depth"], depth),
            slope * -_share(c["ln_width"], width),
            slope * -(np.log(np.maximum(ffn_share, 0.1) / FFN_SHARE) ** 2),
            slope * -np.log(queries / QUERIES_PER_KV),
            slope * -(np.log(attention) ** 2),
            slope * (_held_change(bits, c["ln_bits"]) - _held_change(BITS, c["ln_bits"])),
            (slope + by_text * c["text_growth"]) * apart,
        ]
        return np.stack(np.broadcast_arrays(*found), axis=1) / (floor + by_size + by_text)[:, None]

    def expect(self, shapes: Shapes, tokens: ArrayLike) -> tuple[Float64Array, Float64Array, Float64Array]:
        """Expected loss and 90 % interval of training runs: value, low and high, each (n,)."""
        value = self.nats_per_token(shapes, tokens)
        change = self.sensitivities(shapes, tokens)
        variance = np.einsum("ni,ij,nj->n", change, self.covariance, change)
        variance += self.scatter**2 + self.noise**2 + self._beyond(shapes, tokens) ** 2
        factor = np.exp(Z90 * np.sqrt(variance))
        return value, value / factor, value * factor

    def loss(self, shape: ArchSpec | Design | Shapes, tokens: float) -> Predicted:
        """Expected loss of one model in nats per token, with its interval, on the text for which the law holds."""
        value, low, high = self.expect(_shapes(shape), tokens)
        return Predicted(value=float(value[0]), low=float(low[0]), high=float(high[0]))

    def difference(self, a: ArchSpec | Design | Shapes, b: ArchSpec | Design | Shapes, tokens: float) -> Predicted:
        """Loss of ``b`` minus loss of ``a``, both trained on the same text, in nats per token.

        Errors of the law that both models have in common cancel. The scatter between training runs of the same model is
        not included.
        """
        value, low, high = self.differences(_shapes(a), _shapes(b), tokens)
        return Predicted(value=float(value[0]), low=float(low[0]), high=float(high[0]))

    def differences(self, a: Shapes, b: Shapes, tokens: ArrayLike) -> tuple[Float64Array, Float64Array, Float64Array]:
        """:meth:`difference` for n pairs: value, low and high, each (n,)."""
        one, other = (self.nats_per_token(shapes, tokens) for shapes in (a, b))
        change = self.sensitivities(b, tokens) - self.sensitivities(a, tokens)
        variance = np.einsum("ni,ij,nj->n", change, self.covariance, change)
        variance += 2 * self.scatter**2 * (1 - alikeness(a, b))
        variance += (self._beyond(b, tokens) - self._beyond(a, tokens)) ** 2
        value = other - one
        half = Z90 * np.sqrt(variance * one * other + self.covariance[0, 0] * value**2)
        return value, value - half, value + half

    def notes(self, shapes: Shapes, tokens: float) -> list[str]:
        """Warnings about the first of ``shapes``, such as a size or ``tokens`` outside the range of the fitted runs."""
        least, most, *_ = shapes.columns()[:, 0]
        found = []
        if least < most:
            found.append(
                f"counts as {_said(least)} to {_said(most)} parameters in its layers (inactive experts, layers "
                "that share weights): the interval covers both, the figure is for their geometric mean"
            )
        for what, value, (low, high) in (
            ("parameters in layers", most, self.layer_parameters),
            ("tokens", tokens, self.tokens),
        ):
            if not low * 0.999 <= value <= high * 1.001:
                found.append(
                    f"{_said(value)} {what} are outside the range of the published training runs, "
                    f"{_said(low)} to {_said(high)}"
                )
        return found

    def _parts(
        self, shapes: Shapes, tokens: ArrayLike
    ) -> tuple[tuple[Float64Array, Float64Array, Float64Array], Float64Array, Float64Array, Float64Array]:
        """The three terms (floor, size, text), and ln(N / 1e8), ln(n / 1e8) and ln(t / 1e11); all are arrays (n,)."""
        least, most, width, depth, ffn_share, queries, attention, bits = shapes.columns()
        c = dict(zip(CONSTANTS, (float(value) for value in self.constants), strict=True))
        size = (1 - c["between"]) * np.log(least / PARAMETERS) + c["between"] * np.log(most / PARAMETERS)
        effective = size - np.log((1 + np.exp(c["ln_depth"]) / depth) * (1 + np.exp(c["ln_width"]) / width))
        effective = effective - c["ffn"] * np.log(np.maximum(ffn_share, 0.1) / FFN_SHARE) ** 2
        effective = effective - c["kv"] * np.log(queries / QUERIES_PER_KV) - c["attention"] * np.log(attention) ** 2
        effective = effective + np.log(_held(bits, c["ln_bits"]) / _held(BITS, c["ln_bits"]))
        text = np.broadcast_to(np.log(np.asarray(tokens, float) / TOKENS), size.shape)
        floor = np.full_like(size, math.exp(c["ln_floor"]))
        by_size = np.exp(c["ln_size"] - c["size_exponent"] * effective)
        by_text = np.exp(c["ln_text"] - c["text_exponent"] * text + c["text_growth"] * size)
        return (floor, by_size, by_text), size, effective, text

    def _beyond(self, shapes: Shapes, tokens: ArrayLike) -> Float64Array:
        """How far this law and the published law diverge outside the fitted range, (n,); zero inside the range.

        Both laws predict by how much ln loss changes between the edge of the range and each shape. The result is this
        law's change minus the published law's change.
        """
        least, most, width, depth, *_ = shapes.columns()
        tokens = np.broadcast_to(np.asarray(tokens, float), least.shape)
        middle = np.sqrt(least * most)
        within = np.clip(middle, *self.layer_parameters)
        seen = np.clip(tokens, *self.tokens)
        if np.array_equal(within, middle) and np.array_equal(seen, tokens):
            return np.zeros(len(shapes))
        step = (within / middle) ** (1 / 3)  # a smaller model with the same proportions has fewer and narrower layers
        scale = within / middle
        inner = replace(shapes, least=least * scale, most=most * scale, width=width * step, depth=depth * step)
        own = np.log(self.nats_per_token(shapes, tokens) / self.nats_per_token(inner, seen))
        other = np.log(BESIROGLU.nats_per_token(middle, tokens) / BESIROGLU.nats_per_token(within, seen))
        return np.asarray(own - other)


def alikeness(a: Shapes, b: Shapes) -> Float64Array:
    """Correlation, from 0 to 1, of the law's errors for pairs of shapes, (n,); 1 for equal shapes."""
    return np.asarray(np.exp(-0.5 * ((places(a) - places(b)) ** 2).sum(axis=1) / ALIKE**2))


def places(shapes: Shapes) -> Float64Array:
    """Coordinates for the correlation of shapes: logarithms of width, depth and the feed-forwards' share, (n, 3)."""
    _, _, width, depth, ffn_share, *_ = shapes.columns()
    return np.asarray(np.log(np.stack([width, depth, np.maximum(ffn_share, 0.1)], axis=1)))


@cache
def shipped() -> Law:
    """Loads the law that was fitted to published training runs, for use if tokenizer and text are unknown."""
    return law_from(read_mapping(DATA))


def law_from(held: Mapping[str, object]) -> Law:
    """Reads a law from the output of :func:`law_fields`.

    Raises:
        SpecError: A field is missing or has the wrong shape.
    """
    try:
        record = Record.of(held)
        least, most = record.sequence("layer_parameters", float)
        fewest, longest = record.sequence("tokens", float)
        return Law(
            constants=np.asarray(held["constants"], float), covariance=np.asarray(held["covariance"], float),
            scatter=record.get("scatter", float), noise=record.get("noise", float), layer_parameters=(least, most),
            tokens=(fewest, longest), source=str(held["source"]),
        )  # fmt: skip
    except (KeyError, TypeError, ValueError, SpecError) as error:
        raise SpecError(f"is not a law: {error}") from None


def law_fields(law: Law) -> dict[str, object]:
    """The law as JSON values."""
    return {
        "constants": law.constants.tolist(), "covariance": law.covariance.tolist(), "scatter": law.scatter,
        "noise": law.noise, "layer_parameters": list(law.layer_parameters), "tokens": list(law.tokens),
        "source": law.source,
    }  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ExpectedQuality(Result):
    """Expected loss of a training run, with its interval."""

    loss: Predicted  # 90 % interval, in ``unit``
    unit: str
    source: str  # source of the law
    basis: str  # how the figure was obtained, and for which text
    parameters: float  # the model's parameters
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

    def per_byte(self, bytes_per_token: float) -> ExpectedQuality:
        """Converts the expected loss to bits per byte, given the tokenizer's bytes per token on the text.

        Raises:
            InputError: ``bytes_per_token`` is not positive.
        """
        if not 0 < bytes_per_token < math.inf:
            raise InputError(f"bytes per token must be positive, not {bytes_per_token}")
        scale = 1 / (math.log(2) * bytes_per_token)
        ends = {name: getattr(self.loss, name) * scale for name in ("value", "low", "high")}
        return replace(self, loss=Predicted(**ends), unit="bits/byte")


def published_quality(arch: ArchSpec, *, tokens: float, law: Law | None = None) -> ExpectedQuality:
    """Expected loss of ``arch`` after training on ``tokens`` tokens of text, each seen once.

    Args:
        arch: A decoder of at least ten million parameters.
        tokens: Training tokens, at least 100 million, each seen once.
        law: A law to use instead of the shipped law.

    Raises:
        Unsupported: The model does not predict next tokens.
        InputError: The model is too small or the text too short for the law.
    """
    shapes = Shapes.of(arch)
    _require_covered(arch, tokens)
    own, law = law is not None, law or shipped()
    notes = law.notes(shapes, tokens)
    if recurrent(arch):
        notes.append("this model has recurrences, but the published training runs had attention in every layer")
    return ExpectedQuality(
        loss=law.loss(shapes, tokens),
        unit="nats/token",
        source=law.source,
        basis=f"predicted, law with {law.source}" if own else "predicted, published law, another tokenizer and text",
        parameters=float(np.sqrt(shapes.columns()[0, 0] * shapes.columns()[1, 0])),
        tokens=tokens,
        notes=tuple(notes),
    )


def published_change(before: ArchSpec, after: ArchSpec, *, tokens: float, law: Law | None = None) -> Predicted:
    """Expected change in loss from training ``after`` instead of ``before``, in nats per token.

    The interval is narrower than the intervals of :func:`published_quality`; see :meth:`Law.difference`.

    Raises:
        Unsupported: As in :func:`published_quality`.
        InputError: As in :func:`published_quality`.
    """
    for arch in (before, after):
        Shapes.of(arch)
        _require_covered(arch, tokens)
    return (law or shipped()).difference(before, after, tokens)


def _require_covered(arch: ArchSpec, tokens: float) -> None:
    if arch.parameters() < SMALLEST_PARAMETERS or not SMALLEST_TOKENS <= tokens < math.inf:
        raise InputError(
            f"{arch.name}: the published laws do not cover {_said(arch.parameters())} parameters after "
            f"{_said(tokens)} tokens (they need at least 10M parameters and 100M tokens); "
            "train the model instead: chipwise train"
        )


def _shapes(shape: ArchSpec | Design | Shapes) -> Shapes:
    return shape if isinstance(shape, Shapes) else Shapes.of(shape)


def _held(bits: ArrayLike, ln_bits: float) -> Float64Array:
    """Effective parameters divided by all parameters, for a number of bits per weight; 1 for 16 bits or more."""
    return np.asarray(-np.expm1(-np.minimum(bits, BITS) / math.exp(ln_bits)))


def _held_change(bits: ArrayLike, ln_bits: float) -> Float64Array:
    """Derivative of the logarithm of :func:`_held` with respect to ``ln_bits``."""
    ratio = np.minimum(bits, BITS) / math.exp(ln_bits)
    return np.asarray(-ratio * np.exp(-ratio) / -np.expm1(-ratio))


def _share(logarithm: float, count: Float64Array) -> Float64Array:
    """Derivative of ln(1 + e^x / count) with respect to x."""
    ratio = np.exp(logarithm) / count
    return np.asarray(ratio / (1 + ratio))


def _said(count: float) -> str:
    factor, letter = next(((f, c) for f, c in ((1e12, "T"), (1e9, "B")) if count >= f), (1e6, "M"))
    return f"{count / factor:.3g}{letter}"
