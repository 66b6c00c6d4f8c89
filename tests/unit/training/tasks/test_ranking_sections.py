"""Recall of a ranking run in its card."""

from __future__ import annotations

from chipwise.training.tasks.ranking.sections import sections


def test_recall_has_its_interval_in_the_card() -> None:
    rows = [{"length": 10, "recall": 0.4, "std_error": 0.1}]
    (shown,) = sections({"recall": {"winner": rows}})
    assert "| 10 | 40 % ± 16.4 % |" in shown.text.replace("\xa0", " ")  # 1.645 standard errors
