"""A model as a torch module, whatever its kind: the reference that every exported form is held against."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

import numpy as np
import numpy.typing as npt

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
    if not hasattr(home, "initialise"):
        raise Unsupported(f"{arch.name} cannot be built afresh: {form_of(arch).untrained}")
    return home.initialise(home.MODULE(arch), seed=seed)


def load(arch: ArchSpec, weights: Mapping[str, npt.NDArray[Any]]) -> Any:
    """The module of ``arch`` with ``weights``, in FP32, ready to run.

    Raises:
        Unsupported: ``arch`` is not built in torch.
    """
    import torch

    model = module_of(arch)
    model.load_state_dict({name: torch.from_numpy(np.array(value, np.float32)) for name, value in weights.items()})
    return model.eval()


def _home(arch: ArchSpec) -> Any:
    """The module of the kind, which needs torch, so it is imported when it is needed."""
    return import_module(f"chipwise.model.kinds.{form_of(arch).module}")
