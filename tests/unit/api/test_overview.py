"""``chipwise space``: exact counts, and extremes that enumeration confirms."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys

import numpy as np
import pytest
import yaml

import chipwise
from chipwise.core.files import build
from chipwise.design.limits import parse_constraints
from chipwise.design.phases.overview import overview, overview_of, profile_of
from chipwise.errors import InputError, SpecError
from chipwise.model.space.search_space import SearchSpace
from chipwise.model.space.space_spec import SpaceSpec

SPACE = {
    "d_model": [32, 64],
    "depth": [1, 2],
    "vocab_size": [256, 512],
    "layer": {"heads": [1, 2], "kv_heads": [1], "ffn": ["relu", "swiglu"], "ffn_width": [64, 128]},
}


def test_share_and_extremes_are_those_of_all_rows() -> None:
    space = SearchSpace(build(SpaceSpec, SPACE))

    def metrics(rows):
        return {"parameters": np.array([float(space.design(row).arch.parameters()) for row in rows])}

    every = space.canonical(np.array(list(itertools.product(*(range(c) for c in space.cardinalities)))))
    all_of_them = metrics(np.unique(every, axis=0))["parameters"]
    half = float(np.median(all_of_them))
    found = overview(
        space, metrics, parse_constraints({"parameters": f"<= {half:.0f}"}), priced_by="counting", seed=0, draws=400
    )
    assert found.size == len(all_of_them) == 2 * 2 * (8 + 64)
    (extreme,) = found.extremes
    assert extreme.least.metrics["parameters"] == all_of_them.min()
    assert extreme.most.metrics["parameters"] == all_of_them.max()
    assert all(one.metrics["parameters"] <= half for one in found.samples)
    drawn = metrics(space.sample(400, np.random.default_rng(0)))["parameters"]
    assert found.feasible_share == pytest.approx((drawn <= half).mean())


def test_limits_of_other_tasks_are_read_in_their_own_metric(tmp_path) -> None:
    """An accuracy is no metric of text; nothing predicts it, and its workload is that of the task."""
    image = {"size": 8, "classes": 3, "channels": 1, "patch": [4], "pooling": ["mean"]}
    layer = {"heads": [2], "ffn": ["gelu"], "ffn_width": [32, 64]}
    space = {"image": image, "d_model": [16], "depth": [1], "head_size": [8], "norm": "layernorm", "layer": layer}
    path = tmp_path / "s.yaml"
    path.write_text(yaml.safe_dump({"task": "vision", "space": space, "constraints": {"accuracy": ">= 80 %"}}))
    found = overview_of(path, draws=50)
    assert found.unjudged == ("accuracy >= 80 %",)
    assert found.size == 2
    assert profile_of(path) != profile_of(_of_text(tmp_path))  # this machine is calibrated for each kind by itself
    path.write_text(yaml.safe_dump({"task": "visoin", "space": space}))
    with pytest.raises(SpecError, match="did you mean 'vision'"):
        overview_of(path, draws=50)


def _of_text(folder):
    path = folder / "text.yaml"
    path.write_text(yaml.safe_dump({"space": SPACE}))
    return path


def test_limits_that_nothing_predicts_are_named_and_not_judged(tmp_path) -> None:
    path = tmp_path / "s.yaml"
    path.write_text(yaml.safe_dump({"space": SPACE, "constraints": {"tpot_p99": "<= 1 ms", "parameters": "<= 1"}}))
    found = overview_of(path, draws=100)
    assert found.unjudged == ("tpot_p99 <= 1 ms",)
    assert found.feasible_share == 0.0
    assert "no candidate of the space can meet: parameters <= 1" in found.closest
    assert found.priced_by is None


def test_a_data_sheet_prices_times_and_memory(tmp_path) -> None:
    path = tmp_path / "s.yaml"
    path.write_text(yaml.safe_dump(SPACE))
    found = overview_of(path, device="raspberry-pi-5", draws=200)
    assert {item.metric for item in found.extremes} == {
        "ttft_p50",
        "ttft_p99",
        "tpot_p50",
        "tpot_p99",
        "itl_p50",
        "itl_p99",
        "mfu",
        "mbu",
        "throughput",
        "peak_memory",
        "parameters",
        "joules_per_token",
        "power",
    }
    assert all(item.least.metrics[item.metric] < item.most.metrics[item.metric] for item in found.extremes)


def test_shown_designs_have_the_values_and_intervals_of_their_estimates(tmp_path) -> None:
    path = tmp_path / "s.yaml"
    path.write_text(yaml.safe_dump({"space": SPACE, "workload": {"prompt_tokens": 16, "new_tokens": 8}}))
    found = overview_of(path, device="apple-m4", draws=100, samples=2)
    one = found.samples[0]
    space = SearchSpace(build(SpaceSpec, SPACE))
    genes = space.sample(20_000, np.random.default_rng(0))
    design = space.design(next(row for row in genes if space.choices(row) == one.choices))
    whole = chipwise.estimate(design.arch, device="apple-m4", weights="fp32", prompt=16, new=8)
    for metric in ("ttft_p50", "tpot_p50", "joules_per_token"):
        known = whole.metrics[metric]
        assert one.metrics[metric] == pytest.approx(known.value, rel=1e-6)
        assert one.intervals[metric] == pytest.approx((known.low, known.high), rel=1e-6)
    assert one.metrics["peak_memory"] == pytest.approx(whole.peak_memory_bytes)
    named = overview_of(path, device="raspberry-pi-5", runtime="onnxruntime", draws=100)
    assert "onnxruntime" in str(named.priced_by)
    with pytest.raises(InputError, match=r"--runtime needs a device"):
        overview_of(path, runtime="mlx")


def test_an_empty_or_contradictory_space_names_file_and_field(tmp_path) -> None:
    path = tmp_path / "s.yaml"
    path.write_text(yaml.safe_dump({"space": SPACE | {"d_model": []}}))
    with pytest.raises(SpecError, match=r"s\.yaml: space\.d_model: the list is empty"):
        overview_of(path)
    conditions = [
        {"when": {"d_model": 32}, "only": {"depth": 1}},
        {"when": {"vocab_size": 256}, "only": {"depth": 2}},
    ]
    path.write_text(yaml.safe_dump({"space": SPACE | {"conditions": conditions}}))
    with pytest.raises(
        SpecError, match=r"s\.yaml: space\.conditions: no value of depth is left if these conditions meet"
    ):
        overview_of(path)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"constraints": ["tpot_p50 <= 1 ms"]}, "constraints: must be a mapping"),
        ({"space": {**SPACE, "depth": "two"}}, "space.depth: must be a list"),
        ({"space": None}, "space: "),
    ],
)
def test_what_is_wrong_in_a_run_file_is_named(tmp_path, changes, said) -> None:
    path = tmp_path / "run.yaml"
    path.write_text(yaml.safe_dump({"name": "run", "space": SPACE} | changes))
    with pytest.raises(SpecError, match=said):
        overview_of(path)


def test_a_run_file_without_a_space_is_not_taken_for_one(tmp_path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text(yaml.safe_dump({"name": "run", "budget": {"cpu": "1 min"}}))
    with pytest.raises(SpecError, match=r"run\.yaml: space: this field is missing"):
        overview_of(path)


def test_the_command_prints_tables_and_json(tmp_path) -> None:
    path = tmp_path / "s.yaml"
    path.write_text(yaml.safe_dump({"space": SPACE}))
    command = [sys.executable, "-c", "from chipwise.cli import main; main()", "space", str(path), "--draws", "50"]
    plain = subprocess.run(command, capture_output=True, text=True)
    assert plain.returncode == 0, plain.stderr
    assert "288 distinct designs" in plain.stdout
    found = json.loads(subprocess.run([*command, "--json"], capture_output=True, text=True, check=True).stdout)
    assert found["size"] == 288
    assert len(found["samples"]) == 5


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"draws": 0}, "draws must be from 1 to 10,000,000, not 0"),
        ({"draws": 10**12}, "draws must be from 1 to 10,000,000, not 1,000,000,000,000"),
        ({"samples": -1}, "samples must be from 0 to 1,000, not -1"),
    ],
)
def test_how_much_is_drawn_has_bounds(tmp_path, asked, message) -> None:
    path = tmp_path / "s.yaml"
    path.write_text(yaml.safe_dump(SPACE))
    with pytest.raises(InputError, match=message):
        overview_of(path, **asked)
