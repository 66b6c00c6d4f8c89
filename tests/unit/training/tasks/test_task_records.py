"""What tasks are as records: what they require of a run file, and sums of losses over examples that are alike."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from chipwise.errors import SpecError
from chipwise.model.kinds.image.choices import ImageSpace
from chipwise.model.kinds.table import KINDS
from chipwise.training.tasks.protocol import TASKS, Losses, task_named

EMPTY: dict[str, Any] = {
    "image": None,
    "sound": None,
    "ranking": None,
    "max_tokens": 8,
    "vocab_size": (16,),
    "own": None,
}
IMAGE = ImageSpace(size=8, classes=2, patch=(4,))


@pytest.mark.parametrize("name", TASKS.names())
def test_a_record_is_named_as_run_files_name_it_and_trains_known_kinds(name: str) -> None:
    task = task_named(name)
    assert task.name == name
    assert set(task.forms) <= {form.name for form in KINDS}


@pytest.mark.parametrize(
    ("name", "given", "field"),
    [
        ("vision", {}, "space.image"),
        ("vision", {"image": ImageSpace(size=8, classes=2, patch=(4,), axes=1)}, "space.image.axes"),
        ("speech", {}, "space.image"),
        ("speech", {"image": IMAGE}, "space.image.axes"),
        ("transcripts", {}, "space.sound"),
        ("ranking", {}, "space.ranking"),
        ("multimodal", {"image": IMAGE}, "space.image"),
        ("diffusion", {"image": IMAGE}, "space.image.steps"),
        ("text", {}, "space.max_tokens"),
        ("series", {}, "space.max_tokens"),
        ("series", {"max_tokens": 20, "vocab_size": (16, 32)}, "space.vocab_size"),
    ],
)
def test_what_a_task_needs_is_named(name: str, given: dict[str, Any], field: str) -> None:
    space = SimpleNamespace(**EMPTY | given | {"own": given.get("image")})
    with pytest.raises(SpecError) as caught:
        task_named(name).require_fit(SimpleNamespace(total_tokens=9), space)  # type: ignore[arg-type]
    assert caught.value.field == field


def test_examples_that_are_alike_stand_together() -> None:
    """Losses 1, 0 and 1 of one person, 0 of another: sums 2 of 3 and 0 of 1; half of four is lost."""
    values, sizes = np.array([1.0, 0, 0, 1]), np.ones(4)
    found = Losses.of(values, sizes, np.array([0, 2, 0, 0]))
    assert (found.values.tolist(), found.sizes.tolist()) == ([2.0, 0.0], [3.0, 1.0])
    assert found.loss == Losses.of(values, sizes).loss == 0.5
    off = np.array([2 - 0.5 * 3, 0 - 0.5]) / 4
    assert found.std_error == pytest.approx(math.sqrt(2 * (off**2).sum()))
