"""P99s by data sheet: P50 by the ratio of measured runs; over ssh, by the ratio measured there from then on."""

from __future__ import annotations

import numpy as np
import pytest

from chipwise.api.testing.target_suite import TargetSuite
from chipwise.design.run.spec import run_spec
from chipwise.design.targets.bench import Bench
from chipwise.design.targets.sheet import sheet_target
from chipwise.errors import SpecError
from chipwise.model.space.search_space import SearchSpace
from chipwise.predict.served.tails import shipped


def spec(constraints, *, target=None, **fields):
    data = {
        "name": "toy",
        "workload": {"prompt_tokens": 16, "new_tokens": 16},
        "target": target or {"device": "ssh:me@board", "like": "raspberry-pi-5"},
        "constraints": constraints,
        "space": {
            "d_model": [64, 128],
            "depth": [1, 2],
            "vocab_size": [512],
            "head_size": [32],
            "layer": {"heads": [2, 4], "kv_heads": [1, 2], "ffn": ["swiglu"], "ffn_width": [64, 256]},
            "weights": ["fp32", "int8"],
            "max_tokens": 128,
        },
        "data": {"source": "files", "paths": ["x.txt"]},
        **fields,
    }
    return run_spec(data, file="toy.yaml")


def reached():
    run = spec({"tpot_p99": "<= 50 ms"})
    space = SearchSpace(run.space)
    return sheet_target(run, space, Bench(run, host="me@board")), space


class TestOverSsh(TargetSuite):
    def make(self):
        return reached()


def test_a_p99_is_a_ratio_of_what_was_measured_there() -> None:
    """Six designs whose P99 is 1.3 times their P50: prior and six measurements leave 1.27 to 1.3, and an interval."""
    target, space = reached()
    rows = space.sample(9, np.random.default_rng(4))
    designs = [space.design(row) for row in rows]
    before = [target.predict(design) for design in designs]
    known = shipped().law("processor", "tpot").ratio(()).value  # ONNX Runtime, one request, on a processor
    table = target.metrics(rows)
    np.testing.assert_allclose(table["tpot_p99"], known * table["tpot_p50"])
    for each in before:
        assert each["tpot_p99"][0] == pytest.approx(known * each["tpot_p50"][0])
        assert each["tpot_p50"][1] <= each["tpot_p99"][1] < each["tpot_p99"][0] < each["tpot_p99"][2]

    def values(each) -> dict[str, float]:
        ttft_s, tpot_s = each["ttft_p50"][0], each["tpot_p50"][0]
        return {"ttft_p50": ttft_s, "tpot_p50": tpot_s, "ttft_p99": 1.1 * ttft_s, "tpot_p99": 1.3 * tpot_s}

    target.learn([(design, values(each)) for design, each in zip(designs[:6], before[:6], strict=True)])
    for design in designs[6:]:
        found = target.predict(design)
        value, low, high = found["tpot_p99"]
        ratio = value / found["tpot_p50"][0]
        assert 1.25 < ratio <= 1.3
        assert low < value < high
        assert high / low >= found["tpot_p50"][2] / found["tpot_p50"][1]  # the median's doubt, and the tail's own
        assert found["ttft_p99"][0] / found["ttft_p50"][0] == pytest.approx(1.1, rel=0.02)
        assert found["itl_p99"] == pytest.approx(found["tpot_p99"])  # requests one at a time: a gap is a step
    table = target.metrics(rows)
    np.testing.assert_allclose(table["tpot_p99"], ratio * table["tpot_p50"], rtol=1e-9)
    np.testing.assert_allclose(table["itl_p99"], table["tpot_p99"], rtol=1e-9)
    target.learn([])
    assert target.predict(designs[0]) == before[0]


@pytest.mark.parametrize(
    ("constraints", "fields"),
    [
        ({"tpot_p50": "<= 1 s"}, {"objectives": {"bits_per_byte": "minimize", "tpot_p99": "minimize"}}),
        ({"itl_p99": "<= 1 s"}, {"target": {"device": "raspberry-pi-5", "runtime": "onnxruntime"}}),
        ({"itl_p99": "<= 1 s"}, {}),
        ({"tpot_p99": "<= 1 s"}, {"quality": {"method": "law"}, "budget": {"tokens": "1B"}, "data": {},
                                  "objectives": {"expected_loss": "minimize"}}),
    ],
)  # fmt: skip
def test_p99s_can_be_asked_of_data_sheets(constraints, fields) -> None:
    assert spec(constraints, **fields).limits[0].limit == 1.0


@pytest.mark.parametrize(
    ("constraints", "message"),
    [
        ({"tpot_sustained": "<= 1 s"}, "tpot_sustained: over ssh a device is measured only while cold"),
    ],
)
def test_what_a_machine_over_ssh_does_not_tell(constraints, message) -> None:
    with pytest.raises(SpecError, match=message):
        spec(constraints)
