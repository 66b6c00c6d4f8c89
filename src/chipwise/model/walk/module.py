"""A model of any kind as a torch module, the reference for tests of every exported file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from chipwise.core.arrays import AnyArray, Float32Array
from chipwise.errors import Unsupported
from chipwise.model.arch.arch import ArchSpec
from chipwise.model.kinds.table import form_of

if TYPE_CHECKING:
    from torch import nn

MOST_ROWS = 4096  # most input rows of a matrix on calibration batches


def module_of(arch: ArchSpec) -> Any:
    """The torch module of ``arch`` without weights.

    Raises:
        Unsupported: ``arch`` is not supported in torch.
    """
    return _home(arch).MODULE(arch)


def build(arch: ArchSpec, *, seed: int) -> Any:
    """The torch module of ``arch`` with newly initialised weights.

    Raises:
        Unsupported: ``arch`` is not supported in torch, or chipwise does not train such models.
    """
    home = _home(arch)
    if not hasattr(home, "initialise"):
        raise Unsupported(f"{arch.name} cannot be built with new weights: {form_of(arch).untrained}")
    return home.initialise(home.MODULE(arch), seed=seed)


def load(arch: ArchSpec, weights: Mapping[str, AnyArray]) -> nn.Module:
    """The module of ``arch`` with ``weights``, in FP32, ready to run.

    Raises:
        Unsupported: ``arch`` is not supported in torch.
    """
    import torch

    model: nn.Module = module_of(arch)
    model.load_state_dict({name: torch.from_numpy(np.array(value, np.float32)) for name, value in weights.items()})
    return model.eval()


def matrix_inputs(
    arch: ArchSpec, weights: Mapping[str, AnyArray], run: Callable[[nn.Module], object]
) -> Callable[[str], Float32Array | None]:
    """Returns a function that, given a weight's name, returns the first inputs (rows, k) that the weight gets.

    When the returned function is first called, ``run`` is called with the model, and the inputs are recorded.
    """

    @cache
    def found() -> dict[str, Float32Array]:
        import torch

        model, kept, counts = load(arch, weights), dict[str, Float32Array](), dict[str, int]()
        owners, last = dict[str, str](), ("", torch.empty(0))  # q, k and v have the same input, which is kept once

        def keep(name: str, given: torch.Tensor) -> None:
            nonlocal last
            if owners.setdefault(name, owners[last[0]] if given is last[1] else name) != name:
                return
            last = name, given
            rows = given.detach().reshape(-1, given.shape[-1])
            held, begun = kept.setdefault(name, np.empty((MOST_ROWS, rows.shape[1]), np.float32)), counts.get(name, 0)
            counts[name] = min(begun + len(rows), MOST_ROWS)
            held[begun : counts[name]] = rows[: counts[name] - begun].float().numpy()

        for name, module in model.named_modules():
            if isinstance(module, torch.nn.Linear):
                module.register_forward_pre_hook(lambda _, given, name=name: keep(name, given[0]))
        if hasattr(model, "head_table"):  # a text model's head reads the last norm, also where the head is tied
            model.get_submodule("norm").register_forward_hook(lambda _, given, made: keep("head", made))
        with torch.no_grad():
            run(model)
        rows = {f"{name}.weight": kept[own][: counts[own]] for name, own in owners.items()}
        return rows | ({"embedding.weight": rows["head.weight"]} if hasattr(model, "head_table") else {})

    return lambda name: found().get(name)


def round_inputs(model: nn.Module) -> nn.Module:
    """Makes the matrices in the model's layers round inputs to fp8, with one scale per position, as vLLM does."""
    import torch

    def rounded(module: nn.Module, given: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        scale = given[0].abs().amax(dim=-1, keepdim=True).clamp_min(1e-12) / 448
        return ((given[0] / scale).to(torch.float8_e4m3fn).float() * scale, *given[1:])

    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Linear) and name.startswith("layers."):
            module.register_forward_pre_hook(rounded)
    return model


def _home(arch: ArchSpec) -> ModuleType:
    """The Python module that defines the torch module; imported only here, because it needs torch."""
    form = form_of(arch)
    if not form.package:
        form.require(arch, work="built in torch")
    return import_module(f"chipwise.model.kinds.{form.package}.module")
