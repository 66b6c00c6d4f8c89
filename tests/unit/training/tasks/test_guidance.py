"""Guidance without a classifier: by pencil, in training, as a choice of a space, and what an image of it takes."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from test_diffusion import BASE, CHOICES, DATA, SPACE

from chipwise.core.fields import build
from chipwise.deploy.export.onnx import random_weights
from chipwise.design.phases.choosing import Chooser
from chipwise.errors import SpecError
from chipwise.model.kinds.denoiser.denoiser import Denoiser
from chipwise.model.kinds.denoiser.module import draw
from chipwise.model.ops.workload import Phase, Workload
from chipwise.model.space.designs import design_of, summary
from chipwise.model.space.search_space import SearchSpace
from chipwise.model.space.space_spec import SpaceSpec
from chipwise.model.walk.lower import lower
from chipwise.model.walk.weights import weight_shapes
from chipwise.predict.cost.estimate import estimate
from chipwise.training.data.recipe import Recipe
from chipwise.training.tasks.diffusion.dataset import FlowImages
from chipwise.training.tasks.diffusion.references import proportions
from chipwise.training.tasks.diffusion.sections import sections
from chipwise.training.tasks.diffusion.task import DIFFUSION
from chipwise.training.tasks.protocol import Exported

GUIDED: dict[str, Any] = {**SPACE, "image": {**SPACE["image"], "guidance": [1, 2, 4]}}
SPEC = build(SpaceSpec, GUIDED)


def arch_of(**changes: Any) -> Any:
    return design_of({**CHOICES, "guidance": 1.0, **changes}, spec=SPEC).arch


def test_a_step_goes_further_the_way_the_label_pulls() -> None:
    """Velocity 3 with the label and 1 without: guided by 2.5 it is 1 + 2.5 (3 - 1) = 6, in one step of 1."""

    class Known(torch.nn.Module):
        labels = torch.nn.Embedding(4, 2)

        def forward(self, image: torch.Tensor, time: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
            return torch.where(label == 3, 1.0, 3.0)[:, None, None, None] * torch.ones_like(image)

    start, labels = torch.zeros((2, 1, 4, 4)), torch.tensor([0, 2])
    found = draw(Known(), start, labels, Denoiser(labels=3, steps=4, guidance=2.5))  # type: ignore[arg-type]
    torch.testing.assert_close(found, torch.full_like(start, 6.0))


def test_a_guided_model_has_one_more_row_of_labels_and_takes_two_passes_a_step() -> None:
    plain, guided = arch_of(steps=2), arch_of(steps=2, guidance=4.0)
    assert guided.parameters() - plain.parameters() == plain.d_model
    assert weight_shapes(guided)["labels.weight"] == (4, 16)
    assert (plain.passes, guided.passes) == (2, 4)
    assert plain.head == Denoiser(labels=3, frequencies=64, steps=2), "older files say the same"
    assert guided.as_trained() == arch_of(steps=1, guidance=2.0).as_trained()
    assert guided.as_trained() != plain.as_trained()


def test_an_image_takes_twice_the_time_of_an_unguided_one() -> None:
    from support.machines import core_like

    profile = replace(core_like(), runtime="onnxruntime")
    request, times = Workload(prompt_tokens=1, new_tokens=1), []
    for guidance in (1.0, 2.0):
        design = design_of({**CHOICES, "guidance": guidance}, spec=SPEC)
        graph = lower(design, request, Phase.PREFILL)
        times.append(estimate(design, graph, graph, request, profile).ttft_s)
    assert times[1] == pytest.approx(2 * times[0], rel=1e-3)  # the table has one more row


def test_a_tenth_of_the_labels_is_left_out_of_a_guided_training_alone(tmp_path: Path) -> None:
    found = DIFFUSION.open(DATA, base=BASE, folder=tmp_path, space=SPEC)
    found.prepare()
    data = FlowImages.load(found.path)
    batches = [
        [data.batch(arch, Recipe(batch_windows=64), number, seed=0) for number in range(20)]
        for arch in (arch_of(), arch_of(guidance=2.0))
    ]
    told, left_out = (torch.cat([batch[1] for batch in each]) for each in batches)
    dropped = left_out == 3
    assert int(told.max()) == 2
    assert torch.equal(told[~dropped], left_out[~dropped])
    assert 0.06 < float(dropped.float().mean()) < 0.14
    for first, second in zip(*batches, strict=True):
        assert all(torch.equal(first[i], second[i]) for i in (0, 2, 3))


def test_guidance_is_a_choice_whose_passes_are_counted() -> None:
    space = SearchSpace(SPEC)
    rows = space.sample(200, np.random.default_rng(0))
    assert set(space.values(rows, "guidance").tolist()) == {1.0, 2.0, 4.0}
    assert space.passes(rows).tolist() == [space.design(row).arch.passes for row in rows]
    assert space.steps(rows).tolist() == [space.design(row).arch.head.steps for row in rows]
    assert any("guided 4" in summary(space.design(row)) for row in rows)
    assert "guidance" not in SearchSpace(build(SpaceSpec, SPACE)).index, "spaces without it are what they were"


def test_a_finalists_other_guidance_is_tried_where_it_is_one_training() -> None:
    space = SearchSpace(SPEC)
    chooser = Chooser.__new__(Chooser)
    chooser.__dict__ |= {"_space": space, "_limits": (), "_metrics": lambda rows: {"ttft_p50": np.zeros(len(rows))}}
    rows = space.sample(100, np.random.default_rng(0))
    guided = next(row for row in rows if space.values(row[None], "guidance")[0] == 2.0)
    others = chooser.in_other_formats(guided.tolist())
    assert set(space.values(others, "guidance").tolist()) == {2.0, 4.0}
    trained = {space.design(row).arch.as_trained().digest for row in [*others, guided]}
    assert len(trained) == 1


def test_references_are_unguided_where_they_can_be() -> None:
    assert {choices["guidance"] for choices in proportions(SPEC)} == {1.0}
    image = {**SPACE["image"], "guidance": [2, 4]}
    assert {choices["guidance"] for choices in proportions(build(SpaceSpec, {**SPACE, "image": image}))} == {2.0}
    assert all("guidance" not in choices for choices in proportions(build(SpaceSpec, SPACE)))


def test_the_report_says_the_distance_by_guidance() -> None:
    base = Path(tempfile.mkdtemp(prefix="chipwise-"))
    found = DIFFUSION.open(DATA, base=BASE, folder=base, space=SPEC)
    found.prepare()
    design = design_of({**CHOICES, "guidance": 2.0}, spec=SPEC)
    item = Exported(design=design, weights=random_weights(design.arch, seed=0), folder=base)
    samples = found.samples(item, None)
    rows = samples["drawn"]["winner"]["guided"]
    assert [row["guidance"] for row in rows] == [1.0, 1.5, 2.0, 3.0, 5.0]
    assert samples["drawn"]["winner"]["rows"][1]["distance"] == pytest.approx(rows[2]["distance"])
    html = sections(samples)[0].html
    assert "guidance scale 2 with two passes per step" in html
    assert "<b>2</b>" in html


def test_guidance_below_none_is_refused() -> None:
    with pytest.raises(SpecError, match="must be from 1"):
        build(SpaceSpec, {**SPACE, "image": {**SPACE["image"], "guidance": [0.5]}})
