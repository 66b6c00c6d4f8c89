"""Loads a module's public names on first use, so that importing the module is quick."""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path


def on_first_use(module: str, file: str) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """Makes ``__getattr__`` and ``__dir__`` for a module that exports what it imports under ``if TYPE_CHECKING``.

    Args:
        module: The module's name.
        file: The module's source file. Its imports under ``if TYPE_CHECKING`` define the names to load, so that no name
            has to be listed twice.
    """
    home_of = dict(_imported_for_types(file))

    def get(name: str) -> object:
        home = home_of.get(name)
        if home is None:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        found = getattr(import_module(home), name, None)
        if found is None and find_spec(f"{home}.{name}") is not None:
            found = import_module(f"{home}.{name}")
        vars(sys.modules[module])[name] = found
        return found

    return get, lambda: sorted({*vars(sys.modules[module]), *home_of})


def _imported_for_types(file: str) -> Iterator[tuple[str, str]]:
    """For each name imported under ``if TYPE_CHECKING``: the module or package that defines it."""
    for block in ast.parse(Path(file).read_text(encoding="utf-8")).body:
        if isinstance(block, ast.If) and isinstance(block.test, ast.Name) and block.test.id == "TYPE_CHECKING":
            for line in block.body:
                if isinstance(line, ast.ImportFrom) and line.module is not None:
                    yield from ((name.name, line.module) for name in line.names)
