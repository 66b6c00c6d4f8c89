"""Builds dataclasses from plain data, and checks the types of their fields in the same way for files and callers."""

from __future__ import annotations

import dataclasses
import functools
import math
import numbers
import types
import typing
from collections.abc import Mapping
from enum import Enum
from typing import Any, TypeVar

from chipwise.core.stored import Stored
from chipwise.errors import InputError, SpecError, nearest, short

T = TypeVar("T")
MOST = 1_000_000_000  # far above any real size; products of a few such numbers still fit in a float
_TYPE_NAMES = {int: "a whole number", float: "a number", str: "text", bool: "true or false", list: "a list"}


def later(default: Any) -> Any:
    """Declares a field that older files lack. Its ``default`` value is neither written nor part of the digest."""
    return dataclasses.field(default=default, metadata={"later": True})


def losses_renamed(data: Mapping[str, Any]) -> dict[str, Any]:
    """Renames losses in ``data`` to their current names; old files call each loss ``bits_per_byte``, for any task.

    >>> losses_renamed({"rung": 0, "bits_per_byte": 2.0, "quantised_bits_per_byte": 2.1})
    {'rung': 0, 'loss': 2.0, 'quantised_loss': 2.1}
    """
    return {name.replace("bits_per_byte", "loss"): value for name, value in data.items()}


def positive(block: object, *names: str, most: int = MOST) -> None:
    """Checks that the fields called ``names`` are between 1 and ``most``.

    Raises:
        SpecError: A field is out of this range.
    """
    for name in names:
        value = getattr(block, name)
        if not value >= 1:
            raise SpecError(f"must be at least 1, not {short(value)}", field=name)
        if value > most:
            raise SpecError(f"must be at most {most:,}, not {short(value)}", field=name)


def not_negative(block: object, *names: str) -> None:
    """Checks that the fields called ``names`` are at least 0.

    Raises:
        SpecError: A field is below 0.
    """
    for name in names:
        if (value := getattr(block, name)) < 0:
            raise SpecError(f"must be at least 0, not {value}", field=name)


def whole_number(name: str, value: object, *, least: int = 1, most: int = MOST) -> int:
    """Returns ``value`` as an int between ``least`` and ``most``; ``name`` is used in messages.

    Raises:
        SpecError: ``value`` is not a whole number in this range.
    """
    number: int = convert(int, value, name)
    if number < least:
        raise SpecError(f"must be at least {least}, not {short(number)}", field=name)
    if number > most:
        raise SpecError(f"must be at most {most:,}, not {short(number)}", field=name)
    return number


def check_fields(block: object) -> None:
    """Checks every field of a dataclass by its type; call it first in ``__post_init__``.

    Integers become floats where a float is declared, and numpy's numbers become Python's. There is no other conversion.

    Raises:
        SpecError: A field has another type, or is NaN or infinite.
    """
    kind: type = type(block)
    for name, hint, sure, sure_items in _field_types(kind):
        value = getattr(block, name)
        if type(value) in sure or (type(value) is tuple and sure_items.issuperset(map(type, value))):
            continue
        fixed = convert(hint, value, name)
        if fixed is not value:
            object.__setattr__(block, name, fixed)


def build(cls: type[T], data: object, *, field: str | None = None, file: str | None = None) -> T:
    """Builds the dataclass ``cls`` from ``data`` (read from YAML or JSON), checking the type of every field.

    Raises:
        SpecError: A field is unknown or missing, or a value has the wrong type or is rejected by ``cls``.
    """
    try:
        return typing.cast("T", _build(cls, data, field))
    except SpecError as error:
        raise error.inside(file=file) from None


@functools.cache
def _hints(cls: type) -> dict[str, object]:
    return typing.get_type_hints(cls)


@functools.cache
def _field_types(cls: type) -> tuple[tuple[str, object, frozenset[type], frozenset[type]], ...]:
    """For each field: its name, its type, and two sets of Python types whose values need no check or conversion.

    The first set is for the value itself, the second for the items of a tuple.
    """
    hints = _hints(cls)
    return tuple(
        (f.name, hints[f.name], _sure(hints[f.name]), _sure_items(hints[f.name])) for f in dataclasses.fields(cls)
    )


def _sure(hint: object) -> frozenset[type]:
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return frozenset().union(*map(_sure, typing.get_args(hint)))
    if isinstance(hint, type) and (hint in (int, bool, str, type(None)) or dataclasses.is_dataclass(hint)):
        return frozenset([hint])
    return frozenset()


def _sure_items(hint: object) -> frozenset[type]:
    args = typing.get_args(hint)
    of_one_type = typing.get_origin(hint) is tuple and len(args) == 2 and args[1] is Ellipsis
    return _sure(args[0]) if of_one_type else frozenset()


