"""chipwise: design transformers that fit the chip.

``import chipwise`` is quick, because the public names are loaded on first use; :mod:`chipwise.api` lists them.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from chipwise.core.version import VERSION

if TYPE_CHECKING:
    from chipwise import errors as errors
    from chipwise.api import *  # noqa: F403

__version__ = VERSION


def __getattr__(name: str) -> Any:
    if name in ("api", "errors"):
        return import_module(f"chipwise.{name}")
    if name.startswith("__") and name != "__all__":
        raise AttributeError(f"module 'chipwise' has no attribute {name!r}")
    api = import_module("chipwise.api")
    if name == "__all__":
        return ["__version__", "errors", *api.__all__]
    if name in api.__all__:
        return getattr(api, name)
    raise AttributeError(f"module 'chipwise' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *import_module("chipwise.api").__all__])
