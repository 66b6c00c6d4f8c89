"""The weight formats of a whole model as one text: ``int8``, or ``int4/int8/int4 head:int8`` where they differ.

Single matrices follow with their formats, ``fp32 0.up:int8 1.qkv:int8``, by the layer and one of :data:`MATRICES`;
``projection`` is the one after embedding tables or patches, which has the head's format unless it is named.

This text is what files, trials and reports hold. Each choice of formats has one spelling: where all layers and the
head agree it is the name of their format, where all layers agree ``int4 head:int8``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache

from chipwise.core.dtypes import weight_format
from chipwise.errors import SpecError, nearest, short

_HEAD = "head"
PROJECTION = "projection"
MATRICES = {
    "attention": {**dict.fromkeys(("qkv", "q", "k", "v", "gate"), "qkv"), "out": "out"},
    "cross": {"q": "cross.q", **dict.fromkeys(("kv", "k", "v"), "cross.kv"), "out": "cross.out"},
    "ffn": {**dict.fromkeys(("into", "gate", "up"), "up"), "down": "down"},
}
"""Names of a layer's weights, by block, and the matrix that each is a part of: what reads one input has one format."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightFormats:
    """The format of each layer's matrices, of the head's (an encoder's pooler), and of matrices that differ."""

    layers: tuple[str, ...]
    head: str
    matrices: tuple[tuple[str, str], ...] = ()  # by name, such as ``0.up``; in the order of names

    def __str__(self) -> str:
        different = set(self.layers)
        base = self.head
        if not different <= {self.head}:
            base = f"{'/'.join(self.layers if len(different) > 1 else different)} {_HEAD}:{self.head}"
        return " ".join([base, *(f"{name}:{form}" for name, form in self.matrices)])

    @property
    def all(self) -> tuple[str, ...]:
        """Every format that occurs, the head's first."""
        return tuple(dict.fromkeys((self.head, *self.layers, *(form for _, form in self.matrices))))

    def of(self, matrix: str) -> str:
        """The format of one matrix: ``head``, ``projection``, or a layer's, such as ``0.up``."""
        return dict(self.matrices).get(matrix) or self.usual(matrix)

    def usual(self, matrix: str) -> str:
        """The default format of a matrix without its own."""
        number, layer, _ = matrix.partition(".")
        return self.layers[int(number)] if layer else self.head

    def with_matrices(self, formats: Mapping[str, str]) -> WeightFormats:
        """A copy with these formats of single matrices; those equal to the layer's own are dropped.

        Raises:
            SpecError: There is no such matrix.
        """
        layers = len(self.layers)
        for name in formats:
            number, layer, matrix = name.partition(".")
            known = {each for names in MATRICES.values() for each in names.values()}
            if name == PROJECTION:
                continue
            if not layer or not number.isdecimal() or matrix not in known:
                raise SpecError(f"{short(name)} is no matrix; {nearest(matrix or name, known)}", field="weights")
            if int(number) >= layers:
                raise SpecError(f"{short(name)}: the model has {layers} layers, from 0 on", field="weights")
        kept = {name: form for name, form in formats.items() if form != self.usual(name)}
        return WeightFormats(layers=self.layers, head=self.head, matrices=tuple(sorted(kept.items())))


def matrix_of(name: str) -> str | None:
    """The matrix that the weight ``name`` is (a part of), as the torch module's state dict or a graph calls it.

    None of what is never stored in a narrow format: tables, norms, biases.

    >>> matrix_of("layers.2.attention.q.weight"), matrix_of("stem.projection.weight"), matrix_of("norm.weight")
    ('2.qkv', 'projection', None)
    """
    place = name.split(".")
    if name.endswith(".bias") or "norm" in place[-2]:
        return None
    if place[0] == "layers":
        if place[2] not in (*MATRICES, "conv") or place[-2] == "filter":
            return None
        known = MATRICES.get(place[2], {})
        return f"{place[1]}.{known.get(place[3]) or '.'.join(place[2:-1])}"
    if place[0] == "stages":
        return _HEAD if place[2] == "merge" or place[-3] in MATRICES else None
    if place[0] == "stem":
        return PROJECTION if place[1] in (PROJECTION, "frames") else None
    return _HEAD if place[0] in ("head", "pooler", "projector", "modulations") else None


def by_matrix(formats: Mapping[str, str], layers: int, *, others: str = "fp32") -> WeightFormats:
    """The formats of a model with these formats of matrices (including ``head``), and ``others`` elsewhere.

    >>> str(by_matrix({"head": "int8", "1.up": "int8"}, 2))
    'fp32 head:int8 1.up:int8 projection:fp32'
    """
    rest = {PROJECTION: others} | dict(formats)
    head = rest.pop(_HEAD, others)
    return WeightFormats(layers=(others,) * layers, head=head).with_matrices(rest)


def mixed(text: str) -> bool:
    """Whether ``text`` has separate formats for layers, head or single matrices."""
    return " " in text


def renamed(text: str, rename: Callable[[str], str]) -> str:
    """``text`` with every format in it renamed.

    >>> renamed("int4/int8 head:int8", str.upper)
    'INT4/INT8 head:INT8'
    """
    layers, *named = text.split(" ")
    pairs = (part.partition(":") for part in named)
    return " ".join(["/".join(map(rename, layers.split("/"))), *(f"{n}{sep}{rename(f)}" for n, sep, f in pairs)])


def formats_word(layers: Iterable[str], head: str) -> str:
    """The text for these formats.

    >>> formats_word(["int4", "int8"], "int8"), formats_word(["int8", "int8"], "int8")
    ('int4/int8 head:int8', 'int8')
    """
    return str(WeightFormats(layers=tuple(layers), head=head))


@lru_cache(maxsize=65_536)
def read_formats(text: str, layers: int) -> WeightFormats:
    """The formats ``text`` of a model with ``layers`` layers.

    Raises:
        SpecError: The number of layers differs, or no model has such a matrix.
        UnknownName: A format is not known.
    """
    each, *others = text.split(" ")
    rest = {name: form for name, _, form in (part.partition(":") for part in others)}
    head = rest.pop(_HEAD, None)
    named = each.split("/")
    for name in {*named, head or each, *rest.values()}:
        weight_format(name)
    if len(named) == 1:
        named *= layers
    if len(named) != layers:
        raise SpecError(f"{short(text)} names formats of {len(named)} layers; the model has {layers}", field="weights")
    return WeightFormats(layers=tuple(named), head=head or each).with_matrices(rest)
