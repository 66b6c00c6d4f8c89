"""What loss a model that nobody here can train would reach: a law of size, shape and text, always with an interval.

    nats a token = e^s · (floor + size · (n / 1e8)^-a + text · (t / 1e11)^-b · (N / 1e8)^g)

with N the parameters of the layers (not of embeddings and head), t the tokens of one pass over the text, and n the
parameters that the shape leaves effective:

    n = N / ((1 + depth / layers) · (1 + width / d_model)) · e^-(ffn · ln²(share / 10)) · (2 / queries per KV head)^kv
        · e^-(attention · ln²(heads · head size / d_model)) · (1 - e^(-bits / γ)) / (1 - e^(-16 / γ))

A few layers compose few steps and a narrow stream carries few features, whatever the matrices hold; both losses fade as
the model grows. How feed-forwards share a layer's parameters, a narrower attention and fewer key-value heads matter
little as long as the parameters are counted; weights of few bits hold less each. Those four constants come from other
publications, one figure each, and are as unsure as large (γ: by a third). A mixture of
experts, or layers that share weights, count between the parameters that one token meets and all: the geometric mean,
and the interval holds both ends.

The constants vary together as the shipped covariance says, so what two designs have in common cancels from their
difference: above all ``s``, the level of a tokenizer and text. Trainings of one's own narrow all of them
(:mod:`chipwise.optim.law_fit`); a single one fixes ``s``.

References:
    Form in size and text: Hoffmann et al. 2022, arXiv:2203.15556, equation 2; parameters of the layers and the small
    effect of shape: Kaplan et al. 2020, arXiv:2001.08361, section 3.1 and figure 5 (``ffn``). Trainings of many widths
    and depths: McLeish et al. 2025, Gemstones, arXiv:2502.06857. Key-value heads at equal parameters: Shazeer 2019,
    arXiv:1911.02150, table 3 (``kv``; ``attention``: an eighth of the width, perplexity 31 instead of 29.9). Effective
    parameters of models trained in few bits: Kumar et al. 2024, arXiv:2411.04330, equation 3, γ = 2.67 bits. One over
    width and one over depth as mechanisms: arXiv:2606.25008. Outside the trainings the law is compared with that of
    Besiroglu et al. 2024, arXiv:2404.10102, table 1: where the two part, the interval grows by as much.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from chipwise.core.arrays import Float64Array
from chipwise.core.errors import InputError, SpecError
from chipwise.core.files import read_json
from chipwise.core.results import Result
from chipwise.core.statistics import Z90
from chipwise.cost.model import Predicted
from chipwise.optim.shapes import Shapes, recurrent
from chipwise.spec import ArchSpec, Design

DATA = Path(__file__).parent / "data" / "law.json"
CONSTANTS = (
    "level", "ln_floor", "ln_size", "size_exponent", "ln_text", "text_exponent", "text_growth",
    "ln_depth", "ln_width", "ffn", "kv", "attention", "ln_bits", "between",
)  # fmt: skip
SMALLEST_PARAMETERS, SMALLEST_TOKENS = 1e7, 1e8  # below, the law says nothing: it can be trained
PARAMETERS, TOKENS, FFN_SHARE, QUERIES_PER_KV, BITS = (
    1e8,
    1e11,
    10.0,
    2.0,
    16.0,
)  # where powers and logarithms are one and zero
ALIKE = math.log(2)  # shapes whose logarithms lie further apart err independently


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedLaw:
    """A published law in all parameters N and tokens D: floor + size · N^-α + text · D^-β, nats a token."""

    floor: float
    size: float
    text: float
    size_exponent: float
    text_exponent: float

    def nats_per_token(self, parameters: ArrayLike, tokens: ArrayLike) -> Float64Array:
        """The loss that the law expects.

        >>> float(BESIROGLU.nats_per_token(70e9, 1.4e12).round(2))  # Chinchilla: 1.8172 + 0.0814 + 0.0751
        1.97
        """
        n, d = np.asarray(parameters, float), np.asarray(tokens, float)
        return np.asarray(self.floor + self.size * n**-self.size_exponent + self.text * d**-self.text_exponent)


BESIROGLU = PublishedLaw(floor=1.8172, size=482.01, text=2085.43, size_exponent=0.3478, text_exponent=0.3658)


@dataclass(frozen=True, slots=True, kw_only=True)
class Law:
    """The constants, in the order of ``CONSTANTS``, and what is not known of them.

    Attributes:
        constants: (14,).
        covariance: Of the constants, (14, 14).
        scatter: Standard deviation of ln loss of one shape's trainings around the law.
        noise: The same of one training (or checkpoint) among those of its shape.
        layer_parameters: Of the trainings it was fitted to, least and most.
        tokens: Likewise.
        source: Of the trainings, in words.
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
            raise SpecError(f"a law has {size} constants: {', '.join(CONSTANTS)}")

    def nats_per_token(self, shapes: Shapes, tokens: ArrayLike) -> Float64Array:
        """The loss that is expected of each shape after ``tokens``, (n,)."""
        floor, by_size, by_text = self._parts(shapes, tokens)[0]
        return np.asarray(math.exp(self.constants[0]) * (floor + by_size + by_text))

    def sensitivities(self, shapes: Shapes, tokens: ArrayLike) -> Float64Array:
        """Change of the logarithm of the loss by each constant, (n, 14)."""
        least, most, width, depth, ffn_share, queries, attention, bits = shapes.columns()
        c = dict(zip(CONSTANTS, self.constants, strict=True))
        (floor, by_size, by_text), size, effective, text = self._parts(shapes, tokens)
        slope = by_size * -c["size_exponent"]  # by ln n
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
        """The loss and the interval that nine of ten trainings should be in: value, low and high, each (n,)."""
        value = self.nats_per_token(shapes, tokens)
        change = self.sensitivities(shapes, tokens)
        variance = np.einsum("ni,ij,nj->n", change, self.covariance, change)
        variance += self.scatter**2 + self.noise**2 + self._beyond(shapes, tokens) ** 2
        factor = np.exp(Z90 * np.sqrt(variance))
        return value, value / factor, value * factor

    def loss(self, shape: ArchSpec | Design | Shapes, tokens: float) -> Predicted:
        """The loss of one model in nats a token of the law's (or one's own) text, with its interval."""
        value, low, high = self.expect(_shapes(shape), tokens)
        return Predicted(value=float(value[0]), low=float(low[0]), high=float(high[0]))

    def difference(self, a: ArchSpec | Design | Shapes, b: ArchSpec | Design | Shapes, tokens: float) -> Predicted:
        """By how many nats a token the loss changes where ``b`` is trained instead of ``a``, on the same text.

        Both stand under one law, so what it does not know of both cancels. How far two trainings of the same model
        differ is not in it.
        """
        value, low, high = self.differences(_shapes(a), _shapes(b), tokens)
        return Predicted(value=float(value[0]), low=float(low[0]), high=float(high[0]))

    def differences(self, a: Shapes, b: Shapes, tokens: ArrayLike) -> tuple[Float64Array, Float64Array, Float64Array]:
        """The same of n pairs: value, low and high, each (n,)."""
        one, other = (self.nats_per_token(shapes, tokens) for shapes in (a, b))
        change = self.sensitivities(b, tokens) - self.sensitivities(a, tokens)
        variance = np.einsum("ni,ij,nj->n", change, self.covariance, change)
        variance += 2 * self.scatter**2 * (1 - alikeness(a, b))
        variance += (self._beyond(b, tokens) - self._beyond(a, tokens)) ** 2
        value = other - one
        half = Z90 * np.sqrt(variance * one * other + self.covariance[0, 0] * value**2)
        return value, value - half, value + half

    def notes(self, shapes: Shapes, tokens: float) -> list[str]:
        """What of the first model, or of the text, lies outside the trainings."""
        least, most, *_ = shapes.columns()[:, 0]
        found = []
        if least < most:
            found.append(
                f"counts as {_said(least)} to {_said(most)} parameters in its layers (experts a token does "
                "not meet, layers that share weights): the interval holds both, the figure is of their geometric mean"
            )
        for what, value, (low, high) in (
            ("parameters in layers", most, self.layer_parameters),
            ("tokens", tokens, self.tokens),
        ):
            if not low * 0.999 <= value <= high * 1.001:
                found.append(
                    f"{_said(value)} {what} are outside the published trainings' {_said(low)} to {_said(high)}"
                )
        return found

    def _parts(
        self, shapes: Shapes, tokens: ArrayLike
    ) -> tuple[tuple[Float64Array, Float64Array, Float64Array], Float64Array, Float64Array, Float64Array]:
        """Floor, size and text parts, ln N and ln n over 1e8, and ln t over 1e11, each (n,)."""
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
        """By how much ln loss changes less or more than in the published law beyond the trainings, (n,)."""
        least, most, width, depth, *_ = shapes.columns()
        tokens = np.broadcast_to(np.asarray(tokens, float), least.shape)
        middle = np.sqrt(least * most)
        within = np.clip(middle, *self.layer_parameters)
        seen = np.clip(tokens, *self.tokens)
        if np.array_equal(within, middle) and np.array_equal(seen, tokens):
            return np.zeros(len(shapes))
        step = (within / middle) ** (1 / 3)  # a smaller model of the same proportions has fewer layers, and narrower
        scale = within / middle
        inner = replace(shapes, least=least * scale, most=most * scale, width=width * step, depth=depth * step)
        own = np.log(self.nats_per_token(shapes, tokens) / self.nats_per_token(inner, seen))
        other = np.log(BESIROGLU.nats_per_token(middle, tokens) / BESIROGLU.nats_per_token(within, seen))
        return np.asarray(own - other)


