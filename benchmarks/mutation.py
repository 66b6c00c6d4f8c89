"""How many small faults in the code are found by the tests of the same package.

    nice python benchmarks/mutation.py --n 105 --seed 1 --out mutation.csv
    nice python benchmarks/mutation.py --packages cost,serve --n 20 --seed 2

Draws mutants, as many from each package: a comparison or sign reversed, a number off by one, a term dropped, a constant
doubled, min for max, another value returned. Each runs against the unit tests of its package alone, in a copy of the
sources. The functions that each test calls, also in worker processes and command lines, are recorded first. A mutant is
tested with the tests that call its function, those of the file named after the module first, then the quickest, until
one fails. What only a test that uses another one's results (a shared fixture, a cache) would see is not counted. If no
test calls the function (code that is copied elsewhere and run), all tests of the package run. With --by-imports nothing
is recorded, and the files that import the changed module run, those first that do so themselves: sooner begun, and
later done where a fault survives.

Mutants that change nothing observable are listed in mutation-equivalent.csv with the reason; they are printed and
written, and not counted. A run over the time limit (in seconds of CPU) counts as killed and is reported as such.

Columns: package, file, line, function, text and column (where in the line), kind, before, after, outcome (killed, time
limit, survived, equivalent), seconds, by (the first failing test), reason (of an equivalent mutant), date, machine and
versions. Exit code 1 if the
killed share is below --bar.
"""

from __future__ import annotations

import argparse
import ast
import compileall
import copy
import csv
import functools
import hashlib
import json
import os
import queue
import random
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

import pytest

from mutation_server import TRACER
from provenance import COLUMNS as ORIGIN
from provenance import here

Item = TypeVar("Item")
ROOT = Path(__file__).resolve().parents[1]
EQUIVALENT = Path(__file__).with_name("mutation-equivalent.csv")
COLUMNS = (
    *("package", "file", "line", "function", "text", "column", "kind", "before", "after"),
    *("outcome", "seconds", "by", "reason"),
    *ORIGIN,
)
ROOMS = {  # the files below src/chipwise that each name of a package stands for
    "cost": ("predict/cost/**/*.py",),
    "serve": ("predict/served/**/*.py",),
    "space": ("model/space/**/*.py", "design/prices/**/*.py", "model/kinds/*/choices.py"),
    "optim": ("design/strategies/**/*.py", "training/laws/**/*.py"),
    "pipeline": ("design/phases/**/*.py",),
    "run": ("design/run/**/*.py", "design/phases/kit_folder.py"),
    "deploy": (
        *("deploy/export/**/*.py", "deploy/runtimes/torch_serving.py", "deploy/runtimes/llama_server.py"),
        *(f"model/kinds/*/{name}*.py" for name in ("graph", "hf", "modeling_chipwise", "module")),
        "model/kinds/chipwise_blocks.py",
    ),
}
ELSEWHERE = {  # files in these rooms whose tests are those of another package
    "pipeline": ("design/phases/kit_folder.py", "design/phases/overview.py"),
    "deploy": ("deploy/export/exporters.py", "deploy/export/parity.py"),
}
TESTS = {  # what each package answers for itself
    "cost": ("tests/unit/predict/cost",),
    "serve": ("tests/unit/predict/served",),
    "space": ("tests/unit/model/space",),
    "optim": ("tests/unit/design/strategies",),
    "pipeline": ("tests/unit/design/phases",),
    "run": ("tests/unit/design/run",),
    "deploy": ("tests/unit/deploy/export",),
}
COMPARISONS: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Lt: (ast.LtE, ast.Gt),
    ast.LtE: (ast.Lt, ast.GtE),
    ast.Gt: (ast.GtE, ast.Lt),
    ast.GtE: (ast.Gt, ast.LtE),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
}
SIGNS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
}
SWAPS = {
    **{"min": "max", "max": "min", "any": "all", "all": "any"},
    **{"minimum": "maximum", "maximum": "minimum", "argmin": "argmax", "argmax": "argmin"},
    **{"floor": "ceil", "ceil": "floor", "nanmin": "nanmax", "nanmax": "nanmin"},
}
LIMIT_S = 600  # of CPU time for one mutant, at most
PASSED = (0, 5)  # all tests, or none
NEGATED = {"float", "int", "Float64Array"}
EMPTY = {"str": "''", "list": "[]", "tuple": "()", "dict": "{}"}


