"""Requests a second by number of candidates: measured for the report, shown in the card."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from test_matrix_formats import RUN, SPACE, SPEC

from chipwise.deploy.export.onnx import random_weights
from chipwise.design.phases.candidate_rates import CANDIDATES, candidate_rates
from chipwise.design.run.spec import run_spec
from chipwise.training.tasks.ranking.sections import sections

RATES = {"limit_s": 0.01, "rows": [{"candidates": 512, "p50_s": 2e-3, "p99_s": 3e-3, "requests_per_s": 1234.5}]}


def test_every_number_of_candidates_is_measured(tmp_path: Path) -> None:
    design = SPACE.design(SPACE.sample(1, np.random.default_rng(0))[0])
    found = candidate_rates(design, random_weights(design.arch, seed=0), tmp_path, spec=SPEC)
    assert [row["candidates"] for row in found["rows"]] == list(CANDIDATES)
    assert found["limit_s"] == 0.010
    for row in found["rows"]:
        assert 0 < row["p50_s"] <= row["p99_s"]
        assert row["requests_per_s"] <= 1 / row["p50_s"] * 1.5
    assert not list(tmp_path.iterdir()), "files are removed"
    tight = run_spec(RUN | {"constraints": {"ttft_p99": "<= 1 us"}}, file="run.yaml")
    found = candidate_rates(design, random_weights(design.arch, seed=0), tmp_path, spec=tight)
    assert {row["requests_per_s"] for row in found["rows"]} == {0.0}


def test_report_and_card_show_them_with_their_limit() -> None:
    (shown,) = sections({"rates": {"winner": RATES, "baseline": RATES}})
    for text in (shown.html, shown.text):
        assert "1,234" in text
        assert "99 of 100" in text
        assert "candidates, reference" in text
    assert shown.text.count("| 512 |") == 2


def test_recall_has_its_interval_in_the_card() -> None:
    rows = [{"length": 10, "recall": 0.4, "std_error": 0.1}]
    (shown,) = sections({"recall": {"winner": rows}})
    assert "| 10 | 40 % ± 16.4 % |" in shown.text.replace("\xa0", " ")  # 1.645 standard errors
