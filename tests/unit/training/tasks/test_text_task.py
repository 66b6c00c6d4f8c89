"""Text passes the suite of tasks, like any other domain."""

from __future__ import annotations

from pathlib import Path

import pytest

from chipwise.api.testing.task_suite import TaskSuite
from chipwise.training.tasks.text.task import TEXT

SPACE = {
    "d_model": [64],
    "depth": [1],
    "vocab_size": [300],
    "head_size": [16],
    "layer": {"heads": [2], "kv_heads": [1], "ffn": ["swiglu"], "ffn_width": [48]},
    "weights": ["fp32"],
    "max_tokens": 128,
}


class TestText(TaskSuite):
    task, space = TEXT, SPACE
    data = {"source": "files", "paths": ["text.txt"], "entries": "lines", "licence": "none"}  # noqa: RUF012

    @pytest.fixture(autouse=True)
    def text(self, tmp_path_factory) -> None:
        folder: Path = tmp_path_factory.mktemp("text")
        lines = (f"{i}: pass {i % 7} of core {i % 3} takes {i * 7 % 13} steps, ends {i * i % 97}." for i in range(1500))
        (folder / "text.txt").write_text("\n".join(lines))
        type(self).base = folder
