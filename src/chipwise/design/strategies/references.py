"""Finds names by which other processes can import functions."""

from __future__ import annotations

import functools
import importlib
import json
import os
import runpy
import sys
from collections.abc import Callable, Mapping

from chipwise.core.record import Record
from chipwise.errors import InputError

_REMEDY = "define it at the top level of a module or script, or use workers=1"


def reference_to(function: Callable[..., object]) -> dict[str, object]:
    """Name by which another process imports ``function`` from its module or from the script that this process runs.

    Raises:
        InputError: A new process cannot import the function.
    """
    if isinstance(function, functools.partial):
        inner = reference_to(function.func)
        try:
            return dict(json.loads(json.dumps({**inner, "args": function.args, "keywords": function.keywords})))
        except (TypeError, ValueError) as error:
            raise InputError(f"arguments bound by functools.partial must be JSON values ({error})") from None
    module, name = getattr(function, "__module__", None), getattr(function, "__qualname__", None)
    if not module or not name or _found(sys.modules.get(module), name) is not function:
        raise InputError(f"worker processes cannot import the evaluation {name or function!r}; {_REMEDY}")
    reference = {"module": module, "name": name, "path": [os.path.abspath(entry) for entry in sys.path]}
    if module == "__main__":
        main = sys.modules["__main__"]
        spec, file = getattr(main, "__spec__", None), getattr(main, "__file__", None)
        if spec is not None:
            reference["module"] = spec.name
        elif file is not None:
            reference["script"] = os.path.abspath(file)
        else:
            raise InputError(
                f"worker processes cannot import {name}, which was typed into an interactive session; {_REMEDY}"
            )
    return reference


def function_of(reference: Mapping[str, object]) -> Callable[..., object]:
    """Imports the function that a result of :func:`reference_to` names. A script is imported as ``__mp_main__``."""
    held = Record(reference)
    sys.path[:] = list(dict.fromkeys([*held.sequence("path", str), *sys.path]))
    name = held.get("name", str)
    if "script" in held:
        names = runpy.run_path(held.get("script", str), run_name="__mp_main__")
        first, *rest = name.split(".")
        function: object = functools.reduce(getattr, rest, names[first])
    else:
        function = _found(importlib.import_module(held.get("module", str)), name)
    if not callable(function):
        raise InputError(f"{name} is not a function")
    if "args" in held:
        return functools.partial(function, *held.get("args", list, []), **held.get("keywords", dict, {}))
    return function


def _found(module: object, name: str) -> object:
    """The object with a dotted name in a module, or None."""
    return functools.reduce(lambda found, part: getattr(found, part, None), name.split("."), module)
