"""Commands of the package chipwise-fitting; if it is not installed, each says how to install it."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec

import typer

from chipwise.errors import ChipwiseError

PACKAGE = "chipwise_fitting"
ANYTHING = {"ignore_unknown_options": True, "allow_extra_args": True}


def command(name: str) -> Callable[..., None]:
    """Returns the command ``name`` of chipwise-fitting; without that package, a command that says it is missing."""
    if find_spec(PACKAGE) is None:
        return missing
    found: Callable[..., None] = import_module(f"{PACKAGE}.cli.{name}").command
    return found


def missing(context: typer.Context) -> None:
    """Requires the package chipwise-fitting; in a clone of chipwise: pip install ./fitting."""
    raise ChipwiseError(
        f"{context.info_name}: chipwise-fitting is not installed; in a clone of chipwise: pip install ./fitting"
    )
