"""Diffusion as a task: the suite, flows by pencil, the distance by formula, and what is shipped."""

from __future__ import annotations

import runpy
import tempfile
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

from chipwise.api import estimate
from chipwise.api.testing.task_suite import TaskSuite
from chipwise.core.fields import build
from chipwise.deploy.export.hf import load_pretrained
from chipwise.deploy.export.onnx import export, random_weights
from chipwise.errors import DataError, InputError, SpecError, Unsupported
from chipwise.model.arch.design import Design
from chipwise.model.kinds.denoiser.module import draw
from chipwise.model.space.designs import design_of
from chipwise.model.space.search_space import SearchSpace
from chipwise.model.space.space_spec import SpaceSpec
from chipwise.training.data.arrays import LabelledArrays
from chipwise.training.data.recipe import Recipe
from chipwise.training.loop.evaluate import load_model
from chipwise.training.loop.trainer import train
from chipwise.training.tasks.diffusion.data import DrawnSpec, judging_arch
from chipwise.training.tasks.diffusion.dataset import FlowImages
from chipwise.training.tasks.diffusion.frechet import Moments, distances
from chipwise.training.tasks.diffusion.task import DIFFUSION
from chipwise.training.tasks.protocol import Exported

EACH = 40  # images of a class


def written() -> Path:
    """A folder with images whose brightness tells their class."""
    folder, random = Path(tempfile.mkdtemp(prefix="chipwise-")), np.random.default_rng(0)
    labels = np.repeat(np.arange(3), EACH)
    images = np.clip(random.normal(60 + 60 * labels[:, None, None], 20, (3 * EACH, 8, 8)), 0, 255)
    np.savez(folder / "set.npz", images=images.astype(np.uint8), labels=labels)
    return folder


SPACE: dict[str, Any] = {
    "image": {"size": 8, "classes": 3, "patch": [4], "steps": [1, 2]},
    "d_model": [16, 32],
    "depth": [1, 2],
    "head_size": [8],
    "norm": "layernorm",
    "layers": "alike",
    "layer": {"heads": [1, 2], "ffn": ["gelu"], "ffn_width": [16, 32]},
}
CHOICES = {
    "d_model": 16, "depth": 1, "vocab_size": 3, "head_size": 8, "tie_embeddings": False, "weights": "fp32",
    "sharing": "none", "patch": 4, "stem": "patches", "pooling": "mean", "square": "none", "steps": 2,
    "training": "flow", "layers": [{"heads": 2, "kv_heads": 2, "ffn": "gelu", "ffn_width": 16}],
}  # fmt: skip
HOW: list[dict[str, Any]] = [{"guidance": 2.5}, {"solver": "multistep", "shift": 2.0}]
DATA: dict[str, Any] = {"source": "numpy", "path": "set.npz", "validation_share": 0.2, "classifier_steps": 4}
BASE = written()


