"""Reading a config as another family: ``folder as llama``, the stored form of ``--like llama``."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TypeVar

from chipwise.errors import SpecError, short

Model = TypeVar("Model")
_ALIKE = re.compile(r"(.+) as ([A-Za-z0-9_.-]+)")


def split(model: str | Path) -> tuple[str, str | None]:
    """Splits ``FOLDER as FAMILY`` into its parts; any other name gives the name and None.

    >>> split("gpt2")
    ('gpt2', None)
    """
    name = os.fspath(model)
    found = None if os.path.exists(name) else _ALIKE.fullmatch(name)
    return (found[1], found[2]) if found and os.path.exists(found[1]) else (name, None)


def named(model: Model, like: str | None) -> Model | str:
    """``MODEL as LIKE`` for a model that is read as the family ``like``; ``model`` itself without ``like``.

    Raises:
        SpecError: ``model`` is not a file or folder.
    """
    if like is None:
        return model
    if not isinstance(model, str | Path) or not os.path.exists(str(model)):
        raise SpecError(f"is for a config.json or its folder, not for {short(str(model))}", field="like")
    return f"{model} as {like}"
