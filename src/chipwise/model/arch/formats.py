"""The weight formats of a whole model as one text: ``int8``, or ``int4/int8/int4 head:int8`` if layers differ.

Exceptions for single matrices follow, as in ``fp32 0.up:int8 1.qkv:int8``. Each exception has a layer's number, one of
:data:`MATRICES` and a format. The matrix ``projection`` is in the stem: it projects embeddings or patches to the
model's width. Unless it is listed, it has the head's format.

Files, trials and reports hold this text. It is canonical: if all layers and the head have the same format, the text is
that format; if only the layers have the same format, it looks like ``int4 head:int8``.
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
"""The matrix that each weight of a block belongs to. Weights with the same input form one matrix with one format."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightFormats:
    """The formats of each layer's matrices, of the head (or an encoder's pooler), and of single matrices."""

    layers: tuple[str, ...]
    head: str
    matrices: tuple[tuple[str, str], ...] = ()  # (name, format), such as ("0.up", "int8"), sorted by name

    def __str__(self) -> str:
        different = set(self.layers)
        base = self.head
        if not different <= {self.head}:
            base = f"{'/'.join(self.layers if len(different) > 1 else different)} {_HEAD}:{self.head}"
        return " ".join([base, *(f"{name}:{form}" for name, form in self.matrices)])

    @property
    def all(self) -> tuple[str, ...]:
        """All formats in use; the head's format comes first."""
        return tuple(dict.fromkeys((self.head, *self.layers, *(form for _, form in self.matrices))))

    def of(self, matrix: str) -> str:
        """The format of one matrix: ``head``, ``projection``, or a layer's matrix such as ``0.up``."""
        return dict(self.matrices).get(matrix) or self.usual(matrix)

    def usual(self, matrix: str) -> str:
        """The format of a matrix that ``matrices`` does not list: its layer's format or, outside layers, the head's."""
        number, layer, _ = matrix.partition(".")
        return self.layers[int(number)] if layer else self.head

    def with_matrices(self, formats: Mapping[str, str]) -> WeightFormats:
        """A copy in which single matrices have these formats; entries that equal the layer's format are dropped.

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
                raise SpecError(
                    f"the model has no matrix {short(name)}; {nearest(matrix or name, known)}", field="weights"
                )
            if int(number) >= layers:
                raise SpecError(f"{short(name)}: the model only has {layers} layers, numbered from 0", field="weights")
        kept = {name: form for name, form in formats.items() if form != self.usual(name)}
        return WeightFormats(layers=self.layers, head=self.head, matrices=tuple(sorted(kept.items())))


def matrix_of(name: str) -> str | None:
    """The matrix that the weight ``name`` (as in the torch module's state dict or a graph) belongs to.

    None for weights that are never quantised: tables, norms, biases.

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
    if place[0] == "stem":
        return PROJECTION if place[1] in (PROJECTION, "frames") else None
    return _HEAD if place[0] in ("head", "pooler", "projector", "modulations") else None


def by_matrix(formats: Mapping[str, str], layers: int, *, others: str = "fp32") -> WeightFormats:
    """The formats of a model: those in ``formats`` for the matrices listed there, ``others`` for all other matrices.

    >>> str(by_matrix({"head": "int8", "1.up": "int8"}, 2))
    'fp32 head:int8 1.up:int8 projection:fp32'
    """
    rest = {PROJECTION: others} | dict(formats)
    head = rest.pop(_HEAD, others)
    return WeightFormats(layers=(others,) * layers, head=head).with_matrices(rest)


def mixed(text: str) -> bool:
    """Whether ``text`` states more than one format (for layers, the head or single matrices)."""
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
    """The text that states these formats.

    >>> formats_word(["int4", "int8"], "int8"), formats_word(["int8", "int8"], "int8")
    ('int4/int8 head:int8', 'int8')
    """
    return str(WeightFormats(layers=tuple(layers), head=head))


@lru_cache(maxsize=65_536)
def read_formats(text: str, layers: int) -> WeightFormats:
    """Parses the formats ``text`` for a model with ``layers`` layers.

    Raises:
        SpecError: ``text`` states formats for a different number of layers, or for a matrix that no model has.
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
        raise SpecError(f"{short(text)} lists formats for {len(named)} layers; the model has {layers}", field="weights")
    return WeightFormats(layers=tuple(named), head=head or each).with_matrices(rest)
