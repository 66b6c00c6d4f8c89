"""Every example that ships is read, its space holds designs, and its devices are known."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from chipwise.hardware import datasheet
from chipwise.run import load_run
from chipwise.space import SearchSpace

EXAMPLES = sorted((Path(__file__).parents[3] / "examples").glob("*.yaml"))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_is_read(path) -> None:
    spec = load_run(path)
    space = SearchSpace(spec.space)
    rows = space.sample(20, np.random.default_rng(0))
    assert space.size() > 0
    assert all((space.row(space.choices(row)) == row).all() for row in rows)
    assert all(datasheet.load(target.device) for target in spec.targets)
