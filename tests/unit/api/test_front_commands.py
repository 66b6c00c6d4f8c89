"""The commands that list, complete and write run files."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

import chipwise
from chipwise.cli import completion
from chipwise.cli.app import app
from chipwise.cli.init import EXAMPLES, kinds
from chipwise.design.fleet.agent_loop import read_loop
from chipwise.design.run.start_spec import load_any
from chipwise.errors import InputError, UnknownName
from chipwise.hardware import datasheet


def run(*words: str):
    return CliRunner().invoke(app, [*words], catch_exceptions=False)


def test_the_version_is_that_of_the_package() -> None:
    assert run("--version").output == f"chipwise {chipwise.__version__}\n"


def test_lists_are_json_too() -> None:
    models = json.loads(run("models", "llama-3.1", "--json").output)
    assert {model["name"] for model in models} == {f"meta-llama/Llama-3.1-{size}" for size in ("8B", "70B", "405B")}
    listed = json.loads(run("runtimes", "--json").output)
    assert {"vllm", "onnxruntime"} <= {runtime["name"] for runtime in listed["runtimes"]}
    assert "int4" in listed["weights"]
    with pytest.raises(UnknownName, match="unknown model"):
        run("models", "no-such-model")


@pytest.mark.parametrize("words", [("models",), ("runtimes",), ("init", "--list")])
def test_lists_fit_80_columns(words, monkeypatch: pytest.MonkeyPatch) -> None:
    environment = os.environ | {"COLUMNS": "80"}
    code = "from chipwise.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code, *words], capture_output=True, text=True, env=environment, check=True
    )
    assert max(map(len, done.stdout.splitlines())) <= 80


@pytest.mark.parametrize("kind", [kind for kind in kinds() if kind != "convnet"])  # a Python file
def test_init_writes_a_run_file_that_is_read(kind: str, tmp_path: Path) -> None:
    target = tmp_path / "mine.yaml"
    assert run("init", kind, "--out", str(target)).exit_code == 0
    text = target.read_text(encoding="utf-8")
    assert text.startswith("# ")
    read = read_loop if kind == "agent" else load_any
    assert read(target).name == ("robot" if kind == "agent" else kind)
    assert f"chipwise {'agent' if kind == 'agent' else 'search'} mine.yaml" in text
    with pytest.raises(InputError, match="exists"):
        run("init", kind, "--out", str(target))


def test_init_writes_a_module_that_a_search_reads(tmp_path: Path) -> None:
    target = tmp_path / "mine.py"
    assert run("init", "convnet", "--out", str(target)).exit_code == 0
    assert "chipwise search --model mine.py" in target.read_text(encoding="utf-8")


def test_init_names_what_it_cannot_do(tmp_path: Path) -> None:
    with pytest.raises(UnknownName, match="did you mean 'clinic'"):
        run("init", "clinik", "--out", str(tmp_path / "x.yaml"))
    with pytest.raises(InputError, match="no such folder"):
        run("init", "clinic", "--out", str(tmp_path / "nowhere" / "x.yaml"))


def test_no_run_file_reads_outside_its_folder() -> None:
    """Examples must work if chipwise is installed from a wheel."""
    for path in EXAMPLES.glob("*.yaml"):
        assert "../" not in path.read_text(encoding="utf-8"), path.name


def test_files_of_an_installed_package_are_text(tmp_path: Path) -> None:
    from chipwise.errors import DataError
    from chipwise.training.data.text import load_corpus

    fields = {"source": "files", "entries": "files", "paths": ["package:chipwise/*/*.py"]}
    assert load_corpus(fields, base=tmp_path).bytes_train > 100_000
    with pytest.raises(DataError, match="the package 'nobodys_package' is not installed"):
        load_corpus(fields | {"paths": ["package:nobodys_package/*.txt"]}, base=tmp_path)


def test_names_complete_as_they_are_typed() -> None:
    assert completion.devices("h100-s") == ["h100-sxm"]
    assert set(completion.devices("")) == {*datasheet.names(), "all", "here"}
    assert completion.models("HuggingFaceTB/SmolLM3") == ["HuggingFaceTB/SmolLM3-3B"]
    assert completion.models("smollm3") == ["smollm3-3B"]
    assert chipwise.resolve("smollm3-3B").name
    assert completion.runtimes("vl") == ["vllm", "vllm-mlx"]


def test_a_run_file_that_is_missing_is_named_before_torch_is_loaded() -> None:
    code = "import sys\nfrom chipwise.cli import main\nsys.argv = ['chipwise', 'search', 'nowhere.yaml']\n"
    code += "try: main()\nfinally: print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "False\n")
    assert done.stderr == "error: nowhere.yaml: there is no such file\n"