def alikeness(a: Shapes, b: Shapes) -> Float64Array:
    """How alike two shapes err around the law, from 0 to 1, (n,): 1 where they are one shape."""
    return np.asarray(np.exp(-0.5 * ((places(a) - places(b)) ** 2).sum(axis=1) / ALIKE**2))


def places(shapes: Shapes) -> Float64Array:
    """Logarithms of width, depth and the share of the feed-forwards, (n, 3)."""
    _, _, width, depth, ffn_share, *_ = shapes.columns()
    return np.asarray(np.log(np.stack([width, depth, np.maximum(ffn_share, 0.1)], axis=1)))


@cache
def shipped() -> Law:
    """The law as fitted to published trainings, its level that of no text in particular."""
    return law_from(read_json(DATA))


def law_from(held: Mapping[str, Any]) -> Law:
    """The law that :func:`law_fields` wrote.

    Raises:
        SpecError: A field is missing or of another shape.
    """
    try:
        least, most = (float(value) for value in held["layer_parameters"])
        fewest, longest = (float(value) for value in held["tokens"])
        return Law(
            constants=np.asarray(held["constants"], float), covariance=np.asarray(held["covariance"], float),
            scatter=float(held["scatter"]), noise=float(held["noise"]), layer_parameters=(least, most),
            tokens=(fewest, longest), source=str(held["source"]),
        )  # fmt: skip
    except (KeyError, TypeError, ValueError) as error:
        raise SpecError(f"is no law: {error}") from None


