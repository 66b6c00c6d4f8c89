"""Every script of benchmarks/ can be imported and says how it is called."""

from __future__ import annotations

import csv
import datetime
import importlib
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
SCRIPTS = sorted(BENCHMARKS.rglob("*.py"))
TABLES = sorted(BENCHMARKS.rglob("*.csv"))
SAME_EVERYWHERE = {"mutation-equivalent.csv", *(path.name for path in TABLES if path.parent.name == "synthetic")}
MEASURED = [path for path in TABLES if path.name not in SAME_EVERYWHERE]


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


def test_the_overview_names_every_script_and_table_and_nothing_else() -> None:
    text = (BENCHMARKS / "README.md").read_text(encoding="utf-8")
    named = {name for name in re.findall(r"`([^`\s]+\.(?:py|csv))`", text) if "*" not in name and name != "NAME.py"}
    assert named == {str(path.relative_to(BENCHMARKS)) for path in (*SCRIPTS, *TABLES)}
    assert all((BENCHMARKS / page).exists() for page in re.findall(r"\]\((\S+?)\)", text))


def test_what_the_overview_says_is_published_is_named_on_that_page() -> None:
    lines = (BENCHMARKS / "README.md").read_text(encoding="utf-8").splitlines()
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines if line.startswith("| `")]
    assert len(rows) > 30
    for scripts, _, published, tables in rows:
        pages = [(BENCHMARKS / page).read_text(encoding="utf-8") for page in re.findall(r"\]\((\S+?)\)", published)]
        if published.startswith("README"):
            pages.append((BENCHMARKS.parent / "README.md").read_text(encoding="utf-8"))
        names = re.findall(r"`([^`]+)`", scripts + tables)
        assert not pages or any(name.partition("-2026")[0] in page for name in names for page in pages), scripts


@pytest.mark.parametrize("path", MEASURED, ids=[str(path.relative_to(BENCHMARKS)) for path in MEASURED])
def test_rows_say_when_where_and_with_what_they_were_made(path: Path) -> None:
    with path.open(newline="", encoding="utf-8") as stream:
        rows = list(csv.DictReader(stream))
    assert rows
    for row in rows:
        assert None not in row
        datetime.date.fromisoformat(row["date"])
        assert row["machine"]
        assert row["versions"]
        if day := re.search(r"\d{4}-\d\d-\d\d", path.name):
            assert row["date"] == day[0]


def test_a_table_is_stamped_once(tmp_path: Path) -> None:
    sys.path.insert(0, str(BENCHMARKS))
    provenance = importlib.import_module("provenance")
    path = tmp_path / "rows.csv"
    path.write_text("a,b\n1,2\n3,4\n", encoding="utf-8")
    old = {"date": "2026-01-02", "machine": "a board, 4 cores", "versions": "unknown"}
    provenance.stamp(path, old)
    before = path.read_text(encoding="utf-8")
    provenance.stamp(path)
    assert path.read_text(encoding="utf-8") == before
    with path.open("a", encoding="utf-8") as stream:
        stream.write("5,6\n")  # a row that a later call adds
    provenance.stamp(path)
    with path.open(newline="", encoding="utf-8") as stream:
        first, _, last = csv.DictReader(stream)
    assert first == {"a": "1", "b": "2", **old}
    assert last["date"] == datetime.date.today().isoformat()
    assert f"Python {sys.version_info.major}.{sys.version_info.minor}" in last["versions"]
