"""A task of another package (docs/how-to/add-a-task.md): own data of the kind ``arrays``, and a row in the tables."""

from __future__ import annotations

import re
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from chipwise.api.testing.task_suite import TaskSuite
from chipwise.model.arch.arch import ArchSpec
from chipwise.training.data.dataset import DATASETS, DataFile
from chipwise.training.tasks.vision.data import VisionData
from chipwise.training.tasks.vision.task import VISION

EACH = 30  # of a class


class PlainData(VisionData):
    """Images that may be neither shifted nor mirrored, such as scanned tables."""

    def data(self, arch: ArchSpec) -> DataFile:
        """The images as they are."""
        return DataFile(path=str(self.path), kind="arrays")


PLAIN = replace(VISION, name="plain", data=f"{__name__}:PlainData")


def written() -> Path:
    """A folder with images whose brightness tells their class."""
    folder, random = Path(tempfile.mkdtemp(prefix="chipwise-")), np.random.default_rng(0)
    labels = np.repeat(np.arange(2), EACH)
    images = np.clip(random.normal(60 + 90 * labels[:, None, None], 20, (2 * EACH, 8, 8)), 0, 255)
    np.savez(folder / "set.npz", images=images.astype(np.uint8), labels=labels)
    return folder


class TestPlain(TaskSuite):
    """The suite that the page names."""

    task = PLAIN
    base = written()
    data: ClassVar[dict[str, Any]] = {"source": "numpy", "path": "set.npz", "validation_share": 0.2}
    space: ClassVar[dict[str, Any]] = {
        "image": {"size": 8, "classes": 2, "patch": [4], "pooling": ["mean"]},
        "d_model": [16],
        "depth": [1],
        "head_size": [8],
        "norm": "layernorm",
        "layers": "alike",
        "layer": {"heads": [2], "ffn": ["gelu"], "ffn_width": [16]},
    }


def test_the_page_lists_every_kind_of_data() -> None:
    page = (Path(__file__).parents[4] / "docs" / "how-to" / "add-a-task.md").read_text(encoding="utf-8")
    table = page.partition("| kind |")[2].partition("\n\n")[0]
    listed = {
        name
        for row in table.splitlines()
        for name in re.findall(r"`([\w-]+)`", row.split("|")[1] if "|" in row else "")
    }
    assert listed == set(DATASETS.names())
