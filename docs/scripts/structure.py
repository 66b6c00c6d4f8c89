"""Prints how src/chipwise is built: its size, its imports inside functions, its branches on kinds of models.

``--check`` fails where a number is above its limit (:data:`LIMITS`), which CI does (``make check``); ``--json`` prints
all numbers with the files behind them. What is counted is read from the syntax tree; nothing is imported.
"""

from __future__ import annotations

import argparse
import ast
import io
import json
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2] / "src" / "chipwise"
PACKAGE = "chipwise"
LONGEST = 10  # files and functions that are listed
MOST_PARAMETERS = 15
FUNCTION = ast.FunctionDef | ast.AsyncFunctionDef
# What tells one kind of model from another. A place where a decision hangs on one of these is a branch on kind.
PARTS = {
    "stem",
    "encoder_stem",
    "reads_tokens",
    "asks",
}  # fields of a model, and what a stem is
SPACES = {"image", "ranking", "sentence", "sound"}  # fields of a space
OF_SPACES = {"spec", "space", "_spec", "_space"}  # what a space is called
KINDS = {
    "Tokens",
    "ImageStem",
    "SoundStem",
    "RankingStem",
    "SentenceStem",
    "QuestionStem",
    "Denoiser",
    "Projector",
}  # classes
FORMS = {
    "DECODER",
    "ENCODER",
    "CLASSIFIER",
    "IMAGE_ENCODER",
    "DENOISER",
    "TRANSCRIBER",
    "LISTENER",
    "RANKER",
    "SENTENCES",
}  # values
TESTS = {"form_of", "builds", "encodes_images", "transcribes", "question_of", "projector_of"}
SKIPPED = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
SUITES = "testing"  # the folder whose asserts are the checks of suites; elsewhere they narrow a type
# None may rise above these; they are lowered as the code gets simpler.
LIMITS = {
    "lines of code": 84_108,
    "longest file": 857,
    "longest function": 121,
    "imports inside functions": 60,
    "branches on kind": 25,
    "files with branches on kind": 13,
    "mentions of Any": 346,
    "asserts outside the suites": 31,
    "casts": 7,
    "type: ignore": 51,
    "functions of more than 15 parameters": 0,
    "top folders and files": 12,
}


@dataclass
class Structure:
    """The counts; those about files are by file."""

    lines: Counter[str] = field(default_factory=Counter)  # of code, without docstrings, comments and blanks
    inner_imports: Counter[str] = field(default_factory=Counter)  # statements in functions that import chipwise
    inner_outside: Counter[str] = field(default_factory=Counter)  # that import something else
    branches: Counter[str] = field(default_factory=Counter)
    any: Counter[str] = field(default_factory=Counter)
    asserts: Counter[str] = field(default_factory=Counter)
    casts: Counter[str] = field(default_factory=Counter)
    ignored_types: Counter[str] = field(default_factory=Counter)
    dataclasses: Counter[str] = field(default_factory=Counter)
    many_parameters: dict[str, int] = field(default_factory=dict)
    functions: dict[str, int] = field(default_factory=dict)  # lines, with docstrings

    def numbers(self) -> dict[str, int]:
        """The numbers that have limits."""
        return {
            "lines of code": self.lines.total(),
            "files": len(self.lines),
            "longest file": max(self.lines.values()),
            "longest function": max(self.functions.values()),
            "imports inside functions": self.inner_imports.total(),
            "branches on kind": self.branches.total(),
            "files with branches on kind": len(self.branches),
            "mentions of Any": self.any.total(),
            "asserts": self.asserts.total(),
            "asserts outside the suites": sum(n for file, n in self.asserts.items() if SUITES not in file.split("/")),
            "casts": self.casts.total(),
            "type: ignore": self.ignored_types.total(),
            f"functions of more than {MOST_PARAMETERS} parameters": len(self.many_parameters),
            "dataclasses": self.dataclasses.total(),
            "top folders and files": len({_top(file) for file in self.lines}),
        }


def _top(file: str) -> str:
    return file.split("/")[0]


