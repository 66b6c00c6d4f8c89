"""Runs Python files that the user named, such as a metric or a module of networks."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType


def run_file(path: Path) -> ModuleType | None:
    """The module that the file defines; None if there is no such Python file. Its exceptions are passed on."""
    spec = importlib.util.spec_from_file_location(path.stem, path) if path.is_file() else None
    if spec is None or spec.loader is None:
        return None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