def law_fields(law: Law) -> dict[str, object]:
    """The law as JSON values."""
    return {
        "constants": law.constants.tolist(), "covariance": law.covariance.tolist(), "scatter": law.scatter,
        "noise": law.noise, "layer_parameters": law.layer_parameters, "tokens": law.tokens, "source": law.source,
    }  # fmt: skip


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

    def per_byte(self, bytes_per_token: float) -> ExpectedQuality:
        """The same in bits per byte, where the tokenizer's bytes per token on the text are known.

        Raises:
            InputError: They are not positive.
        """
        if not 0 < bytes_per_token < math.inf:
            raise InputError(f"{bytes_per_token} bytes per token: give a positive number")
        scale = 1 / (math.log(2) * bytes_per_token)
        ends = {name: getattr(self.loss, name) * scale for name in ("value", "low", "high")}
        return replace(self, loss=Predicted(**ends), unit="bits/byte")


def published_quality(arch: ArchSpec, *, tokens: float, law: Law | None = None) -> ExpectedQuality:
    """The loss that ``arch`` is expected to reach after one pass over ``tokens`` of text.

    Args:
        arch: A decoder of at least ten million parameters.
        tokens: Of training, at least 100 million, none seen twice.
        law: One's own; the shipped one by default.

    Raises:
        Unsupported: The model does not predict next tokens.
        InputError: Too small a model or too little text for the law to say anything.
    """
    shapes = Shapes.of(arch)
    _require_covered(arch, tokens)
    own, law = law is not None, law or shipped()
    notes = law.notes(shapes, tokens)
    if recurrent(arch):
        notes.append("the published trainings had attention in every layer, this model has recurrences")
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
    """By how many nats a token the expected loss changes where ``after`` is trained instead of ``before``.

    The interval is narrower than those of :func:`published_quality`; see :meth:`Law.difference`.

    Raises:
        Unsupported: As there.
        InputError: As there.
    """
    for arch in (before, after):
        Shapes.of(arch)
        _require_covered(arch, tokens)
    return (law or shipped()).difference(before, after, tokens)


def _require_covered(arch: ArchSpec, tokens: float) -> None:
    if arch.parameters() < SMALLEST_PARAMETERS or not SMALLEST_TOKENS <= tokens < math.inf:
        raise InputError(
            f"{arch.name}: the published laws say nothing of {_said(arch.parameters())} parameters after "
            f"{_said(tokens)} tokens (from 10M parameters and 100M tokens on); train it: chipwise train"
        )


def _shapes(shape: ArchSpec | Design | Shapes) -> Shapes:
    return shape if isinstance(shape, Shapes) else Shapes.of(shape)


def _held(bits: ArrayLike, ln_bits: float) -> Float64Array:
    """What share of its parameters a model of few bits a weight has left; more than 16 hold no more."""
    return np.asarray(-np.expm1(-np.minimum(bits, BITS) / math.exp(ln_bits)))


def _held_change(bits: ArrayLike, ln_bits: float) -> Float64Array:
    """Derivative of its logarithm by ``ln_bits``."""
    ratio = np.minimum(bits, BITS) / math.exp(ln_bits)
    return np.asarray(-ratio * np.exp(-ratio) / -np.expm1(-ratio))


def _share(logarithm: float, count: Float64Array) -> Float64Array:
    """Derivative of ln(1 + e^x / count) by x."""
    ratio = np.exp(logarithm) / count
    return np.asarray(ratio / (1 + ratio))


def _said(count: float) -> str:
    factor, letter = next(((f, c) for f, c in ((1e12, "T"), (1e9, "B")) if count >= f), (1e6, "M"))
    return f"{count / factor:.3g}{letter}"
