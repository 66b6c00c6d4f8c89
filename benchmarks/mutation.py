"""How many small faults in the code are found by the tests of the same package.

    nice python benchmarks/mutation.py --n 105 --seed 1 --out mutation.csv
    nice python benchmarks/mutation.py --packages cost,serve --n 20 --seed 2

Draws mutants, as many from each package: a comparison or sign reversed, a number off by one, a term dropped, a constant
doubled, min for max, another value returned. Each runs against the unit tests of its package alone, in a copy of the
sources. The functions that each test file calls are recorded first, with one run per file. A mutant is tested with the
files that call its function, the quickest first, until one fails; if no test calls the function in its own process
(worker processes, command lines), with all files of the package.

Mutants that change nothing observable are listed in mutation-equivalent.csv with the reason; they are printed and
written, and not counted. A run over the time limit counts as killed and is reported as such.

Columns: package, file, line, function, kind, before, after, outcome (killed, time limit, survived, equivalent),
seconds, by (the first failing test), reason (of an equivalent mutant). Exit code 1 if the killed share is below --bar.
"""

from __future__ import annotations

import argparse
import ast
import compileall
import copy
import csv
import json
import os
import queue
import random
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

Item = TypeVar("Item")
ROOT = Path(__file__).resolve().parents[1]
EQUIVALENT = Path(__file__).with_name("mutation-equivalent.csv")
COLUMNS = ("package", "file", "line", "function", "kind", "before", "after", "outcome", "seconds", "by", "reason")
TESTS = {  # what each package answers for itself
    "cost": ("tests/unit/cost",),
    "serve": ("tests/unit/serve",),
    "space": ("tests/unit/space",),
    "optim": ("tests/unit/optim",),
    "pipeline": ("tests/unit/pipeline", "tests/unit/run"),
    "run": ("tests/unit/run", "tests/unit/pipeline"),
    "deploy": ("tests/unit/deploy",),
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
NEGATED = {"float", "int", "Float64Array"}
EMPTY = {"str": "''", "list": "[]", "tuple": "()", "dict": "{}"}
TRACER = """
import json, os, sys, threading
SOURCE, OUT = os.environ["MUTATION_SOURCE"], os.environ["MUTATION_CALLS"]
seen = set()
def note(frame, event, argument):
    code = frame.f_code
    if code.co_filename.startswith(SOURCE):
        seen.add((code.co_filename[len(SOURCE) + 1:], code.co_qualname))
def pytest_configure(config):
    threading.settrace(note)
    sys.settrace(note)
def pytest_unconfigure(config):
    sys.settrace(None)
    with open(OUT, "w") as file:
        json.dump(sorted(seen), file)
"""


@dataclass(frozen=True, kw_only=True)
class Mutant:
    """One changed expression: ``node`` of the file is replaced by ``code``."""

    package: str
    file: str  # below src
    function: str  # qualified name, or <module>
    kind: str
    node: ast.expr
    code: str

    @property
    def before(self) -> str:
        """The expression as it is."""
        return ast.unparse(self.node)

    def key(self) -> tuple[str, str, str, str]:
        """What identifies the mutant in the list of equivalent ones."""
        return self.file, self.function, self.before, self.code

    def apply(self, source: bytes) -> bytes:
        """``source`` with the expression replaced."""
        node, lines = self.node, source.splitlines(keepends=True)
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        start = sum(map(len, lines[: node.lineno - 1])) + node.col_offset
        end = sum(map(len, lines[: node.end_lineno - 1])) + node.end_col_offset
        return source[:start] + f"({self.code})".encode() + source[end:]


def changes(node: ast.AST, returns: str) -> Iterator[tuple[str, ast.expr, str]]:
    """Kind, expression and replacement of each mutant that starts at ``node``, in a function that ``returns`` so."""
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
    file = str(path.relative_to(ROOT / "src"))

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
            yield Mutant(package=package, file=file, function=function, kind=kind, node=found, code=code)
        for field, value in ast.iter_fields(node):
            if field in ("annotation", "returns", "decorator_list", "bases"):
                continue
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST):
                    yield from walk(child, function, returns)

    yield from walk(ast.parse(path.read_bytes()), "<module>", "")


