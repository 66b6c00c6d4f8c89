"""The weight formats of a whole model as one text: ``int8``, or ``int4/int8/int4 head:int8`` where they differ.

This text is what files, trials and reports hold. Each choice of formats has one spelling: where all layers and the
head agree it is the name of their format, where all layers agree ``int4 head:int8``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache

from chipwise.core.dtypes import weight_format
from chipwise.core.errors import SpecError, short

_HEAD = " head:"


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightFormats:
    """The format of each layer's matrices, and of the head's (an encoder's pooler)."""

    layers: tuple[str, ...]
    head: str

    def __str__(self) -> str:
        different = set(self.layers)
        if different <= {self.head}:
            return self.head
        return f"{'/'.join(self.layers if len(different) > 1 else different)}{_HEAD}{self.head}"

    @property
    def all(self) -> tuple[str, ...]:
        """Every format that occurs, the head's first."""
        return tuple(dict.fromkeys((self.head, *self.layers)))


def mixed(text: str) -> bool:
    """Whether ``text`` names formats of its own for layers or head."""
    return _HEAD in text


def renamed(text: str, rename: Callable[[str], str]) -> str:
    """``text`` with every format in it renamed.

    >>> renamed("int4/int8 head:int8", str.upper)
    'INT4/INT8 head:INT8'
    """
    layers, different, head = text.partition(_HEAD)
    named = "/".join(map(rename, layers.split("/"))) if different else rename(text)
    return f"{named}{_HEAD}{rename(head)}" if different else named


def formats_word(layers: Iterable[str], head: str) -> str:
    """The text for these formats.

    >>> formats_word(["int4", "int8"], "int8"), formats_word(["int8", "int8"], "int8")
    ('int4/int8 head:int8', 'int8')
    """
    return str(WeightFormats(layers=tuple(layers), head=head))


@lru_cache(maxsize=65_536)
def read_formats(text: str, layers: int) -> WeightFormats:
    """The formats of a model with ``layers`` layers that ``text`` stands for.

    Raises:
        SpecError: Another number of layers.
        UnknownName: A format is not known.
    """
    each, mixed, head = text.partition(_HEAD)
    named = each.split("/") if mixed else [text]
    for name in {*named, head or text}:
        weight_format(name)
    if len(named) == 1:
        named *= layers
    if len(named) != layers:
        raise SpecError(f"{short(text)} names formats of {len(named)} layers; the model has {layers}", field="weights")
    return WeightFormats(layers=tuple(named), head=head or text)
