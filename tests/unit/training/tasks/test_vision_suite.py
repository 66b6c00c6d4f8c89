"""The suite of tasks on vision: images of three brightnesses."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from chipwise.api.testing.task_suite import TaskSuite
from chipwise.training.tasks.vision.task import VISION

EACH = 40  # images of a class


def written() -> Path:
    """A folder with images whose brightness tells their class."""
    folder, random = Path(tempfile.mkdtemp(prefix="chipwise-")), np.random.default_rng(0)
    labels = np.repeat(np.arange(3), EACH)
    images = np.clip(random.normal(60 + 60 * labels[:, None, None], 20, (3 * EACH, 8, 8)), 0, 255)
    np.savez(folder / "set.npz", images=images.astype(np.uint8), labels=labels)
    return folder


class TestVision(TaskSuite):
    """Classifiers of 8 x 8 images."""

    task = VISION
    base = written()
    data: ClassVar[dict[str, Any]] = {"source": "numpy", "path": "set.npz", "validation_share": 0.2}
    space: ClassVar[dict[str, Any]] = {
        "image": {"size": 8, "classes": 3, "patch": [4], "stem": ["patches", "conv4"], "pooling": ["first", "mean"]},
        "d_model": [16, 32],
        "depth": [1, 2],
        "head_size": [8],
        "norm": "layernorm",
        "layers": "alike",
        "layer": {"heads": [1, 2], "ffn": ["gelu"], "ffn_width": [16, 32]},
    }
