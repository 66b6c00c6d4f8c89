"""Configs of well-known models, one file a family, as their ``config.json`` states them."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from chipwise.core.errors import UnknownName
from chipwise.core.files import read_yaml


def names() -> list[str]:
    """The Hugging Face ids that are known, sorted."""
    return sorted(_configs())


def config_of(name: str) -> dict[str, Any]:
    """The config of the model called ``name``: its Hugging Face id, or the part after the slash, in any case.

    Raises:
        UnknownName: No family lists it.
    """
    wanted = name.lower()
    for known, config in _configs().items():
        if wanted in {known.lower(), known.lower().rpartition("/")[2]}:
            return dict(config)
    raise UnknownName("model", name, [*(known.rpartition("/")[2] for known in _configs())])


@cache
def _configs() -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for path in sorted(Path(__file__).parent.glob("*.yaml")):
        family = read_yaml(path)
        for name, facts in family["models"].items():
            found[name] = {**family["common"], **facts}
    return found
