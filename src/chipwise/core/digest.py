"""Digests that identify values: the sha256 of a value's fields and schema version as canonical JSON."""

from __future__ import annotations

import hashlib
import json
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any

from chipwise.core.stored import Stored

SCHEMA = 1


def plain(value: object) -> Any:
    """``value`` converted for JSON: dataclasses as objects, tuples as lists, enum members as their values.

    Fields marked ``later`` are left out if they have their default value, so that adding them changes no digest.
    """
    if isinstance(value, Stored):
        return plain(value.stored())
    if is_dataclass(value) and not isinstance(value, type):
        kept = ((f.name, getattr(value, f.name), f) for f in fields(value))
        return {name: plain(item) for name, item, f in kept if not (f.metadata.get("later") and item == f.default)}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value


def digest(value: object, *, length: int = 16) -> str:
    """The first ``length`` hex digits of the digest of ``value``."""
    text = json.dumps([SCHEMA, plain(value)], sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:length]
