"""Denoisers of latents: the autoencoder, costs of passes and images, samples, scores and shipped files."""

from __future__ import annotations

import runpy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from test_diffusion import BASE, CHOICES, DATA, SPACE

from chipwise.core.fields import build
from chipwise.deploy.export.hf import load_pretrained
from chipwise.deploy.export.onnx import export
from chipwise.deploy.kits import kit_script
from chipwise.deploy.runtimes.onnxruntime_denoiser import OnnxDenoiser
from chipwise.design.prices.price_table import PriceTable, ProfilePricer
from chipwise.errors import InputError, SpecError
from chipwise.model.arch.design import Design
from chipwise.model.arch.io import from_data, to_data
from chipwise.model.kinds.denoiser.latents.spec import Latents
from chipwise.model.kinds.denoiser.module import draw
from chipwise.model.ops.elementwise import Elementwise
from chipwise.model.ops.matmul import ConvOp
from chipwise.model.ops.once import Once
from chipwise.model.ops.workload import Phase, Workload
from chipwise.model.space.designs import design_of, summary
from chipwise.model.space.search_space import SearchSpace
from chipwise.model.space.space_spec import SpaceSpec
from chipwise.model.walk.lower import lower
from chipwise.model.walk.weights import weight_shapes
from chipwise.predict.cost.estimate import estimate
from chipwise.predict.cost.memory import memory_parts
from chipwise.predict.cost.terms import terms
from chipwise.training.data.recipe import Recipe
from chipwise.training.loop.evaluate import load_model, read
from chipwise.training.loop.trainer import train
from chipwise.training.tasks.diffusion.dataset import FlowImages
from chipwise.training.tasks.diffusion.references import proportions
from chipwise.training.tasks.diffusion.sections import sections
from chipwise.training.tasks.diffusion.task import DIFFUSION
from chipwise.training.tasks.protocol import Exported
from support.form_suite import DenoiserSuite, check_parameters
from support.machines import core_like

SPEC = build(SpaceSpec, {**SPACE, "image": {**SPACE["image"], "latents": [1, 2], "patch": [2, 4]}})
REQUEST = Workload(prompt_tokens=1, new_tokens=1)


def design(**changes: Any) -> Design:
    return design_of({**CHOICES, "latents": 2, "patch": 2, **changes}, spec=SPEC)


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The task with its data and an autoencoder of 2 x 2 pixels."""
    data = {**DATA, "autoencoder_steps": 80}
    found = DIFFUSION.open(data, base=BASE, folder=tmp_path_factory.mktemp("data"), space=SPEC)
    found.prepare()
    return found


@pytest.fixture(scope="module")
def learnt(opened: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Weights of a short training."""
    folder = tmp_path_factory.mktemp("training")
    return train(
        design().arch, FlowImages.load(opened.path), steps=30, seed=0, folder=folder, recipe=Recipe(batch_windows=16)
    )


def machine() -> Any:
    """A core with rates of convolutions."""
    known = core_like()
    conv = {"node": 5e-6, "in": 1e-9, "out": 1e-9, "products": 5e-11}
    return replace(known, runtime="onnxruntime", terms={**known.terms, "conv.image": conv})


def test_a_model_of_latents_by_pencil() -> None:
    """Of 8 x 8 pixels 4 x 4 latents of 2 channels; patches of 2 x 2 have 8 values, and there are four."""
    arch = design().arch
    assert not arch.reads_tokens
    assert (arch.stem.shape, arch.stem.values, arch.stem.tokens) == ((2, 4, 4), 8, 4)
    decoder = (9 * 2 + 1) * 64 + (9 * 64 + 1) * 4
    assert arch.head.latents.parameters(2) == decoder
    assert weight_shapes(arch)["decoder.convs.1.weight"] == (4, 64, 3, 3)
    assert arch.parameters() - replace(arch, head=replace(arch.head, latents=None)).parameters() == decoder
    assert from_data(to_data(arch)) == arch
    assert "latents 2" in summary(design())
    check_parameters(arch)
    parts = memory_parts(design(), REQUEST)
    assert parts.table_bytes + parts.matrix_bytes == 4 * arch.parameters()


