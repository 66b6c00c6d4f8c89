"""A whole search for a denoiser on a tiny budget, for a machine known by its profile: nothing is timed."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from chipwise.api import search
from chipwise.design.limits import Constraint
from chipwise.design.phases.choosing import Chooser
from chipwise.design.phases.screening import screen
from chipwise.design.run.spec import run_spec
from chipwise.design.run.winner import read_winner
from chipwise.errors import SpecError
from chipwise.model.space.search_space import SearchSpace
from support.machines import core_like

SPACE = {
    "image": {"size": 8, "classes": 3, "patch": [4], "steps": [1, 2], "training": ["flow"]},
    "d_model": [16, 32],
    "depth": [1],
    "head_size": [8],
    "norm": "layernorm",
    "layers": "alike",
    "layer": {"heads": [2], "ffn": ["gelu"], "ffn_width": [16, 32]},
    "weights": ["fp32", "int8"],
}
RUN = {
    "name": "tiny-diffusion",
    "task": "diffusion",
    "target": {"device": "machine.json", "runtime": "onnxruntime"},
    "constraints": {"ttft_p50": "<= 2 ms"},
    "space": SPACE,
    "data": {"source": "numpy", "path": "set.npz", "validation_share": 0.2, "classifier_steps": 4},
    "train": {"precision": "fp32"},
    "budget": {"tokens": "100k", "final": "20k", "workers": 1},
}


def test_a_search_ends_with_a_winner_that_draws(tmp_path: Path) -> None:
    """Steps are a choice: designs that differ in them alone share a training, and their time is steps times a pass."""
    replace(core_like(), runtime="onnxruntime").save(tmp_path / "machine.json")
    random = np.random.default_rng(0)
    labels = np.repeat(np.arange(3), 40)
    images = np.clip(random.normal(60 + 60 * labels[:, None, None], 20, (120, 8, 8)), 0, 255)
    np.savez(tmp_path / "set.npz", images=images.astype(np.uint8), labels=labels)
    target = {"device": str(tmp_path / "machine.json"), "runtime": "onnxruntime"}
    data = {**RUN["data"], "path": str(tmp_path / "set.npz")}
    found = search({**RUN, "target": target, "data": data}, out=tmp_path / "run")
    winner = found.trial(found.winner)
    assert (found.status, found.task) == ("finished", "diffusion")
    steps = {trial.number: trial.choices["steps"] for trial in found.trials}
    assert set(steps.values()) <= {1, 2}
    assert found.samples["drawn"]["winner"]["steps"] == steps[winner.number]
    trained = {path.name for path in (tmp_path / "run" / "trainings").iterdir()}
    assert len(trained) < len(found.trials)
    report = (tmp_path / "run" / "report.html").read_text()
    for text in (re.sub(r"<script.*?</script>", "", report, flags=re.S), (tmp_path / "run" / "card.md").read_text()):
        assert "Fréchet distance" in text
        assert "bits per byte" not in text
    assert "What it draws" in report
    promises = json.loads((tmp_path / "run" / "winner" / "chipwise.json").read_text())
    assert promises["frechet_distance"] == pytest.approx(winner.test_loss)
    names = {path.name for path in (tmp_path / "run" / "winner").iterdir()}
    assert {"model.onnx", "sampler.py", "modeling_chipwise_denoiser.py", "model.safetensors"} <= names
    shipped = read_winner(tmp_path / "run" / "winner")
    assert shipped.design.arch.passes == steps[winner.number]


def test_a_run_without_steps_is_refused() -> None:
    image = {name: value for name, value in SPACE["image"].items() if name not in ("steps", "training")}  # type: ignore[attr-defined]
    with pytest.raises(SpecError, match="list the numbers of steps"):
        run_spec({**RUN, "space": {**SPACE, "image": image}}, file="run.yaml")


def test_a_denoiser_is_worth_what_it_is_worth_in_the_best_number_of_steps_within_the_limits() -> None:
    """By the law, distances in one step are 1 + 4 times that of many, in two 1 + 4 / 2^1.5: better by 0.483 where a
    second step is within the limits."""
    spec = run_spec({**RUN, "target": {"device": "local", "runtime": "onnxruntime"}}, file="run.yaml")
    space = SearchSpace(spec.space)

    def metrics(rows) -> dict[str, np.ndarray]:
        return {"ttft_p50": 1e-3 * space.steps(rows), "parameters": np.full(len(rows), 1e4)}

    def chooser(limit_s: float) -> Chooser:
        limits = (Constraint(metric="ttft_p50", op="<=", limit=limit_s, text=f"<= {limit_s} s"),)
        screened = screen(space, metrics, limits, seed=0, draws=50)
        return Chooser(
            space, screened, metrics, spec.goals, limits, final=60.0, seed=0, law=spec.task_settings.law,
            bytes_per_token=lambda rows: np.ones(len(rows)),
        )  # fmt: skip

    rows = {steps: space.nearest({**space.choices([0] * len(space.genes)), "steps": steps}) for steps in (1, 2)}
    both, one = chooser(2e-3), chooser(1e-3)
    assert both.better_served(rows[1]) == pytest.approx((1 + 4 * 2**-1.5) / 5)
    assert (both.better_served(rows[2]), one.better_served(rows[1])) == (1.0, 1.0)
