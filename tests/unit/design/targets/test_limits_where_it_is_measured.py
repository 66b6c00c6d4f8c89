"""MFU, MBU and prompts that vary on calibrated and measured machines, by pencil."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from chipwise.api.testing.target_suite import TargetSuite
from chipwise.deploy.measure.measurement import Measurement
from chipwise.design.limits import parse_constraints
from chipwise.design.models.measuring import Measured, _beside_promises
from chipwise.design.phases import kit_return
from chipwise.design.phases.measuring import measurement_notes
from chipwise.design.run.spec import run_spec
from chipwise.design.targets import bench
from chipwise.design.targets.bench import Bench
from chipwise.design.targets.cost_model import CostModel
from chipwise.design.targets.local import CalibratedTarget
from chipwise.design.targets.prompts import measured_over_prompts, with_longest
from chipwise.design.targets.utilisation import measured_shares
from chipwise.errors import MeasurementError, SpecError
from chipwise.hardware.device import MachineProfile
from chipwise.model.ops.workload import Phase, Workload
from chipwise.model.space.search_space import SearchSpace
from chipwise.model.walk.lower import lower
from chipwise.predict.cost.spending import Rates
from support.machines import core_like


def spec(*, constraints: dict[str, str], p99: int | None = None, device: str = "local", **target: str):
    return run_spec(
        {
            "name": "toy",
            "workload": {"prompt_tokens": {"p50": 16, "p99": p99} if p99 else 16, "new_tokens": 16},
            "target": {"device": device, **target},
            "constraints": constraints,
            "space": {
                "d_model": [64, 128], "depth": [1, 2], "vocab_size": [512], "head_size": [32],
                "layer": {"heads": [2, 4], "kv_heads": [1, 2], "ffn": ["swiglu"], "ffn_width": [64, 256]},
                "weights": ["fp32", "int8"], "max_tokens": 128,
            },
            "data": {"source": "files", "paths": ["x.txt"]},
        },
        file="toy.yaml",
    )  # fmt: skip


def calibrated(
    profile: MachineProfile | None = None, *, constraints: dict[str, str], p99: int | None = None
) -> tuple[CalibratedTarget, SearchSpace]:
    run = spec(constraints=constraints, p99=p99)
    space = SearchSpace(run.space)
    return CalibratedTarget(run, space, core_like() if profile is None else profile, None), space


SHARES = {"mfu": ">= 1 %", "mbu": ">= 1 %"}


class TestSharesAndPrompts(TargetSuite):
    def make(self):
        return calibrated(constraints=SHARES, p99=96)


def test_shares_of_a_calibrated_machine_are_flops_and_bytes_over_its_peaks() -> None:
    """The toy core: 1e11 FLOP/s in FP32, 4e11 in int8; a step's bytes at 80 GB/s while they fit into 1 MB, else 50."""
    target, space = calibrated(constraints=SHARES)
    rows = space.sample(12, np.random.default_rng(3))
    table = target.metrics(rows)
    for i, row in enumerate(rows):
        design = space.design(row)
        found = target.predict(design)
        flops = sum(
            each.op.work().flops for each in lower(design, Workload(prompt_tokens=16, new_tokens=16), Phase.PREFILL)
        )
        assert found["mfu"][0] * found["ttft_p50"][0] == pytest.approx(
            flops / {"fp32": 1e11, "int8": 4e11}[design.weights]
        )
        assert found["mfu"][1] < found["mfu"][0] < found["mfu"][2] <= 1
        assert found["mfu"][1] == pytest.approx(found["mfu"][0] * found["ttft_p50"][0] / found["ttft_p50"][2])
        assert table["mfu"][i] == pytest.approx(found["mfu"][0], rel=1e-6)
        assert table["mbu"][i] == pytest.approx(found["mbu"][0], rel=1e-6)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"peaks": {"fp32": 1e11}}, r"constraints\.mfu: the calibration has no peak of matrix products in int8"),
        ({"roofs": {}}, r"constraints\.m.u: the calibration has no memory bandwidth"),
    ],
)
def test_a_share_of_an_unknown_peak_is_refused(change: dict[str, Any], said: str) -> None:
    with pytest.raises(SpecError, match=said):
        calibrated(replace(core_like(), **change), constraints=SHARES)
    calibrated(replace(core_like(), **change), constraints={"tpot_p50": "<= 1 s"})


