"""Checks the arguments of public functions: types by type hints, and numbers also by ranges.

A wrong argument raises an :class:`~chipwise.errors.InputError` that names it.
"""

from __future__ import annotations

import functools
import inspect
import math
import numbers
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar

from chipwise.core.extras import optional_imports
from chipwise.core.fields import describe
from chipwise.core.files import refused_files
from chipwise.errors import InputError, SpecError, UnknownName, nearest, short

Function = TypeVar("Function", bound=Callable[..., object])

_AT_LEAST = {  # least value by argument name; an argument's name has the same meaning in every public function
    **dict.fromkeys(("prompt", "new", "batch", "threads", "microbatches", "workers", "count", "window"), 1),
    **dict.fromkeys(("tp", "pp", "ep", "dp"), 1),
    **dict.fromkeys(("steps", "accumulate", "shared_steps"), 1),
    **dict.fromkeys(("shared", "seed"), 0),
}
_POSITIVE = {"seconds", "sustained_s", "cpu_seconds", "rate", "tokens"}
_AT_MOST = {"threads": 4096, "workers": 4096}
_TYPE_NAMES = {
    str: "text",
    int: "a whole number",
    float: "a number",
    bool: "True or False",
    Path: "a path",
    list: "a list",
    tuple: "a tuple",
    dict: "a mapping",
    type(None): "None",
}


def public(function: Function) -> Function:
    """Decorator for public functions: checks arguments. If a package is missing, the error names its extra."""
    signature = inspect.signature(function)

    @functools.wraps(function)
    def checked(*args: object, **kwargs: object) -> object:
        unknown = [name for name in kwargs if name not in signature.parameters]
        if unknown:
            raise UnknownName(f"argument of {function.__name__}()", unknown[0], signature.parameters)
        try:
            given = signature.bind(*args, **kwargs).arguments
        except TypeError as error:
            raise InputError(f"{function.__name__}(): {error}") from None
        hints = _hints(function)
        for name, value in given.items():
            check_argument(name, value, hints.get(name, object))
        with optional_imports(), refused_files():
            return function(*args, **kwargs)

    return typing.cast(Function, checked)


def stated_by(whole: Callable[[Mapping[str, object]], str | None], *names: str) -> Callable[[Function], Function]:
    """Decorator for functions in which one argument, such as a file, can set the values of other arguments.

    Args:
        whole: A function of the passed arguments. It returns a description of the argument that sets the others, such
            as "the question file"; None if no passed argument sets them.
        names: The names of the other arguments. If ``whole`` returns a description, passing one of ``names`` is an
            error, even with its default value.
    """

    def decorate(function: Function) -> Function:
        signature = inspect.signature(function)

        @functools.wraps(function)
        def checked(*args: Any, **kwargs: Any) -> Any:
            given = signature.bind(*args, **kwargs).arguments
            stated = whole(given)
            for name in names if stated is not None else ():
                if name in given:
                    raise SpecError(f"is already set in {stated}; give it only once", field=name)
            return function(*args, **kwargs)

        return typing.cast(Function, checked)

    return decorate


def check_argument(name: str, value: object, hint: object) -> None:
    """Checks one argument by its type hint and, for numbers, by the range for arguments of this name.

    Raises:
        SpecError: The value has the wrong type or is out of range; the error names the argument.
    """
    if not _fits(value, hint):
        raise SpecError(_wrong_type(value, hint), field=name)
    if isinstance(value, int | float | numbers.Real) and not isinstance(value, bool):
        number = _as_float(name, value)
        if name in _AT_LEAST and number < _AT_LEAST[name]:
            raise SpecError(f"must be at least {_AT_LEAST[name]}, not {short(value)}", field=name)
        if name in _AT_MOST and number > _AT_MOST[name]:
            raise SpecError(f"must be at most {_AT_MOST[name]:,}, not {short(value)}", field=name)
        if name in _POSITIVE and not number > 0:
            raise SpecError(f"must be more than 0, not {short(value)}", field=name)
    if isinstance(value, str) and not value.strip():
        raise SpecError("must not be empty", field=name)
    if isinstance(value, str | Path) and "\0" in str(value):
        raise SpecError("must not contain a null character", field=name)


def _as_float(name: str, value: numbers.Real | float) -> float:
    try:
        return float(value)
    except OverflowError:
        raise SpecError(f"{short(value)} is too large", field=name) from None


def _is_finite(value: numbers.Real) -> bool:
    return isinstance(value, numbers.Integral) or math.isfinite(value)


@functools.cache
def _hints(function: Callable[..., object]) -> dict[str, object]:
    """Type hints of the parameters. Hints such as ``Callable[[int], str]`` are reduced to ``Callable``."""
    own = {name: hint for name, hint in function.__annotations__.items() if name != "return"}
    kept = {name: hint for name, hint in own.items() if not str(hint).startswith("Callable")}
    holder = type("Hints", (), {"__annotations__": kept, "__module__": function.__module__})
    hints = typing.get_type_hints(holder)
    for name in own.keys() - kept.keys():
        hints[name] = Callable if "None" not in str(own[name]).rpartition("]")[2] else Callable | None
    return hints


def _fits(value: object, hint: object) -> bool:
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any or hint is object:
        return True
    if hint is None or hint is type(None):
        return value is None
    if origin in (typing.Union, types.UnionType):
        return any(_fits(value, option) for option in args)
    if origin is Literal:
        return any(value == option and type(value) is type(option) for option in args)
    if hint is Callable or origin is Callable:
        return callable(value)
    if hint is int:
        return isinstance(value, numbers.Integral) and not isinstance(value, bool)
    if hint is float:
        return isinstance(value, numbers.Real) and not isinstance(value, bool) and _is_finite(value)
    if origin in (Sequence, list, tuple):
        listed = isinstance(value, Sequence) and not isinstance(value, str | bytes)
        return listed and all(
            _fits(item, args[0] if args else object) for item in typing.cast("Sequence[object]", value)
        )
    if origin in (Mapping, dict):
        return isinstance(value, Mapping)
    kind = origin or hint
    return isinstance(kind, type) and isinstance(value, kind)


def _wrong_type(value: object, hint: object) -> str:
    options = typing.get_args(hint) if typing.get_origin(hint) in (typing.Union, types.UnionType) else (hint,)
    for option in options:
        if typing.get_origin(option) is Literal and isinstance(value, str):
            return f"{value!r:.60} is not an accepted value; {nearest(value, map(str, typing.get_args(option)))}"
    names = [_name(option) for option in options if option is not type(None)]
    return f"must be {' or '.join(dict.fromkeys(names))}, not {describe(value)}"


def _name(hint: object) -> str:
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (Sequence, list, tuple):
        return f"a list of {_name(args[0])} items" if args else "a list"
    if origin in (typing.Union, types.UnionType):
        return " or ".join(map(_name, args))
    if origin in (Mapping, dict):
        return "a mapping"
    if origin is Literal:
        return "one of " + ", ".join(repr(item) for item in args)
    if hint is Callable or origin is Callable:
        return "a function"
    if isinstance(hint, type):
        return _TYPE_NAMES.get(hint, hint.__name__)
    return str(getattr(hint, "__name__", hint))
