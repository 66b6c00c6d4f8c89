"""Sample outputs and counts in README and docs are what the program gives now; make figures rewrites them."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
GENERATED = {"cli.md", "api.md", "run-file.md"}


@pytest.fixture(scope="module")
def figures() -> ModuleType:
    found = importlib.util.spec_from_file_location("figures", ROOT / "docs" / "scripts" / "figures.py")
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


@pytest.mark.parametrize("page", [page for page in PAGES if page.name not in GENERATED], ids=lambda page: page.stem)
def test_a_page_shows_what_the_program_prints(page: Path, figures: ModuleType) -> None:
    text = page.read_text(encoding="utf-8")
    assert figures.render(text) == text, f"{page.relative_to(ROOT)} is stale; run: make figures"


def test_every_sample_output_is_marked() -> None:
    """A block that shows the result of estimate, explain or compare is generated, not typed."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    for block in re.findall(r"```console\n(.*?)```", readme, flags=re.DOTALL):
        if "TTFT" in block:
            assert "<!-- output: " + block.splitlines()[0].removeprefix("$ ") in readme


def test_links_of_the_readme_work_on_a_package_index() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    for link in re.findall(r"\]\(([^)]+)\)", readme):
        assert link.startswith("https://"), link
        _, main, path = link.partition("/blob/main/")
        assert not main or (ROOT / path).exists(), link


def test_commands_in_the_documents_exist() -> None:
    from typer.main import get_command

    from chipwise.cli.app import app

    known = set(get_command(app).commands)
    for page in PAGES:
        for name in re.findall(r"`chipwise ([a-z]+)[ `]", page.read_text(encoding="utf-8")):
            assert name in known, f"{page.name}: chipwise {name}"


def test_figures_of_the_table_are_those_of_the_notes_or_of_benchmarks() -> None:
    """Rows that link to the validation notes show their figures; all others are generated from benchmarks/."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    notes = (ROOT / "docs" / "notes" / "validation.md").read_text(encoding="utf-8")
    table = readme.partition("## How good is it")[2].partition("\n\n## ")[0].partition("\n\nThe CPU")[0]
    rows = [line.split(" | ") for line in table.splitlines() if line.startswith("| ") and "was checked" not in line]
    assert len(rows) >= 6
    for question, measured, source in rows:
        if "validation" in source:
            for figure in re.findall(r"\d+\.\d+ %", measured):
                assert figure in notes, f"{question}: {figure} is not in the validation notes"
        else:
            typed = re.sub(r"<!-- count: \w+ -->.*?<!-- end -->", "", question + measured)
            assert not re.search(r"\d\.\d", typed), f"{question}: typed by hand: {typed}"
