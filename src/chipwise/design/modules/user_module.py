"""Reads a user's module: its choices, and its functions that build, train and test a network.

The file defines

* ``CHOICES``: a table such as ``{"width": [8, 16, 32], "kernel": [3, 5], "separable": [False, True]}``;
* ``inputs()``: returns an example of the network's inputs, a tuple of tensors;
* ``build(choices)``: returns the network with these choices, with random weights;
* ``train(module, cpu_s)``: trains a network in place for about ``cpu_s`` CPU seconds; returns the validation loss;
* ``test(module)`` (optional): returns a score on test data, which ``train`` never reads.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import numpy as np

from chipwise.core.python_files import run_file, users_code
from chipwise.design.strategies.strategy import Rows
from chipwise.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor, nn

Choice = bool | int | float | str
MOST_VALUES = 1_000  # most values of one choice


@dataclass(frozen=True, kw_only=True)
class UserModule:
    """The parts of a user's module that a search uses."""

    file: Path
    choices: Mapping[str, tuple[Choice, ...]]
    inputs: Callable[[], tuple[Tensor, ...]]
    build: Callable[[Mapping[str, Choice]], nn.Module]
    train: Callable[[nn.Module, float], float]
    test: Callable[[nn.Module], float] | None

    @property
    def cardinalities(self) -> Rows:
        """Number of values of each choice, (d,)."""
        return np.array([len(values) for values in self.choices.values()], np.int64)

    def chosen(self, row: Rows) -> dict[str, Choice]:
        """The choices that correspond to a row of indices (d,)."""
        return {name: values[int(i)] for (name, values), i in zip(self.choices.items(), row, strict=True)}


def read_module(file: str | Path) -> UserModule:
    """Runs the user's Python file, and checks that it defines the table and functions of a search.

    Raises:
        InputError: The file cannot be run, or the table of choices or a function is missing.
    """
    path = Path(file).resolve()
    held = _run(path)
    for signature in ("inputs()", "build(choices)", "train(module, cpu_s)", "test(module)"):
        name = signature.partition("(")[0]
        optional = name == "test" and not hasattr(held, name)
        if not optional and not callable(getattr(held, name, None)):
            raise InputError(f"{path.name}: define {signature}; `chipwise init convnet` writes an example")
    return UserModule(
        file=path,
        choices=_choices(getattr(held, "CHOICES", None), path.name),
        inputs=held.inputs,
        build=held.build,
        train=held.train,
        test=getattr(held, "test", None),
    )


def _run(path: Path) -> ModuleType:
    if not path.is_file():
        raise InputError(f"{path}: there is no such file")
    with users_code(path.name):
        held = run_file(path)
    if held is None:
        raise InputError(f"{path}: not a Python file")
    return held


def _choices(table: object, name: str) -> dict[str, tuple[Choice, ...]]:
    if not isinstance(table, Mapping) or not table:
        raise InputError(f"{name}: define CHOICES, a table such as {{'width': [8, 16, 32], 'kernel': [3, 5]}}")
    found = {}
    for key, values in table.items():
        where = f"{name}: CHOICES[{key!r}]"
        if not isinstance(values, list | tuple) or not 1 <= len(values) <= MOST_VALUES:
            raise InputError(f"{where} must list 1 to {MOST_VALUES:,} values, not {values!r:.60}")
        if not all(isinstance(value, Choice) for value in values):
            raise InputError(f"{where}: values must be numbers, strings, True or False, not {values!r:.60}")
        if len(set(values)) < len(values):
            raise InputError(f"{where} lists a value twice; list it once")
        found[str(key)] = tuple(values)
    return found
