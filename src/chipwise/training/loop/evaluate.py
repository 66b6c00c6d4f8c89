"""Loads trained weights into models, and rounds weights as in deployed files."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from chipwise.core.arrays import AnyArray
from chipwise.errors import InputError, Unsupported
from chipwise.model.arch.arch import ArchSpec
from chipwise.model.arch.design import Design
from chipwise.model.blocks.quantize import NEAREST, Packing
from chipwise.model.kinds.table import form_of
from chipwise.model.walk.calibration import Judge, Lessons, restored
from chipwise.model.walk.module import load, matrix_inputs
from chipwise.model.walk.weights import weight_shapes
from chipwise.training.data.dataset import DataFile, Dataset, with_held
from chipwise.training.data.recipe import Recipe

if TYPE_CHECKING:
    from torch import Tensor, nn

Weights = Mapping[str, AnyArray]
BATCHES = 4  # batches of calibration data; as many further batches judge the quantisers
LESSONS = 1000  # number of the first batch for learned rounding


def load_model(arch: ArchSpec, weights: Weights | str | Path) -> Any:
    """Builds the torch module of ``arch`` with these weights, in FP32."""
    arrays = read(weights) if isinstance(weights, str | Path) else weights
    return load(arch, arrays)


def read(path: str | Path) -> dict[str, NDArray[np.floating]]:
    """Reads weights by name from a safetensors file.

    Raises:
        InputError: The file cannot be read as weights.
    """
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    try:
        return dict(load_file(path))
    except (SafetensorError, OSError) as error:
        raise InputError(f"{path}: cannot be read as weights: {error}") from None


def quantised(model: Any, weight_format: str, packing: Packing = NEAREST) -> Any:
    """A copy of ``model`` whose projections and head are rounded to ``weight_format``.

    ``weight_format`` is a format or the name of a mixture (:mod:`chipwise.model.arch.formats`). A tied head becomes a
    separate table, as in the exported file.
    """
    arrays = {name: value.detach().numpy() for name, value in model.state_dict().items()}
    return load(*restored(Design(arch=model.arch, weights=weight_format), arrays, packing))


def calibrated(
    arch: ArchSpec,
    weights: Weights,
    data: DataFile,
    recipe: Recipe,
    *,
    prepare: Callable[[nn.Module], nn.Module] | None = None,
) -> tuple[Packing, Judge]:
    """Returns the inputs of the model's matrices on the first training batches, and a function that judges weights.

    The function builds a model with the given weights, applies ``prepare`` to it, and returns its mean loss on other
    training batches.
    """
    import torch

    @cache
    def opened() -> Dataset:
        return data.load()

    def losses(model: nn.Module, first: int) -> list[float]:
        held = with_held(model, opened())
        drawn = (opened().batch(arch, recipe, first + i, seed=0) for i in range(BATCHES))
        with torch.no_grad():
            return [float(opened().loss(held, batch, torch.float32)) for batch in drawn]

    def judge(own: ArchSpec, rounded: Weights) -> float:
        model = load(own, rounded)
        return float(np.mean(losses(model if prepare is None else prepare(model), BATCHES)))

    return Packing(inputs=matrix_inputs(arch, weights, lambda model: losses(model, 0))), judge


def lessons_of(arch: ArchSpec, weights: Weights, data: DataFile, recipe: Recipe) -> Lessons:
    """Training data for learned rounding, from batches that :func:`calibrated` does not use.

    Raises:
        Unsupported: The model reads more than one input.
    """
    opened = data.load()
    original = with_held(load(arch, weights), opened)
    if len(opened.batch(arch, recipe, 0, seed=0)) != 2:  # inputs and targets
        raise Unsupported(f"{arch.name} reads several inputs, which learned rounding does not support; choose gptq")
    own = replace(recipe, batch_windows=max(1, recipe.batch_windows // 2))
    return Lessons(
        original=original,
        batch=lambda number: [opened.batch(arch, own, LESSONS + number, seed=0)[0]],
        logits=form_of(arch).outputs == "logits",
    )


def rounded(weight_NK: Tensor, weight_format: str, packing: Packing = NEAREST, name: str = "") -> Tensor:
    """Returns the weight ``name`` (outputs, inputs) with the values that it has in exported files."""
    import torch

    matrix = np.ascontiguousarray(weight_NK.detach().numpy(), np.float32)
    return torch.from_numpy(packing.pack(name, matrix, weight_format).restored())


def checked(weights: Weights, arch: ArchSpec) -> Weights:
    """Returns ``weights`` after checking that their names and shapes are those of ``arch``.

    Raises:
        InputError: Names or shapes differ.
    """
    wanted = weight_shapes(arch)
    found = {name: tuple(value.shape) for name, value in weights.items()}
    odd = sorted(name for name in wanted.keys() | found.keys() if wanted.get(name) != found.get(name))
    if odd:
        name = odd[0]
        raise InputError(
            f"the weights to start from belong to a different architecture: {name} is {found.get(name, 'missing')}, "
            f"but the model has {wanted.get(name, 'none')}"
        )
    return weights