def test_the_decoder_runs_once_an_image_however_many_passes_it_takes() -> None:
    """Each of n passes is charged an n-th: what is added to an image's time is the decoder's own."""
    profile = machine()

    def seconds(arch: Any) -> float:
        made = Design(arch=arch)
        graph = lower(made, REQUEST, Phase.PREFILL)
        return estimate(made, graph, graph, REQUEST, profile).ttft_s

    added = []
    for steps, guidance in ((1, 1.0), (2, 1.0), (2, 3.0)):
        arch = design(steps=steps, guidance=guidance).arch
        added.append(seconds(arch) - seconds(replace(arch, head=replace(arch.head, latents=None))))
    assert added == pytest.approx([added[0]] * 3, rel=0.02)
    assert added[0] > 0
    whole = ConvOp(batch=1, positions=16, in_channels=2, out_channels=64, taps=9, bias=True)
    (part,), (all_of_it,) = terms(Once(op=whole, passes=4)), terms(whole)
    assert {name: 4 * amount for name, amount in part.amounts.items()} == pytest.approx(dict(all_of_it.amounts))
    work = Once(op=Elementwise(function="gelu", elements=100), passes=4).work()
    assert 4 * work.flops == Elementwise(function="gelu", elements=100).work().flops


def test_prices_of_a_space_are_those_of_its_designs() -> None:
    profile = machine()
    space = SearchSpace(SPEC)
    rows = space.sample(30, np.random.default_rng(0))
    assert set(space.factors(rows).tolist()) == {1, 2}
    costs = PriceTable(space, REQUEST, ProfilePricer(profile))(rows)
    for row, found in zip(rows, costs.ttft_s, strict=True):
        made = space.design(row)
        graph = lower(made, REQUEST, Phase.PREFILL)
        assert found == pytest.approx(estimate(made, graph, graph, REQUEST, profile).ttft_s, rel=1e-6)


def test_patches_fit_latents_and_are_no_wider_than_models() -> None:
    """14 x 14 latents of two channels: patches of 4 do not divide them, those of 7 have 98 values."""
    image = {"size": 28, "classes": 3, "patch": [2, 4, 7], "steps": [1], "latents": [1, 2]}
    space = SearchSpace(build(SpaceSpec, {**SPACE, "image": image, "d_model": [16, 64, 96]}))
    rows = space.sample(300, np.random.default_rng(0))
    found = {(int(f), int(p)) for f, p in zip(space.factors(rows), space.values(rows, "patch"), strict=True)}
    assert found == {(1, 2), (1, 4), (1, 7), (2, 2)}
    of_seven = rows[space.values(rows, "patch") == 7]
    assert space.values(of_seven, "d_model").min() == 64
    with pytest.raises(SpecError, match="values in a patch"):
        build(SpaceSpec, {**SPACE, "image": {**image, "latents": [4], "patch": [7]}, "d_model": [16]})


def test_an_autoencoder_keeps_images_and_standard_latents(opened: Any) -> None:
    data = FlowImages.load(opened.path)
    (images,) = data.examples("test")
    codec = data.codecs[2]
    latents = codec.encode(torch.from_numpy(np.ascontiguousarray(images)))
    assert tuple(latents.shape[1:]) == (2, 4, 4)
    assert abs(float(latents.mean())) < 0.2
    assert float(latents.std()) == pytest.approx(1.0, abs=0.2)
    assert ((codec.rebuilt(images) - images) ** 2).mean() < 0.3 * images.var()
    again = DIFFUSION.open({**DATA, "autoencoder_steps": 80}, base=BASE, folder=opened.folder, space=SPEC)
    again.prepare()  # is there already
    assert again.arrays.codecs[2].latents == Latents(factor=2, channels=1)


