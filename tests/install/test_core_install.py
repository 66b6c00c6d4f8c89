"""After ``pip install .`` alone the core works; everything else ends with one line that names the extra."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.install

WORKS = [
    "estimate gpt2 --device l4",
    "estimate gpt2 --device all",
    "training-step gpt2 --batch 8",
    "estimate Qwen/Qwen3-8B --train-tokens 2T",
    "explain gpt2 --device l4",
    "compare gpt2 Qwen/Qwen3-0.6B --device l4,h100-sxm",
    "devices",
    "devices show l4",
    "models llama",
    "runtimes",
    "strategies",
    "measurements",
    "init --list",
    "init clinic --out written.yaml",
    "space smoke.yaml --device raspberry-pi-5 --draws 100",
    "--version",
]
NAMES_WHAT_IS_MISSING = {
    "search smoke.yaml": r"pip install 'chipwise\[search\]'",
    "measure gpt2": r"pip install 'chipwise\[search\]'",
    "calibrate": r"pip install 'chipwise\[search\]'",
    "train gpt2 --steps 1": r"pip install 'chipwise\[search\]'",
    "evaluate nowhere --task organ-system": "nowhere: there is no such folder",
    "shrink nowhere": "nowhere: there is no such folder",
    "sensitivity nowhere --text smoke.yaml": "nowhere: there is no such folder",
    "explain gpt2 --device l4 --html page.html": r"pip install 'chipwise\[search\]'",
    "report nowhere": "holds no run",
    "validate gemm --truth nowhere --out out.csv": "chipwise-fitting is not installed",
    "fit --from aiconfigurator": "chipwise-fitting is not installed",
    "ops --table nowhere --out out.csv": "chipwise-fitting is not installed",
    "explain gpt2 --device here": "calibrate",
    "search nowhere.yaml": "nowhere.yaml: there is no such file",
}


@pytest.fixture(scope="session")
def core(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The executables of an environment with only chipwise and its core dependencies."""
    home = tmp_path_factory.mktemp("core")
    subprocess.run([sys.executable, "-m", "venv", home / "venv"], check=True)
    done = subprocess.run(
        [home / "venv/bin/python", "-m", "pip", "install", "-q", "-c", ROOT / "constraints.txt", ROOT],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode and re.search("No matching distribution|Connection|Temporary failure", done.stderr):
        pytest.skip("needs a package index")
    assert done.returncode == 0, done.stderr
    return home / "venv" / "bin"


@pytest.fixture
def run(core: Path, tmp_path: Path):
    """Runs a command line of the installed program in an empty folder with a run file."""
    environment = {"PATH": f"{core}:{os.environ['PATH']}", "CHIPWISE_HOME": str(tmp_path / "home"), "LANG": "C.UTF-8"}

    def run(line: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [core / "chipwise", *line.split()],
            capture_output=True, text=True, cwd=tmp_path, env=environment, timeout=300, check=False,
        )  # fmt: skip

    run("init smoke")
    return run


def commands(text: str) -> list[str]:
    return re.findall(r"^  ([a-z]+) ", text.partition("Options:")[2], flags=re.MULTILINE)


def test_every_command_explains_itself(run) -> None:
    shown = run("--help")
    names = commands(shown.stdout)
    assert {"estimate", "search", "devices", "init"} <= set(names)
    for name in names:
        done = run(f"{name} --help")
        assert done.returncode == 0, name
        assert done.stdout.startswith("Usage:"), name


@pytest.mark.parametrize("line", WORKS)
def test_what_needs_no_extra_works(run, line: str) -> None:
    done = run(line)
    assert (done.returncode, "Traceback" in done.stderr) == (0, False), done.stderr
    assert done.stdout or line.startswith("init")


@pytest.mark.parametrize("line", NAMES_WHAT_IS_MISSING)
def test_what_needs_an_extra_says_so_in_one_line(run, line: str) -> None:
    done = run(line)
    assert done.returncode in (1, 2)
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("error: ")
    assert re.search(NAMES_WHAT_IS_MISSING[line], last)
    assert sum(text.startswith("error:") for text in done.stderr.splitlines()) == 1
    assert "Traceback" not in done.stderr
    assert "ModuleNotFoundError" not in done.stderr


def test_every_public_name_loads_and_functions_say_what_is_missing(core: Path, tmp_path: Path) -> None:
    code = (
        "import chipwise\n"
        "from chipwise import *\n"
        "assert chipwise.estimate('gpt2', device='l4').tpot_s > 0\n"
        "own = lambda: search_module('net.py', parameters='<= 1k')\n"
        "for call in (lambda: measure('gpt2'), lambda: train('gpt2', steps=1), own):\n"
        "    try: call()\n"
        "    except chipwise.errors.MissingExtra as error: assert 'chipwise[search]' in str(error)\n"
        "    else: raise SystemExit('no error')\n"
    )
    subprocess.run([core / "python", "-c", code], check=True, cwd=tmp_path)