def _build(cls: type, data: object, field: str | None) -> object:
    written = cls if issubclass(cls, Stored) else None
    if written is not None:
        record = _build(written.STORED, data, field)
        try:
            return written.of_stored(record)
        except SpecError as error:
            raise error.inside(field=field) from None
    if not isinstance(data, Mapping):
        raise SpecError(f"must be a mapping of fields, not {describe(data)}", field=field)
    hints = _hints(cls)
    known = {f.name: f for f in dataclasses.fields(cls) if f.init}
    values: dict[str, object] = {}
    for key, value in data.items():
        path = f"{field}.{short(key, quoted=False)}" if field else short(key, quoted=False)
        if key not in known:
            raise SpecError(f"unknown field; {nearest(str(key), known)}", field=path)
        values[key] = convert(hints[key], value, path)
    for name, item in known.items():
        required = item.default is dataclasses.MISSING and item.default_factory is dataclasses.MISSING
        if required and name not in values:
            raise SpecError("this field is missing", field=f"{field}.{name}" if field else name)
    try:
        return cls(**values)
    except SpecError as error:
        raise error.inside(field=field) from None
    except InputError as error:
        raise SpecError(str(error), field=field) from None


@typing.overload
def convert(hint: type[T], value: object, field: str) -> T: ...
@typing.overload
def convert(hint: object, value: object, field: str) -> object: ...
def convert(hint: object, value: object, field: str) -> object:
    """Checks that ``value`` has the type ``hint``, and returns it. Integers become floats; nothing else is converted.

    Raises:
        SpecError: ``value`` has another type.
    """
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any or hint is object:
        _require_finite(value, field)
        return value
    if origin in (typing.Union, types.UnionType):
        return _union(args, value, field)
    if origin is typing.Literal:
        if not any(isinstance(value, type(option)) and value == option for option in args):
            names = nearest(str(value), map(str, args))
            raise SpecError(f"{short(value)} is not an accepted value; {names}", field=field)
        return value
    if origin is tuple:
        if not isinstance(value, list | tuple):
            raise SpecError(f"must be a list, not {describe(value)}", field=field)
        kinds = [args[0]] * len(value) if args[-1] is Ellipsis else args
        if len(kinds) != len(value):
            raise SpecError(f"must be a list of {len(kinds)} items, not {len(value)}", field=field)
        return tuple(
            convert(kind, item, f"{field}[{i}]") for i, (kind, item) in enumerate(zip(kinds, value, strict=True))
        )
    if origin in (dict, Mapping) or getattr(origin, "__name__", "") == "Mapping":
        if not isinstance(value, Mapping):
            raise SpecError(f"must be a mapping, not {describe(value)}", field=field)
        return {str(key): convert(args[1], item, f"{field}.{key}") for key, item in value.items()}
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        return value if isinstance(value, hint) else _build(hint, value, field)
    if isinstance(hint, type) and issubclass(hint, Enum):
        try:
            return hint(value)
        except ValueError:
            names = nearest(str(value), [str(item.value) for item in hint])
            raise SpecError(f"{short(value)} is not an accepted value; {names}", field=field) from None
    if hint in (int, float):
        return _number(hint, value, field)
    if isinstance(hint, type) and not isinstance(value, hint):
        raise SpecError(f"must be {_TYPE_NAMES.get(hint, hint.__name__)}, not {describe(value)}", field=field)
    return value


def _number(kind: type, value: object, field: str) -> int | float:
    wanted = numbers.Integral if kind is int else numbers.Real
    if not isinstance(value, wanted) or isinstance(value, bool):
        raise SpecError(f"must be {_TYPE_NAMES[kind]}, not {describe(value)}", field=field)
    try:
        number: int | float = kind(value)
    except OverflowError:
        raise SpecError(f"{short(value)} is too large", field=field) from None
    if isinstance(number, float) and not math.isfinite(number):
        raise SpecError(f"must be a finite number, not {value}", field=field)
    return number


def _require_finite(value: object, field: str) -> None:
    """Raises SpecError if any number in ``value``, including its nested lists and mappings, is not finite."""
    if isinstance(value, float) and not math.isfinite(value):
        raise SpecError(f"must be a finite number, not {value}", field=field)
    if isinstance(value, Mapping):
        for key, item in value.items():
            _require_finite(item, f"{field}.{key}")
    elif isinstance(value, list | tuple):
        for i, item in enumerate(value):
            _require_finite(item, f"{field}[{i}]")


def _union(options: tuple[object, ...], value: object, field: str) -> object:
    if value is None and type(None) in options:
        return None
    rest = [option for option in options if option is not type(None)]
    if isinstance(value, Mapping):  # several classes are possible: choose the one that shares the most fields
        rest.sort(key=lambda option: -len(value.keys() & getattr(option, "__dataclass_fields__", {}).keys()))
    first: SpecError | None = None
    for option in rest:
        try:
            return convert(option, value, field)
        except SpecError as error:
            first = first or error
    raise first or SpecError(f"must be empty (null), not {describe(value)}", field=field)


def describe(value: object) -> str:
    """``value`` with its type in words, for messages: ``text ('3')``."""
    if value is None:
        return "nothing"
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if " at 0x" in repr(value):  # an object with the default repr, which says little
        return f"an object of type {type(value).__name__}"
    kind = "a mapping" if isinstance(value, Mapping) else _TYPE_NAMES.get(type(value), type(value).__name__)
    return f"{kind} ({short(value)})"
