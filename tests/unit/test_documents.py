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
