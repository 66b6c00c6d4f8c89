"""``chipwise init``: commented run files to start from."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from chipwise.cli.output import notices, print_table
from chipwise.core.files import write_output
from chipwise.core.layout import Column, Table
from chipwise.errors import InputError, UnknownName

EXAMPLES = Path(__file__).parent / "examples"
COMPANIONS = {"smoke-task": ("smoke-task.csv",)}  # data files that a run file reads; `init` writes them next to it


def kinds() -> list[str]:
    """The names of the bundled run files and modules."""
    return sorted(path.stem for suffix in (".yaml", ".py") for path in EXAMPLES.glob(f"*{suffix}"))


def _example(name: str) -> Path:
    return next(path for suffix in (".yaml", ".py") if (path := EXAMPLES / f"{name}{suffix}").exists())


def command(
    kind: Annotated[str, typer.Argument(help="Kind of run file; --list shows all.", autocompletion=kinds)] = "clinic",
    out: Annotated[Path | None, typer.Option(help="The file to write. Default: KIND.yaml in this folder.")] = None,
    listed: Annotated[bool, typer.Option("--list", help="List the kinds and write nothing.")] = False,
) -> None:
    """Write a commented run file for `chipwise search`: clinic, own-text, smoke, shrink-encoder, and more.

    \b
      chipwise init own-text --out notes.yaml
      chipwise search notes.yaml
    """
    if listed:
        table = Table(columns=[Column(), Column(prose=True)])
        for name in kinds():
            table.add(name, _purpose(name))
        print_table(table)
        return
    name = kind.removesuffix(".yaml").removesuffix(".py")
    if name not in kinds():
        raise UnknownName("kind of run file", kind, kinds(), listed_by="chipwise init --list")
    example = _example(name)
    target = out or Path(example.name)
    copies = [(example, target)]
    copies += [(EXAMPLES / item, target.parent / item) for item in COMPANIONS.get(name, ())]
    if not target.parent.is_dir():
        raise InputError(f"{target.parent}: there is no such folder; create it first")
    for _, file in copies:
        if file.exists():
            raise InputError(f"{file} exists; choose another file with --out")
    for source, file in copies:
        text = source.read_text(encoding="utf-8")
        write_output(file, text.replace(example.name, target.name) if source == example else text)
        notices.print(f"wrote {file}", highlight=False)
    verb = "agent" if name == "agent" else "search"
    given = f'--model {target} --latency "<= 60 us"' if example.suffix == ".py" else target
    notices.print(f"next: chipwise {verb} {given}", highlight=False)


def _purpose(name: str) -> str:
    """The first sentence of the comment in an example."""
    example = _example(name)
    if example.suffix == ".py":
        return example.read_text(encoding="utf-8").split('"""')[1].split(":")[0]
    lines = example.read_text(encoding="utf-8").split("\n#\n")[0].splitlines()
    comment = " ".join(line.removeprefix("#").strip() for line in lines if line.startswith("#"))
    return comment.split(". ")[0].split(": a tiny")[0].rstrip(".")