@dataclass(frozen=True, kw_only=True)
class Mutant:
    """One changed expression: ``node`` of the file is replaced by ``code``."""

    package: str
    file: str  # below src
    function: str  # qualified name, or <module>
    kind: str
    node: ast.expr
    code: str
    text: str  # the line on which the expression starts, without indentation
    column: int  # of the expression in ``text``

    @property
    def before(self) -> str:
        """The expression as it is."""
        return ast.unparse(self.node)

    def key(self) -> tuple[str, ...]:
        """What identifies the mutant while its file changes elsewhere."""
        return self.file, self.function, self.text, str(self.column), self.before, self.code

    def apply(self, source: bytes) -> bytes:
        """``source`` with the expression replaced."""
        node, lines = self.node, source.splitlines(keepends=True)
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        start = sum(map(len, lines[: node.lineno - 1])) + node.col_offset
        end = sum(map(len, lines[: node.end_lineno - 1])) + node.end_col_offset
        return source[:start] + f"({self.code})".encode() + source[end:]


def changes(node: ast.AST, returns: str) -> Iterator[tuple[str, ast.expr, str]]:
    """Kind, expression and replacement of each mutant at ``node`` in a function with return type ``returns``."""
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        for other in COMPARISONS.get(type(node.ops[0]), ()):
            changed = copy.copy(node)
            changed.ops = [other()]
            yield "comparison", node, ast.unparse(changed)
    elif isinstance(node, ast.BinOp) and type(node.op) in SIGNS and not _is_text(node):
        changed_sign = copy.copy(node)
        changed_sign.op = SIGNS[type(node.op)]()
        yield "sign", node, ast.unparse(changed_sign)
        yield "term dropped", node, ast.unparse(node.left)
        if isinstance(node.op, ast.Add | ast.Mult):
            yield "term dropped", node, ast.unparse(node.right)
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.Not):
        yield "sign", node, ast.unparse(node.operand)
    elif isinstance(node, ast.BoolOp):
        changed_bool = copy.copy(node)
        changed_bool.op = ast.Or() if isinstance(node.op, ast.And) else ast.And()
        yield "condition", node, ast.unparse(changed_bool)
    elif isinstance(node, ast.IfExp):
        yield (
            "condition",
            node,
            f"({ast.unparse(node.orelse)}) if {ast.unparse(node.test)} else ({ast.unparse(node.body)})",
        )
    elif isinstance(node, ast.Constant) and type(node.value) is int:
        yield "off by one", node, str(node.value + 1)
    elif isinstance(node, ast.Constant) and type(node.value) is float:
        yield "constant", node, repr(2 * node.value or 1.0)
    elif isinstance(node, ast.Constant) and type(node.value) is bool:
        yield "constant", node, str(not node.value)
    elif isinstance(node, ast.Call):
        name = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
        if name in SWAPS:
            function = ast.unparse(node.func)
            yield "min for max", node.func, function.removesuffix(name) + SWAPS[name]
    elif isinstance(node, ast.Return) and node.value is not None:
        if returns == "bool":
            yield "returned", node.value, f"not ({ast.unparse(node.value)})"
        elif returns in NEGATED:
            yield "returned", node.value, f"-({ast.unparse(node.value)})"
        elif returns in EMPTY and ast.unparse(node.value) not in EMPTY.values():
            yield "returned", node.value, EMPTY[returns]


def _is_text(node: ast.BinOp) -> bool:
    parts = (node.left, node.right)
    return any(isinstance(p, ast.JoinedStr | ast.List) or isinstance(getattr(p, "value", None), str) for p in parts)


