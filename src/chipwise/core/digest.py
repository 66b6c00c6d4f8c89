"""Identity of a value: sha256 over canonical JSON of its schema version and fields."""

from __future__ import annotations

import hashlib
import json
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any

SCHEMA = 1


def plain(value: Any) -> Any:
    """``value`` as JSON can hold it: dataclasses as objects, tuples as lists, enums by value."""
    if is_dataclass(value) and not isinstance(value, type):
        return {f.name: plain(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value


def digest(value: Any, *, length: int = 16) -> str:
    """The first ``length`` hex digits of the identity of ``value``."""
    text = json.dumps([SCHEMA, plain(value)], sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:length]
