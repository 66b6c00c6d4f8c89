"""A model as a torch module, whatever its kind: the reference that every exported form is held against."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from chipwise.errors import Unsupported
from chipwise.model.arch.arch import ArchSpec
from chipwise.model.kinds.table import form_of


def module_of(arch: ArchSpec) -> Any:
    """The torch module of ``arch`` without its weights; published models have that of the nearest kind, or none.

    Raises:
        Unsupported: ``arch`` is not built in torch.
    """
    return _home(arch).MODULE(arch)


def build(arch: ArchSpec, *, seed: int) -> Any:
    """A freshly initialised module of ``arch``.

    Raises:
        Unsupported: ``arch`` is not built in torch, or not trained from nothing.
    """
    home = _home(arch)
    if not hasattr(home, "build"):
        raise Unsupported(f"{arch.name} cannot be built afresh: {form_of(arch).untrained}")
    return home.build(arch, seed=seed)


def _home(arch: ArchSpec) -> Any:
    """The module of the kind, which needs torch, so it is imported when it is needed."""
    return import_module(f"chipwise.model.kinds.{form_of(arch).module}")