def test_latents_are_learnt_and_the_decoder_is_not(opened: Any, learnt: Any) -> None:
    data, arch = FlowImages.load(opened.path), design().arch
    images, _, noise, *_ = data.batch(arch, Recipe(batch_windows=8), 0, seed=0)
    assert tuple(images.shape) == tuple(noise.shape) == (8, 2, 4, 4)
    weights = read(learnt.weights)
    for name, value in data.held(arch).items():
        np.testing.assert_array_equal(weights[name], value)
    assert data.held(design(latents=1, patch=4).arch) == {}
    noise, _ = data.noise(arch, "validation", 640)
    decoded = data.codecs[2].decode(torch.from_numpy(noise)).numpy()
    assert learnt.loss < float(data.distances(decoded, "validation").mean())


def test_all_forms_draw_the_same_images(opened: Any, learnt: Any, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    arch = design(steps=2).arch
    DenoiserSuite().check_flops(arch)
    DenoiserSuite().check_export(arch)
    item = Exported(design=Design(arch=arch), weights=read(learnt.weights), folder=tmp_path)
    opened.ship(item, tmp_path / "winner", {})
    path = export(item.design, item.weights, tmp_path / "winner" / "model.onnx")
    _, weights = load_pretrained(tmp_path / "winner")
    ours, labels = load_model(arch, weights), torch.tensor([0, 2])
    noise = torch.randn((2, 2, 4, 4), generator=torch.Generator().manual_seed(5))
    theirs = transformers.AutoModel.from_pretrained(tmp_path / "winner", trust_remote_code=True)
    expected = draw(ours, noise, labels, arch.head)
    assert tuple(expected.shape) == (2, 1, 8, 8)
    torch.testing.assert_close(theirs.generate([0, 2], seed=5), expected, atol=1e-4, rtol=1e-4)
    start = np.random.default_rng(5).standard_normal((2, 2, 4, 4), dtype=np.float32)
    expected = draw(ours, torch.from_numpy(start), labels, arch.head).numpy()
    sampler = runpy.run_path(str(tmp_path / "winner" / "sampler.py"))
    np.testing.assert_allclose(sampler["draw"](path, [0, 2], seed=5), expected, atol=1e-4, rtol=1e-4)
    request = {"runtime": "onnxruntime", "model": str(path), "threads": 1, "batch": 2, "prompt_tokens": 1}
    kit = kit_script._open({**request, "new_tokens": 1})
    start = np.random.default_rng(0).standard_normal((2, 2, 4, 4), dtype=np.float32)
    np.testing.assert_allclose(kit.prefill(None), OnnxDenoiser(path, batch=2).prefill(start), atol=1e-6)


def test_decoded_images_are_judged_and_shown(opened: Any, learnt: Any, tmp_path: Path) -> None:
    item = Exported(design=design(steps=1), weights=read(learnt.weights), folder=tmp_path)
    judged = FlowImages.load(opened.path).judge(load_model(item.design.arch, item.weights)).loss
    assert opened.losses(item, split="validation").loss == pytest.approx(judged, rel=1e-3)
    samples = opened.samples(item, None)
    found = samples["drawn"]["winner"]["latents"]
    assert found["factor"] == 2
    assert found["real"] < found["distance"]
    assert "after encoding and decoding" in sections(samples)[0].html


def test_references_draw_latents_too_where_the_space_lists_them() -> None:
    found = {(choices["latents"], choices["patch"]) for choices in proportions(SPEC)}
    assert found == {(1, 2), (1, 4), (2, 2), (2, 4)}


def test_what_cannot_be_is_refused(opened: Any) -> None:
    image = SPACE["image"]
    for changes in (
        {"latents": [3]},
        {"latents": [4], "patch": [4, 8]},
        {"steps": [], "training": ["flow"], "latents": [2]},
    ):
        with pytest.raises(SpecError, match="latents"):
            build(SpaceSpec, {**SPACE, "image": {**image, **changes}})
    arch = design().arch
    other = replace(arch, head=replace(arch.head, latents=Latents(factor=4, channels=1)))
    with pytest.raises(InputError, match=r"4 pixels wide .*; those of the data's autoencoders: 2 pixels wide"):
        FlowImages.load(opened.path).require_fit(other)
