"""Trains and evaluates one model of a task other than text, without a search."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import yaml

from chipwise import api
from chipwise.core.files import read_mapping
from chipwise.design.phases.one_model import TaskScore, TaskTrained, other_than_text
from chipwise.design.run.spec import load_run
from chipwise.errors import InputError, SpecError, StudyError, Unsupported
from chipwise.model.arch.io import save
from chipwise.model.space.designs import design_of
from chipwise.model.space.search_space import SearchSpace
from chipwise.training.tasks.protocol import Losses

IMAGE = {"size": 8, "classes": 3, "channels": 1, "patch": [4], "pooling": ["mean"]}
SPACE = {
    "image": IMAGE,
    "d_model": [16],
    "depth": [1],
    "head_size": [8],
    "norm": "layernorm",
    "layers": "alike",
    "layer": {"heads": [2], "ffn": ["gelu"], "ffn_width": [32]},
}
RUN = {"name": "dots", "task": "vision", "space": SPACE, "data": {"source": "numpy", "path": "set.npz"}}


@pytest.fixture
def run_file(tmp_path: Path) -> Path:
    """A run file over images of three brightnesses, and a design of its space as ``model.yaml``."""
    random, labels = np.random.default_rng(0), np.repeat(np.arange(3), 60)
    images = np.clip(random.normal(60 + 60 * labels[:, None, None], 20, (180, 8, 8)), 0, 255)
    np.savez(tmp_path / "set.npz", images=images.astype(np.uint8), labels=labels)
    path = tmp_path / "dots.yaml"
    path.write_text(yaml.safe_dump(RUN))
    space = load_run(path).space
    rows = SearchSpace(space)
    design = design_of(rows.choices(rows.sample(1, random)[0]), spec=space, name="small")
    save(design.arch, tmp_path / "model.yaml")
    return path


def test_a_classifier_is_trained_exported_judged_and_goes_on(run_file: Path, tmp_path: Path) -> None:
    """Brightness is learnt in 60 steps; evaluating the folder gives the training's score, and it can be measured."""
    out = tmp_path / "trained"
    done = api.train(tmp_path / "model.yaml", data=[run_file], steps=60, out=out)
    assert isinstance(done, TaskTrained)
    assert (done.steps, done.folder) == (60, out / "model")
    assert done.test.value > 0.9
    score, baseline = api.evaluate(done.folder, run_file)
    assert (score, baseline) == (done.test, None)
    told = read_mapping(done.folder / "chipwise.json")
    assert (told["task"], told["weights"], told["accuracy"]) == ("vision", "fp32", done.test.value)
    with pytest.raises(StudyError, match="--resume"):
        api.train(tmp_path / "model.yaml", data=[run_file], steps=60, out=out)
    longer = api.train(done.folder, data=[run_file], tokens=1, out=tmp_path / "more")
    assert longer.steps == 1
    assert longer.test.value > 0.9  # it began where the other ended
    with pytest.raises(Unsupported, match="name a run file of its task"):
        api.shrink(done.folder)


def test_what_does_not_fit_is_refused_before_anything_is_trained(run_file: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="gpt2 reads text: name text files"):
        api.train("gpt2", data=[run_file], steps=1, out=tmp_path / "a")
    with pytest.raises(SpecError, match="size 224, not 8"):
        api.train("google/vit-base-patch16-224", data=[run_file], steps=1, out=tmp_path / "b")
    with pytest.raises(InputError, match="give one budget"):
        api.train(tmp_path / "model.yaml", data=[run_file], steps=1, tokens=1, out=tmp_path / "c")
    with pytest.raises(InputError, match="window: only applies to text models"):
        api.train(tmp_path / "model.yaml", data=[run_file], steps=1, window=8, out=tmp_path / "d")
    with pytest.raises(InputError, match="not a folder with weights"):
        api.evaluate(tmp_path, run_file)


def test_a_run_file_of_text_and_other_data_are_left_to_the_loop_of_text(tmp_path: Path) -> None:
    text = tmp_path / "text.yaml"
    text.write_text("name: a\nspace: {}\n")
    assert other_than_text(text) is None
    assert other_than_text(["medical-definitions"]) is None
    assert other_than_text({"source": "files"}) is None


def test_a_score_and_its_interval_by_hand(run_file: Path) -> None:
    """4 of 100 wrong: deviation √(0.04 · 0.96 · 100/99) / 10 = 0.0197, times 1.96 is 0.0386 on each side."""
    values = np.r_[np.ones(4), np.zeros(96)]
    score = TaskScore.of(load_run(run_file), Losses(values=values, sizes=np.ones(100)), "test")
    assert score.value == pytest.approx(0.96)
    assert (score.low, score.high) == pytest.approx((0.96 - 0.0386, 0.96 + 0.0386), abs=1e-4)
    assert score.shown == "96 % (92.1 % to 99.9 %)"
    certain = TaskScore.of(load_run(run_file), Losses(values=np.zeros(1), sizes=np.ones(1)), "test")
    assert (certain.low, certain.high, certain.shown) == (None, None, "100 %")


def test_layers_of_a_classifier_lose_by_themselves(run_file: Path, tmp_path: Path) -> None:
    """A model of one layer that int8 holds well enough keeps its answers; the unit is a share of errors."""
    done = api.train(tmp_path / "model.yaml", data=[run_file], steps=60, out=tmp_path / "trained")
    losses = api.sensitivity(done.folder, data=run_file)
    assert len(losses) == 1
    assert abs(losses[0]) < 0.1
    with pytest.raises(InputError, match=r"give a text file \(--text FILE\), or a run file"):
        api.sensitivity(done.folder)
    with pytest.raises(InputError, match="one of --text and --data"):
        api.sensitivity(done.folder, tmp_path / "text.txt", data=run_file)
