"""Models of tasks other than text, cut with their task's data: limits are kept, scores are in the task's metric."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from safetensors.numpy import load_file
from transformers import AutoModelForImageClassification, ViTConfig, ViTForImageClassification
from typer.testing import CliRunner

from chipwise import api
from chipwise.cli.app import app
from chipwise.core.files import read_mapping
from chipwise.deploy.export.hf import load_pretrained
from chipwise.design.shrink import block_costs
from chipwise.design.shrink.distillation import Healing
from chipwise.design.shrink.shrink_model import ShrinkRequest, shrink_model
from chipwise.errors import InputError, SpecError, Unsupported

IMAGE = {"size": 8, "classes": 3, "channels": 1, "patch": [4], "pooling": ["first"]}
SPACE = {
    "image": IMAGE,
    "d_model": [32],
    "depth": [3],
    "head_size": [8],
    "norm": "layernorm",
    "layers": "alike",
    "layer": {"heads": [4], "ffn": ["gelu"], "ffn_width": [64]},
}
RUN = {"name": "dots", "task": "vision", "space": SPACE, "data": {"source": "numpy", "path": "set.npz"}}


@pytest.fixture(scope="module")
def home(tmp_path_factory) -> Path:
    """Images of three brightnesses, their run file, and a ViT of transformers that was trained on them a little."""
    home = tmp_path_factory.mktemp("dots")
    random, labels = np.random.default_rng(0), np.repeat(np.arange(3), 60)
    images = np.clip(random.normal(60 + 60 * labels[:, None, None], 20, (180, 8, 8)), 0, 255)
    np.savez(home / "set.npz", images=images.astype(np.uint8), labels=labels)
    (home / "dots.yaml").write_text(yaml.safe_dump(RUN))
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 64}
    config = ViTConfig(**sizes, image_size=8, patch_size=4, num_channels=1, num_labels=3)
    ViTForImageClassification(config).save_pretrained(home / "fresh")
    api.train(home / "fresh", data=[home / "dots.yaml"], steps=60, out=home / "trained")
    return home


@pytest.fixture(autouse=True)
def quick_timing(monkeypatch) -> None:
    """Seconds of a pass as its parameters: what is tested here is what is done with them."""

    def timed(archs, workload, weights, seconds, rounds, told):
        seconds = [1e-6 * sum(arch.layer_parameters(layer) for layer in arch.layers) + 1e-3 for arch in archs]
        return [{"request": one, "ttft": one} for one in seconds]

    monkeypatch.setattr(block_costs, "_timed", timed)


def shrunk(home: Path, out: Path, **changes):
    common = {"data": [home / "dots.yaml"], "healing": Healing(steps=30, rate=2e-3, warmup_steps=2)} | changes
    resume = common.pop("resume", False)
    return shrink_model(home / "trained" / "model", ShrinkRequest(**common), measured=False, out=out, resume=resume)


def test_an_image_classifier_is_cut_within_the_limit_and_still_tells_classes_apart(home, tmp_path) -> None:
    for method in ("exact", "truncate"):
        found = shrunk(home, tmp_path / "out", method=method, latency="60 %", resume=method != "exact")
        assert found.predicted_s <= found.limit_s
        assert found.parameters < found.original_parameters
        assert found.loss_after <= found.loss_before  # shares of errors on validation images
        assert found.original_score.value > 0.9
        assert found.score.value > 0.9
        assert found.score.entries == 15  # five of each brightness, none of which was learnt
        kept, weights = load_pretrained(found.folder)
        assert kept.parameters() == found.parameters == sum(value.size for value in weights.values())
    assert len(found.arch.layers) < 3  # truncation leaves whole layers out
    assert api.evaluate(found.folder, home / "dots.yaml")[0] == found.score  # the folder is what was judged


def test_what_is_shipped_computes_what_was_judged(home, tmp_path) -> None:
    """The folder with its own modelling file, and the graph beside it: the same logits."""
    from chipwise.deploy.runtimes.onnxruntime import OnnxClassifier

    found = shrunk(home, tmp_path / "out", latency="60 %")
    theirs = AutoModelForImageClassification.from_pretrained(found.folder, trust_remote_code=True).eval()
    image = np.random.default_rng(1).standard_normal((1, 1, 8, 8), dtype=np.float32)
    with torch.no_grad():
        expected = theirs(torch.from_numpy(image)).logits.numpy()
    logits = OnnxClassifier(tmp_path / "out" / "exact" / "model.onnx").prefill(image)
    assert np.abs(logits - expected).max() < 1e-4
    told = read_mapping(found.folder / "chipwise.json")
    assert (told["task"], told["accuracy"]) == ("vision", found.score.value)


def test_nothing_to_cut_changes_nothing(home, tmp_path) -> None:
    found = shrunk(home, tmp_path / "out", latency="200 %", healing=Healing(steps=0))
    assert found.score == found.original_score
    assert found.loss_before == found.loss_after
    before = load_file(home / "trained" / "model" / "model.safetensors")
    assert sum(value.size for value in before.values()) >= found.parameters  # blocks that change no score may go


def test_a_chip_that_is_not_here_is_predicted(home, tmp_path) -> None:
    """The sum of predicted blocks keeps the limit, and so does the estimate of the whole cut, as a share."""
    found = shrunk(home, tmp_path / "out", latency="80 %", device="raspberry-pi-5")
    assert found.latency is None
    assert found.estimates is not None
    whole = api.estimate(found.arch, device="raspberry-pi-5", weights="fp32")
    assert found.estimates[1].ttft_s == pytest.approx(whole.ttft_s)
    assert found.ratio == pytest.approx(found.estimates[1].ttft_s / found.estimates[0].ttft_s)
    assert found.ratio <= 0.8
    with pytest.raises(InputError, match="--device"):
        shrunk(home, tmp_path / "b", runtime="llama.cpp")


def test_a_classifier_without_its_data_is_told_what_to_name(home, tmp_path) -> None:
    with pytest.raises(Unsupported, match=r"does not read text; name a run file of its task.*--data vision\.yaml"):
        api.shrink(home / "trained" / "model", out=tmp_path / "out")
    other = tmp_path / "other.yaml"
    image = {**IMAGE, "size": 16}
    other.write_text(yaml.safe_dump({**RUN, "space": {**SPACE, "image": image}}))
    with pytest.raises(SpecError, match="size 8, not 16"):
        api.shrink(home / "trained" / "model", data=[other], out=tmp_path / "out")


def test_the_command_says_the_score_of_both(home, tmp_path) -> None:
    asked = ["shrink", str(home / "trained" / "model"), "--data", str(home / "dots.yaml"), "--steps", "2"]
    asked += ["--device", "raspberry-pi-5", "--latency", "90 %", "--out", str(tmp_path / "out")]
    said = CliRunner().invoke(app, [*asked, "--json"])
    assert said.exit_code == 0, said.output
    found = json.loads(said.stdout)
    assert found["score"]["metric"] == "accuracy"
    assert found["predicted"]["device"] == "raspberry-pi-5"
    assert found["predicted"]["request_s"] <= 0.9 * found["predicted"]["original_request_s"]
    said = CliRunner().invoke(app, [*asked, "--resume"])
    assert said.exit_code == 0, said.output
    assert "accuracy, test data" in said.output
    assert CliRunner().invoke(app, [*asked, "--resume", "--tokens", "8"]).exit_code == 2