def test_a_measured_share_is_the_predicted_one_at_the_measured_time() -> None:
    """Half of the peak in 2 s is a quarter in 4 s. Steps count without waiting for others' prompts, where known."""
    predicted = {"mfu": (0.5, 0.4, 0.6), "ttft_p50": (2.0, 1, 3), "mbu": (0.3, None, None), "tpot_p50": (9.0, 8, 10)}
    measured = {"ttft_p50": 4.0, "tpot_p50": 3.0}
    assert measured_shares(predicted, measured) == pytest.approx({"mfu": 0.25, "mbu": 0.9})
    assert measured_shares(predicted | {"itl_p50": (1.0, 1, 1)}, measured)["mbu"] == pytest.approx(0.1)
    assert measured_shares({"ttft_p50": (2.0, 1, 3)}, measured) == {}


def test_predicted_p99s_hold_over_the_spread_of_prompts() -> None:
    """The toy core's tails are 1.2: ln(P99 / P50) is the root of ln(1.2) squared and ln(t(96) / t(16)) squared."""
    target, space = calibrated(constraints={"ttft_p99": "<= 1 s"}, p99=96)
    equal, longer = (CostModel(space, Workload(prompt_tokens=p, new_tokens=16), core_like()) for p in (16, 96))
    design = space.design(space.sample(1, np.random.default_rng(0))[0])
    found, short, long = (each.predict(design) for each in (target, equal, longer))
    for median, p99 in (("ttft_p50", "ttft_p99"), ("tpot_p50", "tpot_p99")):
        assert found[median] == short[median]
        expected = math.exp(math.hypot(math.log(1.2), math.log(long[median][0] / short[median][0])))
        assert found[p99][0] / found[median][0] == pytest.approx(expected)
    assert found["ttft_p99"][0] > 2 * short["ttft_p99"][0]
    assert found["peak_memory"] == long["peak_memory"]
    assert found["peak_memory"][0] > short["peak_memory"][0]


def test_what_is_learnt_from_short_prompts_holds_for_long_ones() -> None:
    """All measured 1.3 times slower than predicted: so are P99s over the spread."""
    target, space = calibrated(constraints={"ttft_p99": "<= 1 s"}, p99=96)
    designs = [space.design(row) for row in np.unique(space.sample(40, np.random.default_rng(0)), axis=0)[:10]]
    before = [target.predict(design) for design in designs]
    equal = CostModel(space, Workload(prompt_tokens=16, new_tokens=16), core_like())
    names = ("ttft_p50", "ttft_p99", "tpot_p50", "tpot_p99")
    values = [{name: 1.3 * equal.predict(design)[name][0] for name in names} for design in designs]
    target.learn(list(zip(designs[:8], values[:8], strict=True)))
    for design, then in zip(designs[8:], before[8:], strict=True):
        assert 1.15 < target.predict(design)["ttft_p99"][0] / then["ttft_p99"][0] < 1.4


def measurement(
    workload: Workload, *, ttft_s: float = 1.0, memory: int = 100, reasons: tuple[str, ...] = ()
) -> Measurement:
    """200 equal steps and 100 prompts, of which three take twice as long."""
    return Measurement(
        design="d", name="toy", runtime="fake", runtime_version="1", threads=1, workload=workload, device="known",
        ttft_s=(ttft_s,) * 97 + (2 * ttft_s,) * 3, tpot_s=(0.1,) * 200, cpu_s=1.0, peak_memory_bytes=memory,
        clean=not reasons, reasons=reasons, environment={"lost": 0.0},
    )  # fmt: skip


