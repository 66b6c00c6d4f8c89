"""What docs/scripts/structure.py counts, on a package small enough to count by hand."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
API = '__all__ = ["wide"]\n\n\ndef wide({names}): ...\n\n\ndef hidden({names}): ...\n'
ONE = '''"""A module.

Of one function.
"""

from typing import Any, cast  # two names

from chipwise.kinds import ImageStem


def one(arch: Any) -> int:
    """A docstring."""
    import json
    from chipwise.core import files

    # a comment
    assert files
    if arch.reads_tokens:
        return 1
    if isinstance(arch, ImageStem) and arch.stem:
        return cast(int, json.loads("2"))  # type: ignore
    return len([arch for _ in () if arch.d_model])
'''


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("structure", ROOT / "docs" / "scripts" / "structure.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["structure"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def test_a_package_counted_by_hand(script: ModuleType, tmp_path: Path) -> None:
    names = ", ".join(f"a{i}" for i in range(16))
    (tmp_path / "api").mkdir()
    (tmp_path / "api" / "__init__.py").write_text(API.format(names=names))
    (tmp_path / "one.py").write_text(ONE)
    numbers = script.structure(tmp_path).numbers()
    assert numbers["lines of code"] == 3 + 11
    assert numbers["files"] == numbers["top folders and files"] == 2
    assert numbers["imports inside functions"] == 1
    assert numbers["branches on kind"] == 2
    assert numbers["files with branches on kind"] == 1
    assert numbers["mentions of Any"] == 2
    assert (numbers["asserts"], numbers["casts"], numbers["type: ignore"]) == (1, 1, 1)
    assert numbers["functions of more than 15 parameters"] == 1  # ``wide`` is public
    assert numbers["dataclasses"] == 0


def test_every_limit_is_on_a_number_that_is_counted_and_is_kept(script: ModuleType) -> None:
    found = script.structure()
    assert set(script.LIMITS) <= set(found.numbers())
    assert script._limited(found) == []
