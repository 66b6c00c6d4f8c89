"""Time series: the suite of tasks, the arithmetic of quantiles, and what is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from chipwise.api.testing.task_suite import TaskSuite
from chipwise.core.files import build
from chipwise.errors import DataError, SpecError, StudyError
from chipwise.model.ops.workload import Workload
from chipwise.model.space.space_spec import SpaceSpec
from chipwise.training.tasks.series.data import SeriesSpec, SeriesStore, read_series
from chipwise.training.tasks.series.task import SERIES

SPACE = {
    "d_model": [64],
    "depth": [1],
    "vocab_size": [17],
    "head_size": [16],
    "layer": {"heads": [2], "kv_heads": [1], "ffn": ["swiglu"], "ffn_width": [48]},
    "weights": ["fp32"],
    "max_tokens": 64,
}


class TestSeries(TaskSuite):
    task, space, data = SERIES, SPACE, {"source": "waves"}


def test_columns_of_numbers_are_read_and_scaled_by_what_is_learnt(tmp_path: Path) -> None:
    """Of 250 rising values the first 200 have mean 99.5; dates are no series."""
    rows = "\n".join(f"2026-01-{i % 28 + 1:02d},{i}" for i in range(250))
    (tmp_path / "a.csv").write_text(f"day,sold\n{rows}\n")
    spec, (series,) = read_series({"paths": ["a.csv"]}, tmp_path)
    assert series[0] == pytest.approx(-99.5 / np.arange(200).std())
    assert series[:200].mean() == pytest.approx(0.0, abs=1e-12)
    store = SeriesStore(spec, [series], tmp_path, [5])
    store.prepare()
    data = store.tokens(5)
    # four quantiles of 50 values each, then the 50 that come later, all above them
    assert [int((data.train == token).sum()) for token in range(5)] == [2, 50, 50, 50, 50]
    assert set(data.validation[1:-1].tolist()) == set(data.test[1:-1].tolist()) == {4}
    assert data.bytes_train == 200
    assert data.validation_bytes.tolist() == data.test_bytes.tolist() == [25]
    with pytest.raises(StudyError, match="contains different series"):
        SeriesStore(spec, [series + np.sin(series)], tmp_path, [5]).prepare()


def test_what_is_no_series_is_refused(tmp_path: Path) -> None:
    (tmp_path / "short.csv").write_text("x\n1\n2\n")
    with pytest.raises(DataError, match="at least 200"):
        read_series({"paths": ["short.csv"]}, tmp_path)
    with pytest.raises(SpecError, match="`source: waves`"):
        SeriesSpec()
    with pytest.raises(SpecError, match="equally many quantiles"):
        SERIES.require_fit(Workload(prompt_tokens=8, new_tokens=8), build(SpaceSpec, {**SPACE, "vocab_size": [17, 33]}))
