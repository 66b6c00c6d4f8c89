"""Names that users write: in Python, on the command line, in YAML files, and in chipwise's files."""

from __future__ import annotations

import ast
import dataclasses
import importlib
import inspect
import json
import pkgutil
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args, get_type_hints

import reach
from typer.testing import CliRunner

import chipwise
from chipwise.core.stored import Stored

SOURCE = Path(chipwise.__file__).parent
SCHEMA = re.compile(r"chipwise\.[\w-]+/\d+")
GROUP = re.compile(r"chipwise\.[a-z]+")


def python() -> dict[str, Any]:
    """The public names, with the parameters of functions and the fields of values."""
    found: dict[str, Any] = {"chipwise": sorted(chipwise.__all__), "chipwise.api": sorted(chipwise.api.__all__)}
    for name in sorted(chipwise.api.__all__):
        value = getattr(chipwise, name)
        if dataclasses.is_dataclass(value):
            found[f"fields of {name}"] = sorted(item.name for item in dataclasses.fields(value) if item.init)
        elif inspect.isfunction(value):
            found[f"parameters of {name}"] = [_parameter(item) for item in inspect.signature(value).parameters.values()]
    return found


def _parameter(item: inspect.Parameter) -> str:
    default = "…" if callable(item.default) else repr(item.default)
    return item.name if item.default is item.empty else f"{item.name}={default}"


def errors() -> dict[str, Any]:
    """The public errors with their base classes and exit codes."""
    found = {}
    for name in sorted(dir(chipwise.errors)):
        value = getattr(chipwise.errors, name)
        if isinstance(value, type) and issubclass(value, chipwise.ChipwiseError):
            found[name] = [[base.__name__ for base in value.__mro__], value.exit_code]
    return found


def suites() -> dict[str, Any]:
    """Public names of ``chipwise.api.testing`` by module, and the tests of its suites."""
    package = importlib.import_module(reach.TESTING)
    found = {}
    for item in sorted(pkgutil.iter_modules(package.__path__), key=lambda item: item.name):
        module = importlib.import_module(f"{reach.TESTING}.{item.name}")
        own = {
            name: value for name, value in vars(module).items() if getattr(value, "__module__", "") == module.__name__
        }
        for name in sorted(own):
            if not name.startswith("_"):
                tests = [each for each in dir(own[name]) if each.startswith("test_")]
                found[f"{item.name}.{name}"] = tests
    return found


def commands() -> dict[str, Any]:
    """Commands and their options: how each is written, its type and default."""
    return dict(_commands(reach.command_line(), "chipwise"))


def _commands(command: Any, name: str) -> Iterator[tuple[str, Any]]:
    yield name, [_option(item) for item in command.params]
    for each in getattr(command, "commands", {}):
        yield from _commands(command.commands[each], f"{name} {each}")


def _option(item: Any) -> list[Any]:
    default = item.default() if callable(item.default) else item.default
    return [sorted([*item.opts, *item.secondary_opts]), str(default), bool(item.required)]


def fields() -> dict[str, list[str]]:
    """The fields of every YAML file, by file and place."""
    found: dict[str, list[str]] = {}
    for name, root in reach.FILES.items():
        _fields(root, name, found)
    return found


def _fields(cls: Any, place: str, found: dict[str, list[str]]) -> None:
    cls = cls.STORED if issubclass(cls, Stored) else cls
    hints = get_type_hints(cls)
    found[place] = sorted(item.name for item in dataclasses.fields(cls) if item.init)
    for name in found[place]:
        for inner in _classes(hints[name]):
            if place.count("/") < 4 and place.split("/")[-1] != name:
                _fields(inner, f"{place}/{name}", found)


def _classes(hint: Any) -> Iterator[Any]:
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        yield hint
    for inner in get_args(hint):
        yield from _classes(inner)


def written() -> dict[str, list[str]]:
    """Names of schemas, and of the groups of entry points that extensions register in."""
    schemas, groups = set(), set()
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and SCHEMA.fullmatch(node.value):
                schemas.add(node.value)
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Table":
                given = [*node.args, *(keyword.value for keyword in node.keywords)]
                texts = [item.value for item in given if isinstance(item, ast.Constant)]
                groups |= {text for text in texts if isinstance(text, str) and GROUP.fullmatch(text)}
    return {"schemas": sorted(schemas), "groups of entry points": sorted(groups)}


def strategies() -> list[str]:
    """The names of search strategies, as the command lists them."""
    done = CliRunner().invoke(reach.app, ["strategies", "--json"])
    return sorted(item["name"] for item in json.loads(done.stdout))


PARTS = {
    "python": python,
    "errors": errors,
    "suites": suites,
    "commands": commands,
    "fields": fields,
    "written": written,
    "strategies": strategies,
}
