"""No command takes an option that it then ignores: every parameter of its function is read in the function's body."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import chipwise.cli

FILES = sorted(Path(chipwise.cli.__file__).parent.glob("*.py"))


def unread(source: str) -> list[str]:
    """``function.parameter`` of every function whose parameters are typer's and one of which nothing reads.

    What a callback of its own handles, such as ``--version``, needs no reading.
    """
    found = []
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.FunctionDef):
            continue
        arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
        shown = {item.arg: ast.unparse(item.annotation) for item in arguments if item.annotation}
        options = [name for name, text in shown.items() if "typer." in text and "callback=" not in text]
        read = {
            part.id
            for statement in node.body
            for part in ast.walk(statement)
            if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Load)
        }
        found += [f"{node.name}.{name}" for name in options if name not in read]
    return found


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_every_option_is_read(file: Path) -> None:
    assert unread(file.read_text(encoding="utf-8")) == []


def test_an_option_that_nobody_reads_is_found() -> None:
    source = "def command(a: Annotated[int, typer.Option()] = 1, b: Annotated[int, typer.Option()] = 2): print(a)"
    assert unread(source) == ["command.b"]


def test_options_are_found_at_all() -> None:
    text = "".join(file.read_text(encoding="utf-8") for file in FILES)
    assert text.count("typer.Option(") > 100
