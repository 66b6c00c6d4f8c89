import json
from pathlib import Path
from typing import Any

import pytest

from chipwise import api
from chipwise.design.run.winner import read_winner
from chipwise.errors import SpecError
from chipwise.model.arch.arch import uniform
from chipwise.model.arch.io import to_data
from chipwise.model.ops.workload import Workload

ARCH = uniform(name="w", vocab_size=300, d_model=32, depth=1, heads=2, ffn_width=48)


def winner(folder: Path, **changes: Any) -> Path:
    data = {
        "schema": "chipwise.winner/1",
        "arch": to_data(ARCH),
        "weights": "int8",
        "target": {"device": "local", "runtime": "onnxruntime", "threads": 2},
        "workload": {"prompt_tokens": 12, "new_tokens": 5, "batch": 1},
        "constraints": {"ttft_p50": "<= 3 ms", "accuracy@mine": ">= 80 %"},
        "promised": {"ttft_p50": [1e-3, 9e-4, 2e-3]},
        "measured": None,
        **changes,
    }
    (folder / "chipwise.json").write_text(json.dumps({k: v for k, v in data.items() if v != "absent"}))
    return folder


def test_a_winner_is_read(tmp_path: Path) -> None:
    found = read_winner(winner(tmp_path))
    assert found is not None
    assert (found.design.arch.digest, found.design.weights, found.threads) == (ARCH.digest, "int8", 2)
    assert found.workload == Workload(prompt_tokens=12, new_tokens=5)
    assert [(item.metric, item.limit) for item in found.limits] == [("ttft_p50", 3e-3)]
    assert found.promised == {"ttft_p50": (1e-3, 9e-4, 2e-3)}
    assert read_winner(tmp_path / "elsewhere") is None


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"arch": "absent"}, "arch: this field is missing"),
        ({"arch": 5}, "a model must be a mapping"),
        ({"weights": 8}, "weights: "),
        ({"weights": "int7"}, "int7"),
        ({"workload": {"prompt_tokens": "many"}}, r"workload\.prompt_tokens"),
        ({"workload": []}, "workload"),
        ({"target": {"threads": "two"}}, r"target\.threads: must be a whole number"),
        ({"target": {}}, r"target\.threads"),
        ({"constraints": {"ttft_p50": "soon"}}, "soon"),
        ({"promised": {"ttft_p50": [1.0]}}, r"promised\.ttft_p50: must be three numbers"),
        ({"promised": 3}, "promised"),
    ],
)
def test_a_damaged_winner_is_one_clear_error(tmp_path: Path, changes: dict[str, Any], named: str) -> None:
    winner(tmp_path, **changes)
    with pytest.raises(SpecError, match=rf"chipwise\.json.*{named}"):
        api.measure(tmp_path)


def test_a_folder_in_the_place_of_the_file_is_one_clear_error(tmp_path: Path) -> None:
    (tmp_path / "chipwise.json").mkdir()
    with pytest.raises(SpecError, match=r"chipwise\.json: this is a folder, not a file"):
        api.measure(tmp_path)


@pytest.mark.parametrize("content", ["{}", "[]", "3", "{"])
def test_a_file_of_another_kind_is_one_clear_error(tmp_path: Path, content: str) -> None:
    (tmp_path / "chipwise.json").write_text(content)
    with pytest.raises(SpecError, match=r"chipwise\.json"):
        api.measure(tmp_path)


def test_soft_limits_and_predictions_without_an_interval_are_read(tmp_path) -> None:
    changes = {
        "constraints": {"ttft_p50": {"limit": "<= 3 ms", "penalty": "10 %"}},
        "promised": {"ttft_p50": [0.001, None, None]},
    }
    found = read_winner(winner(tmp_path, **changes))
    assert found is not None
    assert [(item.metric, item.hard) for item in found.limits] == [("ttft_p50", False)]
    assert found.promised["ttft_p50"] == (0.001, None, None)
