"""Estimates from the rates of whole runs: what is shown of them. And the seconds of sound that a pass keeps up with."""

from __future__ import annotations

from chipwise.predict.cost.model import Predicted
from chipwise.predict.cost.whole_run import RunEstimate

LATENCY = Predicted(value=0.25, low=0.2, high=0.3)
POWER = Predicted(value=400.0)


def estimate(**changes: object) -> RunEstimate:
    fields = {
        "model": "flux",
        "setting": "1024 x 1024",
        "device": "l4",
        "runtime": "torch",
        "metrics": {"latency_s": LATENCY, "power_w": POWER},
        "provenance": "predicted",
    }
    return RunEstimate(**(fields | changes))  # type: ignore[arg-type]


def test_the_headline_names_model_device_runtime_and_time() -> None:
    assert estimate().latency_s == 0.25
    assert estimate().headline() == "flux on l4, torch: 250 ms (200 to 300); predicted"
    part = estimate(part="decoder", devices=2, metrics={"latency_s": Predicted(value=0.25)})
    assert part.headline() == "flux, decoder on 2 x l4, torch: 250 ms (no interval: not validated); predicted"


def test_rows_are_one_a_metric() -> None:
    assert estimate(part="decoder").rows() == [
        {"model": "flux", "part": "decoder", "metric": "latency_s", "value": 0.25, "low": 0.2, "high": 0.3},
        {"model": "flux", "part": "decoder", "metric": "power_w", "value": 400.0, "low": None, "high": None},
    ]
