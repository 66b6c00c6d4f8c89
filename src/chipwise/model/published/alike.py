"""Configs that are read as another family: ``folder as llama``, the form of ``--like llama``."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TypeVar

from chipwise.errors import SpecError, short

Model = TypeVar("Model")
_ALIKE = re.compile(r"(.+) as ([A-Za-z0-9_.-]+)")


def split(model: str | Path) -> tuple[str, str | None]:
    """The model's file or folder, and the family to read its config as; for any other name, the name and None.

    >>> split("gpt2")
    ('gpt2', None)
    """
    name = os.fspath(model)
    found = None if os.path.exists(name) else _ALIKE.fullmatch(name)
    return (found[1], found[2]) if found and os.path.exists(found[1]) else (name, None)


def named(model: Model, like: str | None) -> Model | str:
    """The name of ``model``, read as one of the family ``like``; ``model`` itself where none is given.

    Raises:
        SpecError: It is not a file or folder.
    """
    if like is None:
        return model
    if not isinstance(model, str | Path) or not os.path.exists(str(model)):
        raise SpecError(f"is for a config.json or its folder, not for {short(str(model))}", field="like")
    return f"{model} as {like}"
