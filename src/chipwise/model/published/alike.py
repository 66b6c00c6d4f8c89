"""Names such as ``FOLDER as llama``, from ``--like llama``: the folder's config is read as one of that family."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TypeVar

from chipwise.errors import SpecError, short

Model = TypeVar("Model")
_ALIKE = re.compile(r"(.+) as ([A-Za-z0-9_.-]+)")


def split(model: str | Path) -> tuple[str, str | None]:
    """Splits ``FOLDER as FAMILY`` into folder and family; returns any other name unchanged, with None.

    >>> split("gpt2")
    ('gpt2', None)
    """
    name = os.fspath(model)
    found = None if os.path.exists(name) else _ALIKE.fullmatch(name)
    return (found[1], found[2]) if found and os.path.exists(found[1]) else (name, None)


def named(model: Model, like: str | None) -> Model | str:
    """Returns ``MODEL as LIKE``, which means that ``model`` is read as the family ``like``.

    Without ``like``, returns ``model`` itself.

    Raises:
        SpecError: ``model`` is not a file or folder.
    """
    if like is None:
        return model
    if not isinstance(model, str | Path) or not os.path.exists(str(model)):
        raise SpecError(f"works only with a config.json or its folder, not with {short(str(model))}", field="like")
    return f"{model} as {like}"
