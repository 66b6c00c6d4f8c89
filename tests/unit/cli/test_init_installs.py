"""The install that a run file's first comment names suffices: everything the run imports up to its data is there."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

from chipwise.core.extras import EXTRA_OF

EXAMPLES = sorted((Path(__file__).parents[3] / "examples").glob("*.yaml"))
INSTALL = re.compile(r"^#   pip install '?chipwise(?:\[([a-z,-]+)\])?'?", re.MULTILINE)
OF_THE_SYSTEM = {"fashion-mnist", "espeak", "movielens-100k"}  # data that a line beside it installs

# In a process of its own every optional package outside the named extras cannot be imported. The file is read, its data
# opened, and what exports and reports is loaded.
CHILD = """
import sys, tempfile
from pathlib import Path

blocked = set(sys.argv[2].split())

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in blocked:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Blocker())
import yaml
from chipwise.api.runs import _read
from chipwise.design.run.spec import RunSpec
opened = sys.argv[1].split()
for file in sys.argv[3:]:
    if "device" in yaml.safe_load(Path(file).read_text()):
        from chipwise.cli.app import app
        app(["agent", file], standalone_mode=False)
        continue
    import chipwise.design.phases.by_law, chipwise.design.phases.pipeline
    import chipwise.design.report.output, chipwise.design.shrink
    from chipwise.deploy.export import gguf, hf, onnx
    from chipwise.training.loop import evaluate, trainer
    spec = _read(Path(file))
    if isinstance(spec, RunSpec) and spec.data and spec.data.get("source") not in opened:
        opened.append(spec.data.get("source"))
        with tempfile.TemporaryDirectory() as folder:
            spec.task_settings.open(spec.data, base=Path(spec.folder), folder=Path(folder), space=spec.space)
"""


def extras_of(file: Path) -> str | None:
    found = INSTALL.search(file.read_text(encoding="utf-8").split("\nname:")[0])
    return found and (found[1] or "")


@pytest.mark.parametrize("file", EXAMPLES, ids=lambda file: file.stem)
def test_the_first_comment_names_the_install(file: Path) -> None:
    assert extras_of(file) is not None
    assert set(filter(None, extras_of(file).split(","))) <= set(metadata.metadata("chipwise").get_all("Provides-Extra"))


def normal(name: str) -> str:
    return name.lower().replace("_", "-")


def packages(extras: set[str]) -> set[str]:
    """The distributions that an extra of chipwise asks for itself."""
    asked = [line.replace('"', "'") for line in metadata.requires("chipwise") or ()]
    wanted = [line for line in asked if any(f"extra == '{extra}'" in line for extra in extras)]
    return {normal(re.match(r"[A-Za-z0-9_.-]+", line)[0]) for line in wanted}


@pytest.mark.parametrize("extras", sorted({extras_of(file) or "" for file in EXAMPLES}))
def test_nothing_else_is_needed_to_begin(extras: str, tmp_path: Path) -> None:
    files = [file for file in EXAMPLES if (extras_of(file) or "") == extras]
    named = set(filter(None, extras.split(",")))
    there = packages(named)
    distributions = metadata.packages_distributions()
    blocked = {
        module
        for module in EXTRA_OF
        if distributions.get(module) and not there & set(map(normal, distributions[module]))
    }
    if "search" in named:  # torch and transformers bring these along
        assert not blocked & {"torch", "gguf", "PIL", "pyarrow", "onnxruntime"}
    done = subprocess.run(
        [sys.executable, "-c", CHILD, " ".join(OF_THE_SYSTEM), " ".join(blocked), *map(str, files)],
        capture_output=True,
        text=True,
        timeout=300,
        cwd=tmp_path,
        check=False,
    )
    missing = re.search(r"is not installed; it comes with: pip install 'chipwise\[(\w+)\]'", done.stderr)
    if missing and missing[1] in named:
        pytest.skip(f"needs the extra {missing[1]}")
    assert done.returncode == 0, done.stderr[-3000:]