def sample(packages: list[str], n: int, seed: int) -> list[Mutant]:
    """``n`` mutants, as many from each package (the first ones have one more where it does not come out even)."""
    chosen: list[Mutant] = []
    for i, package in enumerate(packages):
        files = sorted((ROOT / "src" / "chipwise" / package).rglob("*.py"))
        every = [mutant for path in files for mutant in mutants_of(package, path)]
        count = n // len(packages) + (i < n % len(packages))
        chosen += random.Random(f"{seed}/{package}").sample(every, min(count, len(every)))
    return chosen


class Copy:
    """The sources once more, for one mutant at a time."""

    def __init__(self, folder: Path) -> None:
        self.source = folder / "src"
        shutil.copytree(ROOT / "src", self.source, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
        compileall.compile_dir(self.source, quiet=2)
        self._clock = time.time() + 10  # a changed file must not be taken for the compiled one

    def test(
        self, files: list[str], limit_s: float, mutant: Mutant | None = None, **environment: str
    ) -> tuple[int | None, str]:
        """Exit code of the tests (None at the time limit) and the first that failed."""
        path = self.source / mutant.file if mutant else None
        kept = path.read_bytes() if path else b""
        if path and mutant:
            times = path.stat()
            path.write_bytes(mutant.apply(kept))
            self._clock += 2
            os.utime(path, (self._clock, self._clock))
        plugin = ["-p", "mutation_tracer"] if "MUTATION_CALLS" in environment else []
        process = subprocess.Popen(
            [sys.executable, "-m", "pytest", "-x", "-q", "--tb=no", *plugin, *files],
            cwd=ROOT,
            env={
                **os.environ,
                **environment,
                "PYTHONPATH": os.pathsep.join([str(self.source), str(self.source.parent), str(ROOT / "benchmarks")]),
                "PYTHONDONTWRITEBYTECODE": "1",
                "OMP_NUM_THREADS": "1",
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
        )
        try:
            out, _ = process.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)
            process.communicate()
            return None, ""
        finally:
            if path:
                path.write_bytes(kept)
                os.utime(path, (times.st_atime, times.st_mtime))
        failed = [line for line in out.splitlines() if line.startswith(("FAILED", "ERROR"))]
        return process.returncode, failed[0].split(" - ")[0] if failed else ""


@dataclass(frozen=True)
class Calls:
    """What a test file calls, and how long it takes."""

    seconds: float
    functions: frozenset[tuple[str, str]]
    broken: bool = False  # fails without any mutant


def record(copies: queue.Queue[Copy], files: list[str], workers: int) -> dict[str, Calls]:
    """What each test file calls in its own process."""

    def one(file: str) -> tuple[str, Calls]:
        mine = copies.get()
        out = mine.source.parent / "calls.json"
        started = time.monotonic()
        try:
            code, failed = mine.test([file], 900, MUTATION_SOURCE=str(mine.source), MUTATION_CALLS=str(out))
            if code not in (0, 5):
                print(f"{failed or file} fails without a mutant; the file is left out", file=sys.stderr)
                return file, Calls(0.0, frozenset(), broken=True)
            return file, Calls(time.monotonic() - started, frozenset((a, b) for a, b in json.loads(out.read_text())))
        finally:
            copies.put(mine)

    with ThreadPoolExecutor(workers) as pool:
        return dict(shown("calls", len(files), pool.map(one, files)))


def shown(what: str, total: int, items: Iterator[Item]) -> Iterator[Item]:
    """``items`` with a progress line where a person looks on."""
    for done, item in enumerate(items, 1):
        if sys.stderr.isatty():
            print(f"\r{what} {done}/{total}", end="\n" if done == total else "", file=sys.stderr, flush=True)
        yield item


def test_files(package: str) -> list[str]:
    """The test files of a package."""
    folders = (ROOT / name for name in TESTS[package])
    return sorted(str(path.relative_to(ROOT)) for folder in folders for path in folder.rglob("test_*.py"))


def equivalent() -> dict[tuple[str, str, str, str], str]:
    """Reasons of the mutants that change nothing."""
    with EQUIVALENT.open(newline="", encoding="utf-8") as file:
        rows = csv.DictReader(file)
        return {(row["file"], row["function"], row["before"], row["after"]): row["reason"] for row in rows}


def main() -> int:
    """Draws, runs, prints and writes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--n", type=int, default=105)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--packages", default=",".join(TESTS), help="separated by commas")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--bar", type=float, default=0.9, help="least share that must be killed")
    parser.add_argument("--calls", type=Path, help="keep what tests call in this file, and use it if it is there")
    parser.add_argument("--list", action="store_true", help="only print the mutants")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    packages = options.packages.split(",")
    if unknown := set(packages) - set(TESTS):
        parser.error(f"--packages: unknown {', '.join(sorted(unknown))}; known: {', '.join(TESTS)}")
    mutants, reasons = sample(packages, options.n, options.seed), equivalent()
    if options.list:
        for mutant in mutants:
            print(f"{mutant.file}:{mutant.node.lineno} {mutant.function}: {mutant.before} -> {mutant.code}")
        return 0
    with tempfile.TemporaryDirectory(prefix="mutation") as folder:
        copies: queue.Queue[Copy] = queue.Queue()
        for i in range(options.workers):
            place = Path(folder, str(i))
            place.mkdir()
            (place / "mutation_tracer.py").write_text(TRACER)
            copies.put(Copy(place))
        calls = _calls(copies, packages, options.calls, options.workers)
        written = threading.Lock()
        rows: list[dict[str, object]] = []

        def run(mutant: Mutant) -> dict[str, object]:
            row = judge(mutant, reasons.get(mutant.key()), copies, calls)
            with written:
                rows.append(row)
                if options.out:
                    write(options.out, rows)
            return row

        with ThreadPoolExecutor(options.workers) as pool:
            done = list(shown("mutants", len(mutants), pool.map(run, mutants)))
    if options.out:
        write(options.out, done)
    return report(done, packages, options.bar)


def _calls(copies: queue.Queue[Copy], packages: list[str], kept: Path | None, workers: int) -> dict[str, Calls]:
    files = sorted({file for package in packages for file in test_files(package)})
    known: dict[str, Calls] = {}
    if kept and kept.exists():
        stored = json.loads(kept.read_text())
        known = {name: Calls(s, frozenset((a, b) for a, b in f)) for name, (s, f) in stored.items()}
    known |= record(copies, [file for file in files if file not in known], workers)
    if kept:
        kept.write_text(
            json.dumps({name: (c.seconds, sorted(c.functions)) for name, c in known.items() if not c.broken})
        )
    return known


def judge(mutant: Mutant, reason: str | None, copies: queue.Queue[Copy], calls: dict[str, Calls]) -> dict[str, object]:
    """One row: what the tests say of ``mutant``."""
    files = [file for file in test_files(mutant.package) if not calls[file].broken]
    stem = Path(mutant.file).stem
    calling = [file for file in files if (mutant.file, mutant.function) in calls[file].functions] or files
    calling.sort(key=lambda file: (stem not in Path(file).stem, calls[file].seconds))
    limit_s = 120 + 10 * sum(calls[file].seconds for file in calling)
    mine = copies.get()
    started = time.monotonic()
    try:
        code, failed = mine.test(calling, limit_s, mutant)
    finally:
        copies.put(mine)
    outcome = "time limit" if code is None else "killed" if code else "survived"
    if outcome == "survived" and reason:
        outcome = "equivalent"
    return {
        "package": mutant.package,
        "file": mutant.file,
        "line": mutant.node.lineno,
        "function": mutant.function,
        "kind": mutant.kind,
        "before": mutant.before,
        "after": mutant.code,
        "outcome": outcome,
        "seconds": round(time.monotonic() - started, 1),
        "by": failed,
        "reason": reason if outcome == "equivalent" else "",
    }


def write(path: Path, rows: list[dict[str, object]]) -> None:
    """The rows so far as CSV."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        writer.writerows(rows)


def report(rows: list[dict[str, object]], packages: list[str], bar: float) -> int:
    """Prints survivors and shares; 1 if too few were killed."""
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
