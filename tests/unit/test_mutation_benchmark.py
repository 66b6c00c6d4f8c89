"""The mutants that the benchmark draws: each changes one expression, all can be drawn, and what is listed exists."""

from __future__ import annotations

import ast
import csv
import importlib
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = '''"""Head."""

MOST = 3


def area(width: float, height: float) -> float:
    """Of a rectangle; at least 0."""
    if width < 0 and not height:
        raise ValueError(f"{width - 1}")
    return max(0.0, width * height)
'''


@pytest.fixture
def mutation(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    before = set(sys.modules)
    yield importlib.import_module("mutation")
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(ROOT / "benchmarks")):
            del sys.modules[name]


def test_every_change_of_a_small_file(mutation: ModuleType, monkeypatch, tmp_path: Path) -> None:
    monkeypatch.setattr(mutation, "ROOT", tmp_path)
    path = tmp_path / "src" / "toy.py"
    path.parent.mkdir()
    path.write_text(SOURCE)
    found = {(m.function, m.kind, m.before, m.code): m for m in mutation.mutants_of("toy", path)}
    assert set(found) == {
        ("<module>", "off by one", "3", "4"),
        ("area", "condition", "width < 0 and (not height)", "width < 0 or not height"),
        ("area", "comparison", "width < 0", "width <= 0"),
        ("area", "comparison", "width < 0", "width > 0"),
        ("area", "off by one", "0", "1"),
        ("area", "sign", "not height", "height"),
        ("area", "returned", "max(0.0, width * height)", "-(max(0.0, width * height))"),
        ("area", "min for max", "max", "min"),
        ("area", "constant", "0.0", "1.0"),
        ("area", "sign", "width * height", "width / height"),
        ("area", "term dropped", "width * height", "width"),
        ("area", "term dropped", "width * height", "height"),
    }
    for mutant in found.values():
        changed = mutant.apply(SOURCE.encode()).decode()
        ast.parse(changed)
        assert changed != SOURCE
        assert changed.count("\n") == SOURCE.count("\n")  # one expression of one line
        assert mutant.text[mutant.column :].startswith(mutant.before[:5])
    assert (
        "return max(0.0, (width / height))"
        in found["area", "sign", "width * height", "width / height"].apply(SOURCE.encode()).decode()
    )


def test_as_many_are_drawn_from_each_package_and_a_seed_draws_the_same(mutation: ModuleType) -> None:
    drawn = mutation.sample(list(mutation.TESTS), 16, 7)
    assert [m.key() for m in drawn] == [m.key() for m in mutation.sample(list(mutation.TESTS), 16, 7)]
    assert Counter(m.package for m in drawn) == dict(zip(mutation.TESTS, (3, 3, 2, 2, 2, 2, 2), strict=True))
    alone = mutation.sample(["cost"], 3, 7)
    assert [m.key() for m in alone] == [m.key() for m in drawn[:3]]  # a package's share does not depend on the others
    assert {m.key() for m in drawn} != {m.key() for m in mutation.sample(list(mutation.TESTS), 16, 8)}


def test_mutants_that_are_listed_as_equivalent_exist_and_have_a_reason(mutation: ModuleType) -> None:
    for key, reason in mutation.equivalent().items():
        path = ROOT / "src" / key[0]
        assert key in {mutant.key() for mutant in mutation.mutants_of("any", path)}, key
        assert len(reason.split()) > 4


def test_a_published_table_holds_what_its_shares_are_counted_from(mutation: ModuleType) -> None:
    for path in (ROOT / "benchmarks").glob("mutation-2*.csv"):
        with path.open(newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
        assert len({mutation.key_of(row) for row in rows}) == len(rows) >= 100
        assert {row["package"] for row in rows} == set(mutation.TESTS)
        for row in rows:
            assert row["outcome"] in ("killed", "time limit", "survived", "equivalent")
            assert (row["outcome"] == "killed") == bool(row["by"])


def test_a_test_reaches_what_its_imports_import(mutation: ModuleType, monkeypatch, tmp_path: Path) -> None:
    """By functions, tables of names and strings too; what nothing leads to is left out."""
    files = {
        "src/chipwise/__init__.py": "",
        "src/chipwise/a.py": "def f():\n    from chipwise.b import g\n",
        "src/chipwise/b.py": 'HOME = {"x": "chipwise.d:X"}\n',
        "src/chipwise/c.py": "",
        "src/chipwise/d.py": "import chipwise.deep\n",
        "src/chipwise/deep/__init__.py": "from importlib import import_module\nimport_module(name)\n",
        "src/chipwise/deep/one.py": "",
        "tests/unit/x/test_x.py": "from chipwise.a import f\nfrom helper import h\n",
        "tests/unit/x/helper.py": "from chipwise import b\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(mutation, "ROOT", tmp_path)
    named = mutation.imported("tests/unit/x/test_x.py")
    assert {"chipwise/a.py", "chipwise/b.py"} <= set(named)
    assert "chipwise/d.py" not in named
    found = {name for name in mutation.reached(named) if not name.endswith("__init__.py")}
    assert found == {f"chipwise/{name}.py" for name in ("a", "b", "d", "deep/one")}


def test_a_run_that_is_stopped_has_tried_as_many_of_each_package(mutation: ModuleType) -> None:
    drawn = mutation.in_turn(mutation.sample(["cost", "serve", "space"], 8, 7))
    assert [mutant.package for mutant in drawn] == ["cost", "serve", "space"] * 2 + ["cost", "serve"]


def test_every_file_is_of_one_package_and_every_package_has_files_and_tests(mutation: ModuleType) -> None:
    """Rooms that were renamed or emptied show here, not as a package without mutants."""
    held = {package: mutation.files_of(package) for package in mutation.ROOMS}
    assert held.keys() == mutation.TESTS.keys()
    assert all(len(files) >= 5 for files in held.values())
    counted = Counter(path for files in held.values() for path in files)
    assert set(counted.values()) == {1}
    for package in mutation.ROOMS:
        assert len(mutation.test_files(package)) >= 5
        assert all((ROOT / "src" / "chipwise" / name).is_file() for name in mutation.ELSEWHERE.get(package, ()))
