"""Importable names of functions, for other processes."""

from __future__ import annotations

import functools
import importlib
import json
import os
import runpy
import sys
from collections.abc import Callable, Mapping
from typing import Any

from chipwise.errors import InputError

_REMEDY = "define it at the top level of a module or script, or use workers=1"


def reference_to(function: Callable[..., Any]) -> dict[str, Any]:
    """Says where another process finds ``function``: in a module, or in the script that this process runs.

    Raises:
        InputError: A new process cannot import it.
    """
    if isinstance(function, functools.partial):
        inner = reference_to(function.func)
        try:
            return json.loads(json.dumps({**inner, "args": function.args, "keywords": function.keywords}))  # type: ignore[no-any-return]
        except (TypeError, ValueError) as error:
            raise InputError(f"the arguments of a partial evaluation must be JSON values ({error})") from None
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
            raise InputError(f"worker processes cannot import {name}, which was typed into a session; {_REMEDY}")
    return reference


def function_of(reference: Mapping[str, Any]) -> Callable[..., Any]:
    """Imports the function named by :func:`reference_to`. A script runs under the name ``__mp_main__``."""
    sys.path[:] = list(dict.fromkeys([*reference["path"], *sys.path]))
    if "script" in reference:
        names = runpy.run_path(reference["script"], run_name="__mp_main__")
        first, *rest = reference["name"].split(".")
        function = functools.reduce(getattr, rest, names[first])
    else:
        function = _found(importlib.import_module(reference["module"]), reference["name"])
    if "args" in reference:
        return functools.partial(function, *reference["args"], **reference["keywords"])
    return function  # type: ignore[no-any-return]


def _found(module: Any, name: str) -> Any:
    """The object of a dotted name in a module, or None."""
    found = module
    for part in name.split("."):
        found = getattr(found, part, None)
    return found