USUAL, LONG = Workload(prompt_tokens=16, new_tokens=16), Workload(prompt_tokens=96, new_tokens=16)


def test_measured_p99s_hold_over_the_spread_of_prompts() -> None:
    """TTFT: a tail of 2, and 8 times longer with the P99 prompt; steps are all equal, so their P99 is their P50."""
    found = with_longest(measurement(USUAL), measurement(LONG, ttft_s=8.0, memory=300, reasons=("busy",)))
    assert (found.clean, found.reasons) == (False, ("busy",))
    notes = measurement_notes(found, Rates(), final=True, prompt_p99=96)
    over = math.exp(math.hypot(math.log(2), math.log(8)))
    expected = {"ttft_p50": 1.0, "ttft_p99": over, "tpot_p50": 0.1, "tpot_p99": 0.1, "peak_memory": 300}
    measured: Any = notes["measured"]
    assert {name: measured[name] for name in expected} == pytest.approx(expected)
    settled: Any = notes["settled"]  # what the cost model learns from: requests with the P50 prompt
    assert (settled["ttft_p99"], settled["peak_memory"]) == pytest.approx((2.0, 100))
    same = measurement_notes(found, Rates(), final=True)["measured"]
    assert same["ttft_p99"] == pytest.approx(2.0)  # type: ignore[index]


def test_p99s_over_prompts_are_unknown_where_the_long_prompt_was_not_measured() -> None:
    notes: Any = measurement_notes(measurement(USUAL), Rates(), final=True, prompt_p99=96)
    assert {"ttft_p50", "tpot_p50", "throughput"} == set(notes["measured"])
    assert set(notes["measured_bounds"]) == {"ttft_p50", "tpot_p50"}
    assert notes["settled"]["ttft_p99"] == pytest.approx(2.0)
    assert measured_over_prompts({"tpot_p50": 1.0, "tpot_p99": 3.0}, {}, {"prompt_tokens": 96, "tpot_p50": 1.0}) == (
        {"tpot_p50": 1.0, "tpot_p99": 3.0},
        {},
    )


@pytest.mark.parametrize("p99", [None, 96])
def test_a_gap_between_tokens_is_a_step_where_requests_are_measured_one_at_a_time(p99: int | None) -> None:
    """Of a limit on gaps: predicted, by rows, measured and as a winner; not stated where nothing asks for them."""
    target, space = calibrated(constraints={"itl_p99": "<= 1 s", "itl_p50": "<= 1 s"}, p99=p99)
    rows = space.sample(3, np.random.default_rng(0))
    found, table = target.predict(space.design(rows[0])), target.metrics(rows)
    taken = with_longest(measurement(USUAL), measurement(LONG)) if p99 else measurement(USUAL)
    notes: Any = measurement_notes(taken, Rates(), final=True, predicted=found, prompt_p99=p99)
    for gap, step in (("itl_p50", "tpot_p50"), ("itl_p99", "tpot_p99")):
        assert found[gap] == found[step]
        assert (table[gap] == table[step]).all()
        assert notes["measured"][gap] == notes["measured"][step]
        assert notes["measured_bounds"][gap] == notes["measured_bounds"][step]
    if p99 is None:
        estimated = target.estimate(space.design(rows[0])).metrics  # what chipwise estimate states for this machine
        assert found["itl_p99"][0] == pytest.approx(estimated["itl_p99"].value)
    silent, _ = calibrated(constraints={"tpot_p99": "<= 1 s"}, p99=p99)
    assert not {"itl_p50", "itl_p99"} & (silent.predict(space.design(rows[0])).keys() | silent.metrics(rows).keys())
    assert "itl_p99" not in measurement_notes(taken, Rates(), final=True, prompt_p99=p99)["measured"]  # type: ignore[operator]
    limits = parse_constraints({"itl_p50": "<= 2 s"})
    measured: Any = Measured(measurement=taken, metrics={"tpot_p50": 0.1}, predicted=None, promised=None)
    winner: Any = SimpleNamespace(promised={}, limits=limits, workload=USUAL, prompt_p99=p99)
    assert _beside_promises(measured, winner).metrics == {"tpot_p50": 0.1, "itl_p50": 0.1}