def mutants_of(package: str, path: Path) -> Iterator[Mutant]:
    """Every mutant of one file. Messages, annotations and decorators are left alone."""
    file, lines = str(path.relative_to(ROOT / "src")), path.read_text(encoding="utf-8").splitlines()

    def mutant(function: str, kind: str, node: ast.expr, code: str) -> Mutant:
        line = lines[node.lineno - 1]
        text, column = line.strip(), node.col_offset - (len(line) - len(line.lstrip()))
        return Mutant(
            package=package, file=file, function=function, kind=kind, node=node, code=code, text=text, column=column
        )

    def walk(node: ast.AST, function: str, returns: str) -> Iterator[Mutant]:
        if isinstance(node, ast.Raise | ast.JoinedStr | ast.Assert | ast.Import | ast.ImportFrom):
            return
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            outer = f"{function}.<locals>" if returns else function
            function = node.name if function == "<module>" else f"{outer}.{node.name}"
            if isinstance(node, ast.FunctionDef):
                if node.name == "__repr__":
                    return
                returns = ast.unparse(node.returns).partition("[")[0] if node.returns else "None"
        for kind, found, code in changes(node, returns):
            yield mutant(function, kind, found, code)
        for field, value in ast.iter_fields(node):
            if field in ("annotation", "returns", "decorator_list", "bases"):
                continue
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST):
                    yield from walk(child, function, returns)

    yield from walk(ast.parse(path.read_bytes()), "<module>", "")


def files_of(package: str) -> list[Path]:
    """The files of a package."""
    inside = ROOT / "src" / "chipwise"
    found = {path for room in ROOMS[package] for path in inside.glob(room)}
    return sorted(found - {inside / name for name in ELSEWHERE.get(package, ())})


def sample(packages: list[str], n: int, seed: int) -> list[Mutant]:
    """``n`` mutants, evenly from all packages (the first ones have one more if there is a remainder)."""
    chosen: list[Mutant] = []
    for i, package in enumerate(packages):
        files = files_of(package)
        every = [mutant for path in files for mutant in mutants_of(package, path)]
        count = n // len(packages) + (i < n % len(packages))
        chosen += random.Random(f"{seed}/{package}").sample(every, min(count, len(every)))
    return chosen


def in_turn(mutants: list[Mutant]) -> list[Mutant]:
    """Mutants in turns over packages, so that a stopped run has tried equally many of each."""
    place: dict[str, int] = defaultdict(int)
    turns = []
    for mutant in mutants:
        turns.append(place[mutant.package])
        place[mutant.package] += 1
    return [mutants[i] for i in sorted(range(len(mutants)), key=turns.__getitem__)]


class Copy:
    """A copy of the sources for one mutant at a time, and a process whose forks run the tests."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self.source = folder / "src"
        shutil.copytree(ROOT / "src", self.source, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
        compileall.compile_dir(self.source, quiet=2)
        (folder / "sitecustomize.py").write_text(TRACER)
        self._clock = time.time() + 10  # a changed file must not be taken for the compiled one
        self._server = subprocess.Popen(
            [sys.executable, ROOT / "benchmarks" / "mutation_server.py"],
            cwd=ROOT,
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join(map(str, (self.source, folder, ROOT / "benchmarks", ROOT))),
                "PYTHONDONTWRITEBYTECODE": "1",
                "OMP_NUM_THREADS": "1",
            },
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def close(self) -> None:
        """Ends the process."""
        self._server.communicate("")

    def test(
        self, files: list[str], limit_s: float, *, chosen: list[str] | None = None, calls: Path | None = None
    ) -> dict[str, Any]:
        """Exit code of the tests (None at the time limit), those that failed, and the seconds of each.

        With ``calls``, all tests run, and each function that one calls is written there.
        """
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        tracing = {"MUTATION_SOURCE": str(self.source), "MUTATION_CALLS": str(calls)} if calls else {}
        request = {
            "files": files,
            "chosen": chosen or [],
            "stop": not calls,
            "cpu_s": int(limit_s),
            "wall_s": 10 * limit_s,  # for a fault that waits; on a machine that does other work too
            "environment": tracing,
        }
        print(json.dumps(request), file=self._server.stdin, flush=True)
        return dict(json.loads(self._server.stdout.readline()))

    def test_mutant(self, mutant: Mutant, files: list[str], limit_s: float, chosen: list[str]) -> dict[str, Any]:
        """Result of the tests while ``mutant`` is in the sources."""
        path = self.source / mutant.file
        kept, times = path.read_bytes(), path.stat()
        try:
            path.write_bytes(mutant.apply(kept))
            self._clock += 2
            os.utime(path, (self._clock, self._clock))
            return self.test(files, limit_s, chosen=chosen)
        finally:
            path.write_bytes(kept)
            os.utime(path, (times.st_atime, times.st_mtime))


@dataclass(frozen=True)
class Calls:
    """Functions that the tests of a file call, in their process and its children, and each test's duration."""

    seconds: dict[str, float]  # of each test
    callers: dict[str, list[str]]  # tests that call a function, by "file function"; what imports call has ""
    broken: bool = False  # fails without any mutant
    imports: tuple[str, ...] | None = None  # files of the sources that it imports; None where calls were recorded
    reached: tuple[str, ...] = ()  # what these import, and so on

    def tests_of(self, mutant: Mutant) -> list[str] | None:
        """Tests that call the mutant's function, quickest first; empty if all tests may; None if no test does."""
        if self.imports is not None:
            return [] if mutant.file in self.reached else None
        found = self.callers.get(f"{mutant.file} {mutant.function}")
        if found is None:
            return None
        tests = self.seconds if "" in found else found
        return sorted(tests, key=lambda test: self.seconds.get(test, 0.0))