class TestDiffusion(TaskSuite):
    """Denoisers of 8 x 8 images."""

    task, base = DIFFUSION, BASE
    data: ClassVar[dict[str, Any]] = DATA
    space: ClassVar[dict[str, Any]] = SPACE


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The task with its data."""
    space = build(SpaceSpec, SPACE)
    found = DIFFUSION.open(DATA, base=BASE, folder=tmp_path_factory.mktemp("data"), space=space)
    found.prepare()
    return found


def design(**changes: Any) -> Design:
    return design_of({**CHOICES, **changes}, spec=build(SpaceSpec, SPACE))


def test_the_distance_is_that_of_two_normal_distributions() -> None:
    """Along one axis: (μ − μ')² + (σ − σ')²; of commuting covariances the same, axis by axis."""
    random = np.random.default_rng(0)
    made, real = random.normal(0, 1, (500, 3)), random.normal(2, 1, (500, 3)) * [1, 2, 3]
    for features, others in ((made[:, :1], real[:, :1]),):
        expected = (features.mean() - others.mean()) ** 2 + (features.std() - others.std()) ** 2
        assert distances(features, Moments.of(others)).mean() == pytest.approx(expected)
    eigen, _ = np.linalg.qr(random.normal(size=(3, 3)))
    spread = np.sqrt(3) * np.kron(np.diag([1.0, 2.0, 3.0]), [[1], [-1]]) @ eigen  # covariance: squares of 1, 2, 3
    assert distances(2 * spread + 1, Moments.of(spread)).mean() == pytest.approx(3 + 1 + 4 + 9)
    assert distances(made, Moments.of(made)).mean() == pytest.approx(0, abs=1e-9)
    assert np.isnan(distances(np.full((4, 2), np.inf), Moments.of(made[:, :2]))).all()


def test_an_images_influence_is_what_the_distance_changes_by() -> None:
    """Repeating one image moves the distance by its influence over n, to first order."""
    random = np.random.default_rng(1)
    made, real = random.normal(0.5, 1, (4000, 4)), Moments.of(random.normal(0, 2, (300, 4)))
    values = distances(made, real)
    for i in (0, 1, 2):
        again = distances(np.vstack([made, made[i]]), real).mean()
        assert again - values.mean() == pytest.approx((values[i] - values.mean()) / len(made), rel=0.05)


def test_a_flow_is_learnt_on_straight_paths(opened: Any) -> None:
    """Of a model that says 0, the loss is the mean square of image − noise: 1 + that of images, about."""
    data, arch = FlowImages.load(opened.path), design().arch
    batch = data.batch(arch, Recipe(batch_windows=64), 0, seed=0)
    images, _, noise, times = batch
    assert 0 < float(times.min()) < float(times.max()) < 1
    model = load_model(arch, {name: 0 * value for name, value in random_weights(arch, seed=0).items()})
    loss = data.loss(model, batch, torch.float32)
    assert float(loss.detach()) == pytest.approx(float(((images - noise) ** 2).mean()))


def test_more_steps_are_judged_by_what_they_draw(opened: Any, tmp_path: Path) -> None:
    """The same weights in other steps draw other images; noise alone is farther from images than what was learnt."""
    data, few, many = FlowImages.load(opened.path), design(steps=1), design(steps=2)
    result = train(many.arch, data, steps=40, seed=0, folder=tmp_path, recipe=Recipe(batch_windows=32))
    noise, _ = data.noise(many.arch, "validation", 640)
    assert result.loss < float(data.distances(noise, "validation").mean())
    again = train(few.arch, data, steps=40, seed=0, folder=tmp_path, recipe=Recipe(batch_windows=32))
    assert again.spent_cpu_s == 0
    assert again.weights == result.weights
    judged = data.judge(load_model(few.arch, result.weights)).loss
    assert again.loss == pytest.approx(judged, rel=1e-5)
    assert again.loss != result.loss


def test_what_does_not_fit_is_refused(opened: Any, tmp_path: Path) -> None:
    data = FlowImages.load(opened.path)
    other = build(SpaceSpec, {**SPACE, "image": {**SPACE["image"], "classes": 4}})
    with pytest.raises(InputError, match="labels"):
        data.require_fit(design_of(CHOICES, spec=other).arch)
    with pytest.raises(InputError, match="does not generate images"):
        data.require_fit(judging_arch(opened.inputs))
    with pytest.raises(SpecError, match="classifier_steps"):
        DrawnSpec(classifier_steps=0)
    LabelledArrays(**{each.name: getattr(data, each.name) for each in fields(LabelledArrays)}).save(
        tmp_path / "plain.npz"
    )
    with pytest.raises(DataError, match="contains no classifier"):
        FlowImages.load(tmp_path / "plain.npz")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"steps": []}, "list the numbers of steps"),
        ({"training": ["flow", "shortcut"]}, "shortcut training is no longer part of chipwise"),
        ({"stem": ["conv4"]}, "patches of an image"),
        ({"steps": [0]}, "at least 1"),
        ({"shift": [0.0]}, "1 means no shift"),
    ],
)
def test_spaces_that_cannot_be_are_refused(changes: dict[str, Any], message: str) -> None:
    image = {**SPACE["image"], **changes}
    with pytest.raises(SpecError, match=message):
        DIFFUSION.require_fit(SimpleNamespace(), build(SpaceSpec, {**SPACE, "image": image}))  # type: ignore[arg-type]


def test_a_denoiser_is_as_wide_as_its_patches_have_values() -> None:
    """16 values of 4 x 4 pixels and 64 of 8 x 8: a width of 32 is for the small patch alone."""
    image = {**SPACE["image"], "patch": [4, 8]}
    space = SearchSpace(build(SpaceSpec, {**SPACE, "d_model": [32, 64], "image": image}))
    rows = space.sample(60, np.random.default_rng(0))
    pairs = set(zip(space.values(rows, "patch").tolist(), space.values(rows, "d_model").tolist(), strict=True))
    assert pairs == {(4, 32), (4, 64), (8, 64)}
    assert {c["d_model"] >= c["patch"] ** 2 for c in DIFFUSION.references(space.spec)} == {True}
    with pytest.raises(SpecError, match=r"must be at least .* values in a patch"):
        build(SpaceSpec, {**SPACE, "d_model": [32], "image": image})


@pytest.mark.parametrize("changes", HOW, ids=["guided", "multistep"])
def test_the_folder_and_the_sampler_draw_what_the_model_draws(
    opened: Any, tmp_path: Path, changes: dict[str, Any]
) -> None:
    transformers = pytest.importorskip("transformers")
    chosen = design(**changes, steps=4)
    item = Exported(design=chosen, weights=random_weights(chosen.arch, seed=0), folder=tmp_path)
    opened.ship(item, tmp_path / "winner", {})
    export(chosen, item.weights, tmp_path / "winner" / "model.onnx")
    arch, weights = load_pretrained(tmp_path / "winner")
    assert arch.digest == chosen.arch.digest
    ours, labels = load_model(arch, weights), torch.tensor([0, 2])
    theirs = transformers.AutoModel.from_pretrained(tmp_path / "winner", trust_remote_code=True)
    noise = torch.randn((2, 1, 8, 8), generator=torch.Generator().manual_seed(5))
    expected = draw(ours, noise, labels, chosen.arch.head)
    torch.testing.assert_close(theirs.generate([0, 2], seed=5), expected, atol=1e-4, rtol=1e-4)
    sampler = runpy.run_path(str(tmp_path / "winner" / "sampler.py"))
    noise = torch.from_numpy(np.random.default_rng(5).standard_normal((2, 1, 8, 8), dtype=np.float32))
    found = sampler["draw"](tmp_path / "winner" / "model.onnx", [0, 2], seed=5)
    expected = draw(ours, noise, labels, chosen.arch.head)
    np.testing.assert_allclose(found, expected.numpy(), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("changes", HOW, ids=["guided", "multistep"])
def test_a_kit_takes_all_steps_of_an_image(tmp_path: Path, changes: dict[str, Any]) -> None:
    """The script that is copied to a device draws what chipwise's own session draws of the same noise."""
    from chipwise.deploy.kits import kit_script
    from chipwise.deploy.runtimes.onnxruntime_denoiser import OnnxDenoiser

    chosen = design(**changes, steps=4)
    path = export(chosen, random_weights(chosen.arch, seed=0), tmp_path / "model.onnx")
    request = {"runtime": "onnxruntime", "model": str(path), "threads": 1, "batch": 2, "prompt_tokens": 1}
    kit = kit_script._open({**request, "new_tokens": 1})
    noise = np.random.default_rng(0).standard_normal((2, 1, 8, 8), dtype=np.float32)
    np.testing.assert_allclose(kit.prefill(None), OnnxDenoiser(path, batch=2).prefill(noise), atol=1e-6)


def test_a_denoiser_is_not_priced_as_a_classifier_on_a_data_sheet(tmp_path: Path) -> None:
    from chipwise.model.arch.io import save

    save(design().arch, tmp_path / "denoiser.json")
    with pytest.raises(Unsupported, match="is a denoiser"):
        estimate(str(tmp_path / "denoiser.json"), device="h100-sxm")
