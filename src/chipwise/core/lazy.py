"""Names of a module that are loaded on first use, so that importing it is quick."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from importlib.util import find_spec


def on_first_use(
    module: str, homes: Mapping[str, tuple[str, ...]]
) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """``__getattr__`` and ``__dir__`` of ``module``.

    Args:
        module: Its name.
        homes: What it has, by the module or package where it is: classes, functions, values, or modules of a package.
    """
    home_of = {name: home for home, names in homes.items() for name in names}

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
