"""Writes the reference pages that follow from the code: docs/reference/cli.md, api.md and run-file.md."""

from __future__ import annotations

import dataclasses
import inspect
import os
import re
import subprocess
import sys
import typing
from pathlib import Path

import chipwise
from chipwise.design.run import spec as run_spec
from chipwise.design.run.start_spec import StartSpec

REFERENCE = Path(__file__).parents[1] / "reference"
CLI = "from chipwise.cli import main; main()"
SPECS = (
    (run_spec.RunSpec, "A search", ""),
    (run_spec.TargetSpec, "target", "target"),
    (chipwise.Workload, "workload", "workload"),
    (run_spec.SpaceSpec, "space", "space"),
    (run_spec.BudgetSpec, "budget", "budget"),
    (run_spec.QualitySpec, "quality", "quality"),
    (run_spec.TaskSpec, "tasks", "tasks"),
    (run_spec.StrategySpec, "search", "search"),
    (run_spec.AlsoOn, "targets", "targets"),
    (StartSpec, "A run that starts from a model", ""),
)


def help_of(*command: str) -> str:
    """What ``chipwise COMMAND --help`` prints at 80 columns."""
    code = f"import sys; sys.argv[0] = 'chipwise'; {CLI}"
    environment = os.environ | {"COLUMNS": "80", "NO_COLOR": "1", "TERM": "dumb"}
    done = subprocess.run(
        [sys.executable, "-c", code, *command, "--help"], capture_output=True, text=True, check=True, env=environment
    )
    return "\n".join(line.rstrip() for line in done.stdout.strip().splitlines())


def commands(text: str) -> list[str]:
    """The names of commands, which are listed below the options."""
    return re.findall(r"^  ([a-z]+) ", text.partition("Options:")[2], flags=re.MULTILINE)


def cli_page() -> str:
    """Every command's help."""
    whole = help_of()
    parts = ["# Command line", "", "```text", whole, "```", ""]
    for name in commands(whole):
        text = help_of(name)
        parts += [f"## chipwise {name}", "", "```text", text, "```", ""]
        for inner in commands(text):
            parts += [f"### chipwise {name} {inner}", "", "```text", help_of(name, inner), "```", ""]
    return "\n".join(parts)


def api_page() -> str:
    """Every public name, by mkdocstrings."""
    functions, classes = [], []
    for name in chipwise.api.__all__:
        value = getattr(chipwise, name)
        source = inspect.unwrap(value)
        path = f"{source.__module__}.{source.__qualname__}"
        (functions if inspect.isfunction(value) else classes).append(f"::: {path}\n")
    return "\n".join(
        [
            "# Python API",
            "",
            "All names below are attributes of `chipwise`: `chipwise.estimate`, `chipwise.CostEstimate`, …; they are",
            "loaded on first use. Results have a short `repr`, `to_dict()`, `to_pandas()`, and a table in notebooks.",
            "All errors are subclasses of `chipwise.errors.ChipwiseError`.",
            "",
            "## Functions",
            "",
            *functions,
            "## Classes",
            "",
            *classes,
            "## Errors",
            "",
            "::: chipwise.errors",
            "    options: {show_root_heading: false, members_order: source}",
            "",
        ]
    )


def run_file_page() -> str:
    """Every field of a run file: its type, its default, and the comment beside it in the code."""
    parts = [
        "# Run files",
        "",
        "A run file is YAML; `chipwise init` writes commented ones. Unknown fields are refused.",
    ]
    for cls, title, key in SPECS:
        hints = typing.get_type_hints(cls)
        comments = dict(re.findall(r"^    (\w+):[^#\n]*#\s*(.+)$", inspect.getsource(cls), flags=re.MULTILINE))
        parts += ["", f"## {title}", "", inspect.cleandoc(cls.__doc__ or "").replace("``", "`"), ""]
        parts += ["| field | type | default | |", "|---|---|---|---|"]
        for each in dataclasses.fields(cls):
            if each.name == "folder" or not each.init:
                continue
            kind = _type(hints[each.name]).replace("|", "\\|")
            where = f"{key}.{each.name}" if key else each.name
            parts.append(f"| `{where}` | {kind} | {_default(each)} | {comments.get(each.name, '')} |")
    return "\n".join([*parts, ""])


def _type(hint: object) -> str:
    text = hint.__name__ if isinstance(hint, type) else str(hint)
    text = re.sub(r"(typing|collections\.abc|chipwise\.[\w.]+)\.", "", text)
    return f"`{text}`"


def _default(each: dataclasses.Field[object]) -> str:
    if each.default is not dataclasses.MISSING:
        return f"`{each.default!r}`"
    if each.default_factory is not dataclasses.MISSING:
        value = each.default_factory()
        return "see below" if dataclasses.is_dataclass(value) else f"`{value!r}`"
    return "required"


def main() -> None:
    """Writes the three pages."""
    for name, text in (("cli", cli_page()), ("api", api_page()), ("run-file", run_file_page())):
        (REFERENCE / f"{name}.md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