def imported(file: str) -> tuple[str, ...]:
    """Source files that a test file imports, directly or through another file of its folder."""
    found: set[str] = set()
    for node in ast.walk(ast.parse((ROOT / file).read_bytes())):
        if isinstance(node, ast.Import):
            found |= {f"{alias.name.replace('.', '/')}.py" for alias in node.names}
        if isinstance(node, ast.ImportFrom) and node.module:
            inside = [f"{node.module}.{alias.name}" for alias in node.names]
            found |= {f"{name.replace('.', '/')}.py" for name in (node.module, *inside)}
            beside = Path(file).with_name(f"{node.module}.py")
            if file.startswith("tests/") and (ROOT / beside).exists():
                found |= set(imported(str(beside)))
    packages = {name.removesuffix(".py") + "/__init__.py" for name in found}  # names may be imported from a package
    return tuple(sorted(name for name in found | packages if (ROOT / "src" / name).exists()))


def reached(files: Iterable[str]) -> tuple[str, ...]:
    """``files`` and all source files that they import, directly or indirectly."""
    found: set[str] = set()
    waiting = list(files)
    while waiting:
        if (file := waiting.pop()) not in found:
            found.add(file)
            waiting += _inside(file)
    return tuple(sorted(found))


@functools.cache
def _inside(file: str) -> tuple[str, ...]:
    """Modules that a file imports or names in strings; for files that import by a table, those of its folder."""
    path = ROOT / "src" / file
    text = path.read_text(encoding="utf-8")
    names = {name.replace(".", "/") for name in re.findall(r'"(chipwise(?:\.\w+)+)', text)}
    found = {*imported(f"src/{file}"), *(f"{name}{end}" for name in names for end in (".py", "/__init__.py"))}
    if "import_module(" in text:
        found |= {str(each.relative_to(ROOT / "src")) for each in path.parent.glob("*.py")}
    for room in re.findall(r'import_module\(f"(chipwise(?:\.\w+)+)\.\{', text):
        inside = ROOT / "src" / room.replace(".", "/")
        found |= {str(each.relative_to(ROOT / "src")) for each in inside.rglob("*.py")}
    return tuple(sorted(name for name in found if (ROOT / "src" / name).exists()))


def record(copies: queue.Queue[Copy], files: list[str], workers: int) -> dict[str, Calls]:
    """Functions that each test file calls."""

    def one(file: str) -> tuple[str, Calls]:
        mine = copies.get()
        out = mine.source.parent / "calls.tsv"
        try:
            out.write_text("")
            answer = mine.test([file], 1800, calls=out)
            if answer["code"] not in PASSED:
                print(f"{answer['failed'] or file}: fails without a mutant; the file is left out", file=sys.stderr)
                return file, Calls({}, {}, broken=True)
            callers: dict[str, set[str]] = defaultdict(set)
            for line in out.read_text().splitlines():
                test, path, function = line.split("\t")
                callers[f"{path} {function}"].add(test)
            return file, Calls(answer["seconds"], {name: sorted(tests) for name, tests in callers.items()})
        finally:
            copies.put(mine)

    with ThreadPoolExecutor(workers) as pool:
        return dict(shown("calls", len(files), pool.map(one, files)))


