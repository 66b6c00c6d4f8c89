"""A whole search for an image classifier on another chip: predicted there, trained and evaluated here."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from chipwise.api import search
from chipwise.errors import SpecError

RUN = {
    "name": "dots-elsewhere",
    "task": "vision",
    "target": {"device": "raspberry-pi-5", "runtime": "onnxruntime"},
    "constraints": {"ttft_p50": "<= 2 ms", "peak_memory": "<= 4 GB"},
    "space": {
        "image": {"size": 8, "classes": 3, "channels": 1, "patch": [4, 8], "pooling": ["mean"]},
        "d_model": [16, 32],
        "depth": [1, 2],
        "head_size": [8],
        "norm": "layernorm",
        "layers": "alike",
        "layer": {"heads": [2], "ffn": ["gelu"], "ffn_width": [32, 64]},
        "weights": ["fp32"],
    },
    "data": {"source": "numpy", "path": "set.npz"},
    "train": {"precision": "fp32"},
    "budget": {"tokens": "100k", "final": "25k", "workers": 1},
}


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Images of three brightnesses."""
    random, labels = np.random.default_rng(0), np.repeat(np.arange(3), 60)
    images = np.clip(random.normal(60 + 60 * labels[:, None, None], 20, (180, 8, 8)), 0, 255)
    np.savez(tmp_path / "set.npz", images=images.astype(np.uint8), labels=labels)
    return tmp_path


def test_a_search_ends_with_a_winner_that_is_predicted_there(home: Path) -> None:
    found = search({**RUN, "folder": str(home)}, out=home / "run")
    winner = found.trial(found.winner)
    assert (found.status, found.task) == ("finished", "vision")
    told = winner.predicted["ttft_p50"]
    assert told.low < told.value < min(told.high, 2e-3)
    assert "tpot_p50" not in winner.predicted  # nothing follows the one pass
    assert winner.measured is None  # nothing reaches the chip
    assert winner.test_loss < 0.3  # of three brightnesses; guessing is wrong two times of three
    assert (home / "run" / "winner" / "model.onnx").exists()
    report = (home / "run" / "report.html").read_text()
    assert "predicted" in report


def test_a_runtime_of_text_is_refused(home: Path) -> None:
    other = {"device": "raspberry-pi-5", "runtime": "llama.cpp"}
    with pytest.raises(SpecError, match=r"llama\.cpp serves models of text"):
        search({**RUN, "folder": str(home), "target": other}, out=home / "run")
