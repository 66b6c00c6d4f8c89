"""Cost of importing, public names, and import contracts between rooms."""

from __future__ import annotations

import ast
import inspect
import os
import subprocess
import sys
from pathlib import Path

import pytest

import chipwise
from chipwise.core.workers import HUGE_PAGES

HEAVY = {"torch", "onnx", "onnxruntime", "optuna", "transformers", "tokenizers", "safetensors", "plotly", "scipy"}
SOURCE = Path(chipwise.__file__).parent


def loaded_by(code: str) -> set[str]:
    """Top-level modules that a fresh interpreter has after ``code``."""
    program = f"{code}\nimport sys; print(*{{name.partition('.')[0] for name in sys.modules}}, file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=300)
    return set(done.stderr.split())


def test_importing_chipwise_loads_nothing_heavy() -> None:
    assert not loaded_by("import chipwise") & (HEAVY | {"numpy", "yaml", "typer"})


@pytest.mark.parametrize(
    "room",
    [
        *(
            "core.files",
            "core.units",
            "model.published.read",
            "model.ops.graph",
            "hardware.datasheet",
            "predict.cost.model",
        ),
        *(
            "model.space.search_space",
            "model.walk.lower",
            "predict.served.estimate",
            "predict.explain.explanation",
            "api",
        ),
    ],
)
def test_the_analytic_rooms_load_nothing_heavy(room: str) -> None:
    assert not loaded_by(f"import chipwise.{room}") & HEAVY


def test_the_measuring_process_loads_its_runtime_alone() -> None:
    """Its peak memory is that of serving."""
    code = (
        "import chipwise.deploy.measure.worker\n"
        "from chipwise.deploy.runtimes import RUNTIMES\n"
        "RUNTIMES.load('onnxruntime')()"
    )
    assert loaded_by(code) & HEAVY == {"onnxruntime"}


def test_help_loads_nothing_heavy() -> None:
    code = (
        "import sys; sys.argv = ['chipwise', '--help']\n"
        "import chipwise.cli\n"
        "try: chipwise.cli.main()\n"
        "except SystemExit: pass"
    )
    assert not loaded_by(code) & (HEAVY | {"numpy"})


def test_the_public_names_are_those_of_the_api_and_say_what_they_are() -> None:
    assert chipwise.api.__all__ == sorted(chipwise.api.__all__)
    assert set(chipwise.__all__) == {*chipwise.api.__all__, "__version__", "errors"}
    for name in chipwise.__all__:
        assert getattr(chipwise, name).__doc__ or name.startswith("__"), f"{name} has no docstring"


def test_the_public_functions_check_their_arguments() -> None:
    for name in chipwise.api.__all__:
        value = getattr(chipwise, name)
        if inspect.isfunction(value):
            with pytest.raises(chipwise.errors.UnknownName, match="'no_such_argument'"):
                value(no_such_argument=1)


def test_no_module_registers_itself_or_runs_at_import() -> None:
    """Packages only re-export: their ``__init__`` holds a docstring, imports, names."""
    allowed = (ast.Expr, ast.Import, ast.ImportFrom, ast.Assign, ast.AnnAssign, ast.FunctionDef, ast.If, ast.ClassDef)
    for file in SOURCE.rglob("*.py"):
        tree = ast.parse(file.read_text(encoding="utf-8"))
        assert ast.get_docstring(tree), f"{file.relative_to(SOURCE)} does not say why it exists"
        if file.name == "__init__.py":
            strange = [node for node in tree.body if not isinstance(node, allowed)]
            assert not strange, f"{file.relative_to(SOURCE)} does more than re-export"


def calls(tree: ast.AST) -> list[ast.Call]:
    return [node for node in ast.walk(tree) if isinstance(node, ast.Call)]


def test_nothing_that_files_hold_can_run() -> None:
    """No eval, exec or pickle, and torch loads weights only. (YAML has one reader, a safe one.)"""
    for file in SOURCE.rglob("*.py"):
        tree = ast.parse(file.read_text(encoding="utf-8"))
        for call in calls(tree):
            name = ast.unparse(call.func)
            assert name not in {"eval", "exec", "__import__"}, f"{file.name}:{call.lineno} calls {name}"
            if name == "torch.load":
                said = {keyword.arg: ast.unparse(keyword.value) for keyword in call.keywords}
                assert said.get("weights_only") == "True", f"{file.name}:{call.lineno}"
            if name.startswith("yaml."):
                assert file.name == "files.py", f"{file.name}:{call.lineno} reads YAML past core.files"
        for node in ast.walk(tree):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            assert not {"pickle", "marshal", "shelve", "dill"} & set(names), f"{file.name}:{names}"


def test_rooms_import_downwards_only() -> None:
    """Checks the import contracts of pyproject.toml, as ``make check`` does."""
    from importlinter.cli import EXIT_STATUS_SUCCESS, lint_imports

    assert lint_imports(config_filename=str(SOURCE.parents[1] / "pyproject.toml"), no_cache=True) == EXIT_STATUS_SUCCESS


def test_no_package_shares_its_name_with_a_public_function() -> None:
    packages = {path.parent.name for path in SOURCE.glob("*/__init__.py")}
    assert not packages & set(chipwise.__all__)


@pytest.mark.parametrize(("own", "found"), [({}, "1"), ({HUGE_PAGES: "0"}, "0")])
def test_trainings_ask_for_huge_pages_unless_the_user_chose(own: dict[str, str], found: str) -> None:
    code = f"import chipwise.training, os; print(os.environ[{HUGE_PAGES!r}])"
    environment = {name: value for name, value in os.environ.items() if name != HUGE_PAGES} | own
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    assert done.stdout.strip() == found