def shown(what: str, total: int, items: Iterator[Item]) -> Iterator[Item]:
    """``items``, with a progress line in a terminal."""
    for done, item in enumerate(items, 1):
        if sys.stderr.isatty():
            print(f"\r{what} {done}/{total}", end="\n" if done == total else "", file=sys.stderr, flush=True)
        yield item


def test_files(package: str) -> list[str]:
    """The test files of a package."""
    folders = (ROOT / name for name in TESTS[package])
    return sorted(str(path.relative_to(ROOT)) for folder in folders for path in folder.rglob("test_*.py"))


def equivalent() -> dict[tuple[str, ...], str]:
    """Reasons why listed mutants are equivalent to the original."""
    return {key_of(row): row["reason"] for row in read(EQUIVALENT)}


def key_of(row: dict[str, str]) -> tuple[str, ...]:
    """The mutant's key, from a row of a table."""
    return tuple(row[name] for name in ("file", "function", "text", "column", "before", "after"))


def read(path: Path) -> list[dict[str, str]]:
    """The rows of a table."""
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def main() -> int:
    """Draws, runs, prints and writes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--n", type=int, default=105)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--packages", default=",".join(TESTS), help="separated by commas")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--bar", type=float, default=0.9, help="least share that must be killed")
    parser.add_argument("--calls", type=Path, help="keep what tests call in this file, and use it if it is there")
    parser.add_argument("--by-imports", action="store_true", help="record nothing: run files that reach the module")
    parser.add_argument("--list", action="store_true", help="only print the mutants")
    parser.add_argument("--out", type=Path, help="table; rows that it holds are kept, so a run can be continued")
    parser.add_argument("--again", action="store_true", help="run what survived in --out once more")
    options = parser.parse_args()
    packages = options.packages.split(",")
    if unknown := set(packages) - set(TESTS):
        parser.error(f"--packages: unknown {', '.join(sorted(unknown))}; known: {', '.join(TESTS)}")
    mutants, reasons = sample(packages, options.n, options.seed), equivalent()
    if options.list:
        for mutant in mutants:
            print(f"{mutant.file}:{mutant.node.lineno} {mutant.function}: {mutant.before} -> {mutant.code}")
        return 0
    known = {key_of(row): row for row in read(options.out)} if options.out and options.out.exists() else {}
    if options.again:
        known = {key: row for key, row in known.items() if row["outcome"] != "survived"}
    rows: list[dict[str, Any]] = [known[mutant.key()] for mutant in mutants if mutant.key() in known]
    waiting = [mutant for mutant in in_turn(mutants) if mutant.key() not in known]
    with tempfile.TemporaryDirectory(prefix="mutation") as folder:
        every = [Copy(Path(folder, str(i))) for i in range(options.workers)]
        copies: queue.Queue[Copy] = queue.Queue()
        for one in every:
            copies.put(one)
        if options.by_imports:
            stored = json.loads(options.calls.read_text()) if options.calls and options.calls.exists() else {}
            calls = {
                file: Calls(
                    stored.get(file, {}).get("seconds", {}),  # for the order
                    {},
                    imports=imported(file),
                    reached=reached(imported(file)),
                )
                for package in packages
                for file in test_files(package)
            }
        else:
            calls = _calls(copies, packages, options.calls, options.workers)
        written = threading.Lock()

        def run(mutant: Mutant) -> None:
            row = judge(mutant, reasons.get(mutant.key()), copies, calls)
            with written:
                rows.append(row)
                if options.out:
                    write(options.out, rows)

        with ThreadPoolExecutor(options.workers) as pool:
            for _ in shown("mutants", len(waiting), pool.map(run, waiting)):
                pass
        for one in every:
            one.close()
    return report(rows, packages, options.bar)


def _calls(copies: queue.Queue[Copy], packages: list[str], kept: Path | None, workers: int) -> dict[str, Calls]:
    stored = json.loads(kept.read_text()) if kept and kept.exists() else {}
    known = {}
    for package in packages:
        for file in test_files(package):
            digest = hashlib.sha256((ROOT / file).read_bytes()).hexdigest()
            if file in known:
                continue
            if file not in stored or stored[file]["digest"] != digest:
                found = record(copies, [file], workers)[file]
                stored[file] = {"digest": digest, **asdict(found)}
            fields = {name: value for name, value in stored[file].items() if name != "digest"}
            known[file] = Calls(**fields)
            if kept:
                kept.write_text(json.dumps(stored))
    return known


def judge(mutant: Mutant, reason: str | None, copies: queue.Queue[Copy], calls: dict[str, Calls]) -> dict[str, Any]:
    """One row with the result of the tests for ``mutant``."""
    stem = Path(mutant.file).stem
    mine = {file: known for file, known in calls.items() if file.startswith(TESTS[mutant.package]) and not known.broken}
    found = {file: known.tests_of(mutant) for file, known in mine.items()}
    calling = {file: tests for file, tests in found.items() if tests is not None} or {file: [] for file in mine}

    def rank(file: str) -> tuple[bool, bool, float]:
        """Sort key: test files named after the module, then those that import it, then the quickest."""
        known = calls[file]
        return stem not in Path(file).stem, mutant.file not in (known.imports or ()), sum(known.seconds.values())

    order = sorted(calling, key=rank)
    chosen = [test for file in order for test in calling[file]]
    seconds = {test: s for file in order for test, s in calls[file].seconds.items()}
    limit_s = 60 + 5 * sum(seconds.get(test, 0.0) for test in chosen or seconds) if seconds else LIMIT_S
    limit_s = min(limit_s, LIMIT_S)
    place = copies.get()
    started = time.monotonic()
    try:
        answer = place.test_mutant(mutant, order, limit_s, chosen)
    finally:
        copies.put(place)
    if answer["code"] == pytest.ExitCode.USAGE_ERROR:  # of no mutant
        raise SystemExit(f"pytest cannot begin with {', '.join(order)}: is each of these files there?")
    outcome = "time limit" if answer["code"] is None else "survived" if answer["code"] in PASSED else "killed"
    if outcome == "survived" and reason:
        outcome = "equivalent"
    return {
        "package": mutant.package,
        "file": mutant.file,
        "line": mutant.node.lineno,
        "function": mutant.function,
        "text": mutant.text,
        "column": str(mutant.column),
        "kind": mutant.kind,
        "before": mutant.before,
        "after": mutant.code,
        "outcome": outcome,
        "seconds": round(time.monotonic() - started, 1),
        "by": answer["failed"][0] if answer["failed"] else "",
        "reason": reason if outcome == "equivalent" else "",
        **here(),
    }


def write(path: Path, rows: list[dict[str, Any]]) -> None:
    """The rows so far as CSV."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        writer.writerows(rows)


def report(rows: list[dict[str, Any]], packages: list[str], bar: float) -> int:
    """Prints survivors and shares; returns 1 if too few were killed."""
    for row in rows:
        if row["outcome"] in ("survived", "equivalent"):
            reason = f"  ({row['reason']})" if row["reason"] else ""
            print(f"{row['outcome']}: {row['file']}:{row['line']} {row['before']} -> {row['after']}{reason}")
    counts: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for row in rows:
        for name in (str(row["package"]), "all"):
            counts[name][str(row["outcome"])] += 1
    shares = {}
    for name in (*packages, "all"):
        found = counts[name]
        killed = found["killed"] + found["time limit"]
        shares[name] = killed / max(1, killed + found["survived"])
        print(
            f"{name:10} killed {killed} of {killed + found['survived']} ({100 * shares[name]:.0f} %), of these at the "
            f"time limit {found['time limit']}; equivalent {found['equivalent']}"
        )
    return int(shares["all"] < bar)


if __name__ == "__main__":
    sys.exit(main())