def by_folder(counted: Counter[str]) -> dict[str, int]:
    """Sums by top folder, largest first."""
    found: Counter[str] = Counter()
    for file, count in counted.items():
        found[_top(file)] += count
    return dict(found.most_common())


def structure(root: Path = ROOT) -> Structure:
    """Counts every Python file under ``root``."""
    found = Structure()
    public = public_functions(root)
    for path in sorted(root.rglob("*.py")):
        file, source = path.relative_to(root).as_posix(), path.read_text(encoding="utf-8")
        _count(found, file, source, public)
    return found


def public_functions(root: Path) -> set[str]:
    """Names that ``chipwise.api`` exports, by its ``__all__``."""
    for node in ast.parse((root / "api" / "__init__.py").read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == "__all__" for t in node.targets):
            return set(ast.literal_eval(node.value))
    return set()


def _count(found: Structure, file: str, source: str, public: set[str]) -> None:
    tree = ast.parse(source)
    tokens = list(tokenize.generate_tokens(io.StringIO(source).readline))
    found.lines[file] = len(_code_lines(tokens) - _docstring_lines(tree))
    _add(found.ignored_types, file, sum("type: ignore" in t.string for t in tokens if t.type == tokenize.COMMENT))
    _add(found.any, file, sum(t.type == tokenize.NAME and t.string == "Any" for t in tokens))
    for node in ast.walk(tree):
        _add(found.asserts, file, isinstance(node, ast.Assert))
        _add(found.casts, file, isinstance(node, ast.Call) and _name(node.func) == "cast")
        if isinstance(node, ast.ClassDef):
            _add(found.dataclasses, file, any(_name(item) == "dataclass" for item in node.decorator_list))
        if isinstance(node, FUNCTION):
            _count_function(found, file, node, public)
    for node in _inside_functions(tree):
        outside = not any(name.split(".")[0] == PACKAGE for name in _imported(node))
        _add(found.inner_outside if outside else found.inner_imports, file, 1)
    _add(found.branches, file, sum(_branches(test) for test in _decisions(tree)))


def _add(counted: Counter[str], file: str, number: int) -> None:
    if number:
        counted[file] += number


def _count_function(
    found: Structure, file: str, node: ast.FunctionDef | ast.AsyncFunctionDef, public: set[str]
) -> None:
    place = f"{file}:{node.name}"
    found.functions[place] = max(found.functions.get(place, 0), (node.end_lineno or node.lineno) - node.lineno + 1)
    given = node.args
    count = len([*given.posonlyargs, *given.args, *given.kwonlyargs])
    shown = (_top(file) == "api" and node.name in public) or (_top(file) == "cli" and node.name in ("command", "main"))
    if count > MOST_PARAMETERS and not shown:
        found.many_parameters[place] = count


def _code_lines(tokens: list[tokenize.TokenInfo]) -> set[int]:
    lines: set[int] = set()
    for token in tokens:
        if token.type not in SKIPPED:
            lines |= set(range(token.start[0], token.end[0] + 1))
    return lines


