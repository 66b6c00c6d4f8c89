"""A whole search for a transcribing model on a tiny budget, for a machine known by its profile: nothing is timed."""

from __future__ import annotations

import json
import wave
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chipwise.api import search
from chipwise.design.report.record import load
from chipwise.design.run.spec import run_spec
from chipwise.errors import SpecError
from support.machines import core_like

RUN: dict[str, Any] = {
    "name": "tiny-transcripts",
    "task": "transcripts",
    "target": {"device": "profile.json"},
    "workload": {"batch": 1},
    "constraints": {"rtf": "<= 0.01", "cer": "<= 300 %"},
    "objectives": {"cer": "minimize", "rtf": "minimize"},
    "space": {
        "sound": {"size": 48, "channels": 12, "classes": 5, "stride": [2, 4], "module": ["none", "conv3"]},
        "d_model": [16, 32],
        "depth": [1],
        "head_size": [16],
        "layer": {"heads": [1], "ffn": ["gelu"], "ffn_width": [32]},
        "weights": ["fp32", "int8"],
        "layers": "alike",
        "norm": "layernorm",
    },
    "data": {"source": "folder", "path": "songs", "licence": "made up", "snr_db": [30], "copies": 1},
    "train": {"precision": "fp32"},
    "budget": {"tokens": "200k", "final": "60k", "workers": 1},
}


def machine() -> dict[str, dict[str, float]]:
    """Rates of the nodes that models of sound have."""
    rows = {"node": 1e-6, "value": 2e-10}
    attention = {"node": 2e-6, "head": 1e-7, "score": 1e-9, "product": 2e-11, "value": 1e-9, "query": 1e-9, "rest": 0.0}
    kinds = ("split", "pad", "transpose", "sigmoid")
    return {f"elementwise.{kind}": dict(rows) for kind in kinds} | {
        "attention.full": attention,
        "conv.centred": rows | {"tap": 1e-10},
    }


def sing(path: Path, text: str, pitch: float) -> None:
    """Writes 100 ms of a tone for each letter, and of near silence for a space."""
    tones = {"a": 400.0, "b": 1500.0, "c": 4000.0, " ": 0.0}
    angles = 2 * np.pi * pitch * np.arange(1600) / 16_000
    samples = np.concatenate([0.5 * np.sin(tones[sign] * angles) for sign in text])
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(16_000)
        file.writeframes((samples * 32767).astype("<i2").tobytes())


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A profile, and 40 songs of eight singers with their texts beside them."""
    known = core_like()
    replace(known, runtime="onnxruntime", terms=known.terms | machine()).save(tmp_path / "profile.json")
    (tmp_path / "songs").mkdir()
    lines = ["file,text,speaker"]
    for singer in range(8):
        for number, text in enumerate(("ab", "ba", "cab", "a c", "bc")):
            name = f"{singer}-{number}.wav"
            sing(tmp_path / "songs" / name, text, 1 + singer / 200)
            lines.append(f"{name},{text},{singer}")
    (tmp_path / "songs" / "texts.csv").write_text("\n".join(lines) + "\n")
    return tmp_path


def test_a_search_ends_with_a_winner_that_writes_down_what_is_sung(folder: Path) -> None:
    import yaml

    (folder / "run.yaml").write_text(yaml.safe_dump(RUN))
    found = search(folder / "run.yaml", out=folder / "run")
    winner = found.trial(found.winner)
    assert winner is not None
    assert (found.status, found.task) == ("finished", "transcripts")
    assert winner.test_loss is not None
    assert winner.predicted["rtf"].value == pytest.approx(winner.predicted["ttft_p50"].value / 0.48)
    assert found.samples["rates"]["winner"]["characters"]["rate"] == pytest.approx(winner.test_loss)
    assert load(folder / "run" / "record.json").samples == found.samples
    report, card = ((folder / "run" / name).read_text() for name in ("report.html", "card.md"))
    for text in ("What it hears", "Characters and words", "Errors by noise", "Real-time factor"):
        assert text in report
    for text in (report, card):
        assert "character error rate" in text.lower()
        assert "bits per byte" not in text
    assert "Real-time factor of the model" in card
    assert "made up" in card
    promises = json.loads((folder / "run" / "winner" / "chipwise.json").read_text())
    assert promises["cer"] == pytest.approx(winner.test_loss)
    shipped = {path.name for path in (folder / "run" / "winner").iterdir()}
    assert {"front_end.json", "vocab.json", "modeling_chipwise_sound.py"} <= shipped


def test_a_space_without_sounds_is_refused() -> None:
    space = {name: value for name, value in RUN["space"].items() if name != "sound"}
    layer = {"heads": [1], "kv_heads": [1], "ffn": ["gelu"], "ffn_width": [16]}
    goals: dict[str, Any] = {"constraints": {}, "objectives": {"cer": "minimize"}}
    with pytest.raises(SpecError, match=r"space.sound.*describe the spectrograms"):
        run_spec({**RUN, **goals, "space": space | {"vocab_size": [20], "layer": layer}}, file="run.yaml")


def test_real_time_factors_are_of_sounds_alone() -> None:
    """A spectrogram of 100 frames is a second of sound; an image holds none, and more is never better."""
    image = {"size": 100, "channels": 4, "classes": 3, "patch": [10]}
    space = {name: value for name, value in RUN["space"].items() if name != "sound"}
    words = {
        "task": "speech",
        "constraints": {"rtf": "<= 0.1"},
        "objectives": {"accuracy": "maximize", "rtf": "minimize"},
    }
    heard = run_spec({**RUN, **words, "space": space | {"image": image | {"axes": 1}}}, file="run.yaml")
    assert heard.space.sound_s == 1.0
    seen = {**RUN, "task": "vision", "constraints": {"rtf": "<= 0.1"}, "objectives": {"accuracy": "maximize"}}
    with pytest.raises(SpecError, match="holds no sound; use ttft_p50"):
        run_spec({**seen, "space": space | {"image": image}, "data": {}}, file="run.yaml")
    with pytest.raises(SpecError, match="less is better"):
        run_spec({**RUN, "objectives": {"cer": "minimize", "rtf": "maximize"}}, file="run.yaml")


def test_predicted_factors_are_times_over_seconds(folder: Path) -> None:
    """Of every row and of a design alone, with the interval's ends."""
    from chipwise.design.targets.cost_model import CostModel
    from chipwise.hardware.device import MachineProfile
    from chipwise.model.ops.workload import Workload
    from chipwise.model.space.search_space import SearchSpace

    run = run_spec(RUN, file=str(folder / "run.yaml"))
    space = SearchSpace(run.space)
    model = CostModel(space, Workload(prompt_tokens=1, new_tokens=1), MachineProfile.load(folder / "profile.json"))
    rows = space.sample(5, np.random.default_rng(0))
    found = model.metrics(rows)
    np.testing.assert_allclose(found["rtf"], found["ttft_p50"] / 0.48)
    alone = model.predict(space.design(rows[0]))
    np.testing.assert_allclose(alone["rtf"], np.array(alone["ttft_p50"]) / 0.48)
