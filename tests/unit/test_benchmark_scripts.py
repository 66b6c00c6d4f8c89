"""Every script of benchmarks/ can be imported and says how it is called."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
SCRIPTS = sorted(BENCHMARKS.rglob("*.py"))


@pytest.fixture(autouse=True)
def _left_as_found(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Takes back what importing a script changes: the search path, environment variables, modules beside the script."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    kept, before = dict(os.environ), set(sys.modules)
    yield
    for name in set(os.environ) - set(kept):
        del os.environ[name]
    os.environ.update(kept)
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(BENCHMARKS)):
            del sys.modules[name]


@pytest.mark.parametrize("path", SCRIPTS, ids=[str(path.relative_to(BENCHMARKS)) for path in SCRIPTS])
def test_a_script_is_imported_and_explains_its_options(
    path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    sys.path.insert(0, str(path.parent))
    try:
        script = importlib.import_module(path.stem)
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("chipwise") or (BENCHMARKS / f"{error.name}.py").exists():
            raise
        pytest.skip(f"{path.name} needs {error.name}, which is not installed")
    assert script.__doc__
    if "ArgumentParser(" in path.read_text(encoding="utf-8"):
        monkeypatch.setattr(sys, "argv", [str(path), "--help"])
        with pytest.raises(SystemExit) as ended:
            script.main()
        assert ended.value.code == 0
        assert f"usage: {path.name}" in capsys.readouterr().out