def _docstring_lines(tree: ast.Module) -> set[int]:
    lines: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | FUNCTION) and ast.get_docstring(node, clean=False) is not None:
            lines |= set(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
    return lines


def _inside_functions(tree: ast.Module) -> Iterator[ast.Import | ast.ImportFrom]:
    """Import statements in functions; each once, even if functions are nested."""
    seen: set[int] = set()
    for outer in ast.walk(tree):
        if isinstance(outer, FUNCTION):
            for node in ast.walk(outer):
                if isinstance(node, ast.Import | ast.ImportFrom) and id(node) not in seen:
                    seen.add(id(node))
                    yield node


def _imported(node: ast.Import | ast.ImportFrom) -> list[str]:
    return [node.module or PACKAGE] if isinstance(node, ast.ImportFrom) else [item.name for item in node.names]


def _name(node: ast.expr) -> str:
    """The last name of what is called or named."""
    if isinstance(node, ast.Call):
        return _name(node.func)
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _decisions(tree: ast.Module) -> Iterator[ast.expr]:
    """Expressions on which something depends: tests of if and while, filters, values of match, alternatives."""
    for node in ast.walk(tree):
        if isinstance(node, ast.If | ast.While | ast.IfExp):
            yield node.test
        elif isinstance(node, ast.comprehension):
            yield from node.ifs
        elif isinstance(node, ast.Match):
            yield node.subject
        elif isinstance(node, ast.Return) and isinstance(node.value, ast.BoolOp | ast.Compare):
            yield node.value
        elif isinstance(node, ast.BoolOp) and isinstance(node.op, ast.Or):  # a default: arch.stem or …
            yield from (item for item in node.values[:-1] if not isinstance(item, ast.BoolOp | ast.Compare))


def _branches(test: ast.expr) -> int:
    """1 where a decision asks for the kind of a model, else 0."""
    return int(any(_asks_for_kind(node) for node in ast.walk(test)))


def _asks_for_kind(node: ast.AST) -> bool:
    if isinstance(node, ast.Call):
        if _name(node.func) in TESTS:
            return True
        if _name(node.func) == "isinstance" and len(node.args) == 2:
            return bool(KINDS & {_name(item) for item in ast.walk(node.args[1]) if isinstance(item, ast.expr)})
        return False
    if isinstance(node, ast.Name) and node.id in FORMS:
        return True
    if not isinstance(node, ast.Attribute):
        return False
    owner = _name(node.value)  # arch.stem; spec.image; arch.question
    part = node.attr in PARTS and owner != "Path"  # the stem of a path is its file's name
    return part or (node.attr in SPACES and owner in OF_SPACES)


def _limited(found: Structure) -> list[str]:
    numbers = found.numbers()
    return [
        f"{name}: {numbers[name]:,}, and at most {limit:,} are allowed"
        for name, limit in LIMITS.items()
        if numbers[name] > limit
    ]


def text(found: Structure) -> Iterator[str]:
    """The numbers with their limits, then what is behind them."""
    for name, number in found.numbers().items():
        yield f"{name:45} {number:8,}" + (f"   (limit {LIMITS[name]:,})" if name in LIMITS else "")
    yield "\nby folder:                 lines    files  imports  branches      Any  asserts"
    files = Counter(dict.fromkeys(found.lines, 1))
    columns = [by_folder(each) for each in (found.lines, files, found.inner_imports, found.branches, found.any)]
    columns.append(by_folder(found.asserts))
    for folder in columns[0]:
        yield f"  {folder:20}" + "".join(f"{each.get(folder, 0):9,}" for each in columns)
    yield f"\nimports inside functions of other packages: {found.inner_outside.total()}"
    yield "\nfiles with branches on kind:"
    yield from (f"  {count:4} {file}" for file, count in found.branches.most_common())
    yield f"\nfunctions of more than {MOST_PARAMETERS} parameters outside the public API and the commands:"
    yield from (f"  {count:4} {place}" for place, count in _largest(found.many_parameters))
    yield "\nlongest files (lines of code):"
    yield from (f"  {count:4} {file}" for file, count in found.lines.most_common(LONGEST))
    yield "\nlongest functions (lines, with docstrings):"
    yield from (f"  {count:4} {place}" for place, count in _largest(found.functions)[:LONGEST])


def _largest(counted: dict[str, int]) -> list[tuple[str, int]]:
    return sorted(counted.items(), key=lambda item: (-item[1], item[0]))


def data(found: Structure) -> dict[str, Any]:
    """Everything as JSON can hold it."""
    each = {name: dict(_largest(getattr(found, name))) for name in found.__dataclass_fields__ if name != "functions"}
    return {"numbers": found.numbers(), "limits": LIMITS, "lines by folder": by_folder(found.lines), "files": each}


def main() -> int:
    """Prints the numbers; the exit code."""
    parser = argparse.ArgumentParser(description="Print how src/chipwise is built.")
    parser.add_argument("--check", action="store_true", help="print what is above its limit, and fail")
    parser.add_argument("--json", action="store_true", help="print everything as JSON")
    given = parser.parse_args()
    found = structure()
    if given.check:
        for line in (above := _limited(found)):
            print(line, file=sys.stderr)
        return int(bool(above))
    print(json.dumps(data(found), indent=1) if given.json else "\n".join(text(found)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
