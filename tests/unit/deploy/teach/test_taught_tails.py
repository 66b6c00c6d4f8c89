"""A taught machine answers P99s by the tails that were measured on it: estimate, search and other targets alike."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

import chipwise
from chipwise.deploy.measure.measurement import Measurement
from chipwise.deploy.measure.store import MeasurementStore
from chipwise.deploy.teach.observations import MeasuredRow
from chipwise.deploy.teach.reading import from_record, to_record
from chipwise.deploy.teach.tails import tail_ratio, tails_of
from chipwise.design.phases.other_devices import OtherDevices
from chipwise.design.run.spec import run_spec
from chipwise.design.targets.chance import chance
from chipwise.design.targets.sheet import sheet_target
from chipwise.hardware import taught
from chipwise.model.arch.arch import uniform
from chipwise.model.arch.design import Design
from chipwise.model.ops.workload import Workload
from chipwise.model.space.search_space import SearchSpace
from chipwise.predict.served.tails import UNMEASURED, shipped

RATIO = 2.0  # P99 / P50 of steps on the board; shipped runs on processors have less


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHIPWISE_HOME", str(tmp_path / "home"))


def measured(depth: int, *, clean: bool = True, samples: int = 201, steps: int = 1) -> tuple[Measurement, Design]:
    """Prompts that all take the same time, and steps of which 2 % take ``RATIO`` times the median."""
    arch = uniform(vocab_size=1000, d_model=128, depth=depth, heads=2, ffn_width=256)
    design = Design(arch=arch, weights="fp32")
    slow = max(1, samples // 50)
    found = Measurement(
        design=design.digest, name=f"depth {depth}", runtime="onnxruntime", runtime_version="1", threads=1,
        workload=Workload(prompt_tokens=32, new_tokens=32), device="board", ttft_s=(2e-3 * depth,) * samples,
        tpot_s=(1e-3 * depth,) * (samples - slow) + (RATIO * 1e-3 * depth,) * slow, cpu_s=1.0, peak_memory_bytes=None,
        clean=clean, reasons=() if clean else ("busy",), steps_per_sample=steps,
    )  # fmt: skip
    return found, design


def board() -> taught.Teaching:
    store = MeasurementStore()
    for depth in (2, 3, 4, 5, 6, 8, 10, 12):
        found, design = measured(depth)
        store.add(found, design=design, source="kit")
    return chipwise.teach("my-board", "measurements", base="raspberry-pi-5").teaching


def test_the_next_run_is_as_far_off_as_runs_differ() -> None:
    """Ratios e^.1, e^.2 and e^.3: mean .2; squared residuals add to .02, beside two runs of the shipped spread."""
    rows = [
        MeasuredRow(number=i, model="gpt2", runtime="llama.cpp", tpot_tail=math.exp(x / 10))
        for i, x in enumerate((1, 2, 3))
    ]
    law = shipped().law(UNMEASURED, "any")
    prior = ((law.above - law.below) / (2 * 1.645)) ** 2
    (tail,) = tails_of([*rows, MeasuredRow(number=4, model="gpt2", runtime="llama.cpp")])
    assert (tail.runtime, tail.time, tail.runs) == ("llama.cpp", "tpot", 3)
    assert tail.mean == pytest.approx(0.2)
    assert tail.deviation == pytest.approx(math.sqrt((2 * prior + 0.02) / 4 * (1 + 1 / 3)))
    assert from_record(to_record(rows[0])) == rows[0]


def test_only_single_samples_of_a_quiet_machine_say_something_about_tails() -> None:
    assert tail_ratio(measured(2)[0], "tpot") == pytest.approx(RATIO)
    assert tail_ratio(measured(2)[0], "ttft") == pytest.approx(1.0)
    for found in (measured(2, clean=False), measured(2, samples=29), measured(2, steps=16)):
        assert tail_ratio(found[0], "tpot") is None


def test_estimate_search_and_other_targets_answer_a_p99_by_the_measured_tail() -> None:
    """All take the ratio of the board's runs, with an interval that holds it; a limit has a probability."""
    found = board()
    assert taught.load("my-board") == found  # what is stored
    asked = uniform(vocab_size=512, d_model=64, depth=2, heads=2, ffn_width=64, max_tokens=128)
    estimated = chipwise.estimate(asked, device="my-board", runtime="onnxruntime", prompt=16, new=16, weights="fp32")
    p50, p99 = (estimated.metrics[f"tpot_{share}"] for share in ("p50", "p99"))
    assert p99.value / p50.value == pytest.approx(RATIO)
    assert p99.low < p99.value < p99.high
    assert "each P99 is the P50 times a ratio from 8 measured runs of this machine" in estimated.notes
    plain = chipwise.estimate(asked, device="raspberry-pi-5", runtime="onnxruntime", prompt=16, new=16, weights="fp32")
    assert plain.metrics["tpot_p99"].value / plain.metrics["tpot_p50"].value < 0.9 * RATIO
    limit = {"tpot_p99": "<= 1 ms"}
    run = run_spec(
        {
            "name": "toy", "workload": {"prompt_tokens": 16, "new_tokens": 16}, "constraints": limit,
            "target": {"device": "my-board", "runtime": "onnxruntime"},
            "targets": [{"device": "my-board:1-core", "runtime": "onnxruntime", "constraints": limit}],
            "space": {
                "d_model": [64], "depth": [1, 2], "vocab_size": [512], "head_size": [32], "weights": ["fp32"],
                "layer": {"heads": [2], "kv_heads": [2], "ffn": ["swiglu"], "ffn_width": [64]}, "max_tokens": 128,
            },
            "data": {"source": "files", "paths": ["x.txt"]},
        },
        file="toy.yaml",
    )  # fmt: skip
    space = SearchSpace(run.space)
    target, rows = sheet_target(run, space), space.sample(2, np.random.default_rng(0))
    design = space.design(rows[0])
    searched, elsewhere = target.predict(design), OtherDevices(run, space).predict(design)
    (there,) = [bounds for name, bounds in elsewhere.items() if name.startswith("tpot_p99@")]
    for bounds in (searched["tpot_p99"], there):
        assert bounds[1] < bounds[0] < bounds[2]
        assert 0 < chance(run.limits[0], bounds) < 1
    assert searched["tpot_p99"][0] / searched["tpot_p50"][0] == pytest.approx(RATIO)
    table = target.metrics(rows)
    np.testing.assert_allclose(table["tpot_p99"], RATIO * table["tpot_p50"])
