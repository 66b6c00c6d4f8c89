"""Fields of a model's description: checks, and fields that came after the first release."""

from __future__ import annotations

import dataclasses
from typing import Any

from chipwise.core.errors import SpecError


def later(default: Any) -> Any:
    """A field that earlier descriptions lack: at ``default`` it is neither written nor part of the identity."""
    return dataclasses.field(default=default, metadata={"later": True})


def positive(block: object, *names: str) -> None:
    """That the named fields of ``block`` are at least 1.

    Raises:
        SpecError: One is not.
    """
    for name in names:
        value = getattr(block, name)
        if value < 1:
            raise SpecError(f"must be at least 1, not {value}", field=name)
