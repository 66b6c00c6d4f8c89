"""Every example that ships is read, its space holds designs, and its devices are known."""

from __future__ import annotations

import inspect
import itertools
import textwrap
from pathlib import Path

import numpy as np
import pytest

from chipwise.core.files import read_yaml
from chipwise.design.run.spec import load_run
from chipwise.design.run.start_spec import StartSpec, load_any
from chipwise.hardware import datasheet
from chipwise.model.space.search_space import SearchSpace

EXAMPLES = sorted((Path(__file__).parents[4] / "examples").glob("*.yaml"))
EXAMPLES = [
    path for path in EXAMPLES if path.stem != "agent"
]  # no run file; tests/unit/design/fleet/test_agent_loop.py
FROM_MODELS = [path for path in EXAMPLES if "start_from" in read_yaml(path)]


@pytest.mark.parametrize("path", [path for path in EXAMPLES if path not in FROM_MODELS], ids=lambda path: path.stem)
def test_an_example_is_read(path) -> None:
    spec = load_run(path)
    space = SearchSpace(spec.space)
    rows = space.sample(20, np.random.default_rng(0))
    assert space.size() > 0
    assert all((space.row(space.choices(row)) == row).all() for row in rows)
    assert all(datasheet.load(target.device) for target in spec.targets)


def test_the_file_that_help_shows_is_read(tmp_path) -> None:
    from chipwise.cli.search import command

    lines = inspect.getdoc(command).splitlines()
    first = next(i for i, line in enumerate(lines) if line.strip().startswith("name:"))
    shown = itertools.takewhile(str.strip, lines[first:])
    (tmp_path / "run.yaml").write_text(textwrap.dedent("\n".join(shown)))
    spec = load_run(tmp_path / "run.yaml")
    assert {limit.metric for limit in spec.limits} == {"tpot_p99", "peak_memory", "throughput"}
    assert SearchSpace(spec.space).size() > 0


@pytest.mark.parametrize("path", FROM_MODELS, ids=lambda path: path.stem)
def test_an_example_that_starts_from_a_model_is_read(path) -> None:
    spec = load_any(path)
    assert isinstance(spec, StartSpec)
    assert spec.limits({"ttft_p50": 1.0})