def test_a_bench_measures_the_p50_and_the_p99_prompt(monkeypatch, tmp_path: Path) -> None:
    asked = []

    def measure(path, workload, **_):
        asked.append(workload.prompt_tokens)
        return measurement(workload, ttft_s=workload.prompt_tokens / 16)

    def alternately(paths, workload, **_):
        asked.append(workload.prompt_tokens)
        good = measurement(workload)
        return [good, MeasurementError("hangs") if workload.prompt_tokens == 96 else good]

    monkeypatch.setattr(bench, "measure", measure)
    monkeypatch.setattr(bench, "measure_alternately", alternately)
    monkeypatch.setattr(bench, "export_for", lambda runtime, design, folder, stem: folder / "random.onnx")
    monkeypatch.setattr(bench, "MeasurementStore", lambda: SimpleNamespace(add=lambda found, **_: None))
    both = Bench(spec(constraints={"ttft_p99": "<= 1 s"}, p99=96), prompt_p99=96)
    found = both.candidate(SimpleNamespace(), tmp_path)  # type: ignore[arg-type]
    assert (asked, found.environment["longest"]["ttft_p50"]) == ([16, 96], pytest.approx(6.0))
    good, failed = both.alternately([tmp_path / "a", tmp_path / "b"])
    assert isinstance(good, Measurement)
    assert isinstance(failed, MeasurementError)
    alone = Bench(spec(constraints={"ttft_p99": "<= 1 s"}))
    assert alone.candidate(SimpleNamespace(), tmp_path).environment == {"lost": 0.0}  # type: ignore[arg-type]


def test_a_winners_promises_over_prompts_are_not_compared_with_one_prompt() -> None:
    """P99s and memory hold over the spread; medians are those of the measured prompt."""
    known = {"tpot_p50": (1.0, 0.9, 1.1), "ttft_p99": (9.0, 8.0, 10.0), "peak_memory": (300.0, None, None)}
    limits = parse_constraints({"tpot_p50": "<= 2 s", "ttft_p99": "<= 10 s", "peak_memory": "<= 1 GB"})
    found: Any = Measured(measurement=measurement(USUAL), metrics={}, predicted=None, promised=None)
    winner: Any = SimpleNamespace(promised=known, limits=limits, workload=USUAL, prompt_p99=96)
    beside = _beside_promises(found, winner)
    assert (set(beside.promised), [limit.metric for limit in beside.limits]) == ({"tpot_p50"}, ["tpot_p50"])
    assert beside.notes == (
        "the winner's P99s and memory were predicted for prompts of 16 to 96 tokens, but all measured prompts have 16; "
        "measure the longer ones too: --prompt 96",
    )
    winner.prompt_p99 = None
    assert (_beside_promises(found, winner).promised, _beside_promises(found, winner).limits) == (known, limits)


def test_a_kit_with_one_prompt_says_that_p99s_over_the_spread_are_predicted(monkeypatch) -> None:
    run = spec(constraints={"ttft_p99": "<= 1 s"}, p99=96, device="raspberry-pi-5")
    trial = SimpleNamespace(design=None, measured=None)
    target: Any = SimpleNamespace(predict=lambda design: {})
    monkeypatch.setattr(kit_return, "kit_results", lambda *_, **__: {0: measurement(USUAL)})
    told: list[str] = []
    folder: Any = SimpleNamespace(path=None)
    notes: Any = kit_return.kit_notes({0: trial}, run, folder, target, on_note=told.append)  # type: ignore[arg-type]
    assert "ttft_p99" not in notes[0]["measured"]
    assert told == [
        "this kit measured only the P50 prompt of 16 tokens; P99s and memory with prompts of up to 96 tokens (P99) are "
        "predicted from its results"
    ]
