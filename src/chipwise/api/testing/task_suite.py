"""TaskSuite: the contract of tasks, checked with a tiny space and untrained models.

Subclass it in a test module; pytest then runs every check on the task::

    class TestMyTask(TaskSuite):
        task = MY_TASK
        space = {"d_model": [32], …}
        data = {"source": "files", "paths": ["mine.csv"]}

The most important check: the exported file has the same loss as the model that was trained.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from chipwise.core.files import build
from chipwise.core.record import Record
from chipwise.design.limits import METRICS
from chipwise.design.report.record import DataSummary
from chipwise.model.arch.design import Design
from chipwise.model.kinds.table import form_of
from chipwise.model.space.designs import design_of
from chipwise.model.space.search_space import SearchSpace
from chipwise.model.space.space_spec import SpaceSpec
from chipwise.model.walk.module import build as fresh
from chipwise.training.loop.worker import TrainJob
from chipwise.training.tasks.protocol import Exported, Task, TaskData

STEPS = 6
REFERENCES = 50  # number of reference designs that are built


class TaskSuite:
    """Checks that every task must pass."""

    task: ClassVar[Task]
    space: ClassVar[Mapping[str, Any]]  # a run file's ``space``, with small models
    data: ClassVar[Mapping[str, Any]]  # the run file's ``data``
    base: ClassVar[Path] = Path()  # folder of relative paths
    recipe: ClassVar[Mapping[str, Any]] = {"batch_windows": 8, "warmup_steps": 2}

    def spec(self) -> SpaceSpec:
        """Returns the space of designs that the checks use."""
        return build(SpaceSpec, dict(self.space))

    def design(self) -> Design:
        """Returns one design of the space."""
        space = SearchSpace(self.spec())
        return space.design(space.sample(1, np.random.default_rng(0))[0])

    def opened(self, folder: Path) -> TaskData:
        """Returns the task's data, prepared in ``folder``."""
        found = self.task.open(self.data, base=self.base, folder=folder, space=self.spec())
        found.prepare()
        return found

    def exported(self, folder: Path) -> Exported:
        """Returns an untrained design and its exported file in ``folder``."""
        from chipwise.deploy.export.onnx import export

        design = self.design()
        weights = {name: value.numpy() for name, value in fresh(design.arch, seed=0).state_dict().items()}
        export(design, weights, folder / "model.onnx")
        return Exported(design=design, weights=weights, folder=folder)

    def test_a_task_says_all_that_a_search_asks(self) -> None:
        """Designs in the task's spaces are models of the kinds that the task declares."""
        assert form_of(self.design().arch).name in self.task.forms

    def test_a_loss_is_minimised_and_shown_in_the_tasks_words(self) -> None:
        """A lower loss is shown as a better value of the metric, whose name is not that of a cost.

        ``latency_metric`` is a time, and ``law`` predicts a finite loss.
        """
        metric = self.task.metric
        assert metric.name not in METRICS, f"{metric.name} is the name of a cost; choose another name"
        better, worse = metric.shown(0.1), metric.shown(0.2)
        assert (better > worse) == metric.more_is_better
        assert metric.text(0.1) != metric.text(0.2)
        assert METRICS[self.task.latency_metric] == "time", "`latency_metric` must be a latency"
        assert np.isfinite(self.task.law.loss(1e5, 1e4, 1e6)), "`law` must predict a loss for every size"

    def test_reference_designs_are_designs_and_each_has_a_family(self) -> None:
        """There is at least one reference design, and the same space always gives the same reference designs."""
        spec = self.spec()
        found = list(self.task.references(spec))
        assert found, "there is no reference design: a search compares its winner with one"
        assert found == list(self.task.references(spec))
        for choices in found[:REFERENCES]:
            assert hash(self.task.family(choices)) == hash(self.task.family(dict(choices)))
            assert design_of(choices, spec=spec, name="baseline").arch.parameters() > 0

    def test_data_is_prepared_once_and_described(self, tmp_path: Path) -> None:
        """Preparing the data twice changes nothing, and their summary can be stored in a record."""
        data = self.opened(tmp_path)
        file = data.data(self.design().arch)
        before = Path(file.path).read_bytes()
        data.prepare()
        again = self.opened(tmp_path)
        assert Path(again.data(self.design().arch).path).read_bytes() == before
        summary = build(DataSummary, data.summary())
        assert summary.licence, "state the licence, or that it is not stated"
        assert summary.entries_train, "count the training entries"
        assert summary.entries_test, "keep test data that is not used for selection"
        space = SearchSpace(self.spec())
        sizes = data.bytes_per_token(space, space.sample(3, np.random.default_rng(0)))
        assert sizes.shape == (3,)
        assert (sizes > 0).all()

    def test_batches_follow_from_their_number_and_the_seed(self, tmp_path: Path) -> None:
        """Equal arguments give equal batches, and other arguments do not. Axis 0 of each array counts examples."""
        from chipwise.training.data.recipe import Recipe

        arch, opened = self.design().arch, self.opened(tmp_path)
        recipe = build(Recipe, {**opened.recipe, **self.recipe})
        data = opened.data(arch).load()
        data.require_fit(arch)
        first = data.batch(arch, recipe, 0, seed=1)
        assert {len(part) for part in first} == {recipe.batch_windows}
        for part, same in zip(first, data.batch(arch, recipe, 0, seed=1), strict=True):
            assert part.equal(same)
        for number, seed in ((1, 1), (0, 2)):
            other = data.batch(arch, recipe, number, seed=seed)
            assert not all(a.equal(b) for a, b in zip(first, other, strict=True))
        assert data.identity == opened.data(arch).load().identity
        assert data.step_tokens(arch, build(Recipe, dict(opened.recipe))) == opened.step_tokens(arch)

    def test_a_training_lowers_the_loss_of_its_batches(self, tmp_path: Path) -> None:
        """A few steps on one batch lower the loss, which is finite and has a gradient for each parameter in use."""
        import torch

        from chipwise.training.data.recipe import Recipe

        arch, opened = self.design().arch, self.opened(tmp_path)
        data = opened.data(arch).load()
        model = fresh(arch, seed=0).train()
        batch = data.batch(arch, build(Recipe, {**opened.recipe, **self.recipe}), 0, seed=0)
        optimiser = torch.optim.SGD(model.parameters(), lr=0.05)
        losses = []
        for _ in range(STEPS):
            optimiser.zero_grad()
            loss = data.loss(model, batch, torch.float32)
            loss.backward()  # type: ignore[no-untyped-call]
            optimiser.step()
            losses.append(float(loss.detach()))
        assert all(map(math.isfinite, losses))
        assert losses[-1] < losses[0], f"gradient steps do not lower the loss: {losses}"
        assert math.isfinite(data.shown_loss(losses[0]))

    def test_trainings_end_with_a_judged_loss_and_go_on(self, tmp_path: Path) -> None:
        """A training job gives a finite loss, also for quantised weights. A repeated job does not train again."""
        arch, opened = self.design().arch, self.opened(tmp_path / "data")
        file = opened.data(arch)
        job = TrainJob(
            arch=arch,
            tokens=file.path,
            dataset=file.kind,
            folder=str(tmp_path / "training"),
            steps=STEPS,
            seed=0,
            precision="fp32",
            recipe={**opened.recipe, **self.recipe},
            formats=("int8",),
            max_validation_bytes=opened.quick,
        )
        first = Record.of(TrainJob.from_data(json.loads(json.dumps(job.to_data()))).run(lambda update: None))
        loss = first.get("loss", float)
        assert math.isfinite(loss)
        assert loss >= 0
        assert math.isfinite(first.record("quantised").get("int8", float))
        again = job.run(lambda update: None)
        assert again["loss"] == loss
        assert again["spent_cpu_s"] == 0

    def test_exported_files_are_judged_as_models_are(self, tmp_path: Path) -> None:
        """The exported graph's losses per entry add up to PyTorch's loss, on validation and on test data."""
        from chipwise.training.loop.evaluate import load_model

        opened, item = self.opened(tmp_path / "data"), self.exported(tmp_path)
        data = opened.data(item.design.arch).load()
        for split in ("validation", "test"):
            found = opened.losses(item, split=split)
            assert found.values.shape == found.sizes.shape
            judged = data.judge(load_model(item.design.arch, item.weights), split=split)
            assert found.loss == pytest.approx(judged.loss, rel=2e-3, abs=2e-3), split
        part = data.judge(load_model(item.design.arch, item.weights), most=1)
        assert math.isfinite(part.loss)

    def test_samples_are_plain_and_drawn_without_scripts(self, tmp_path: Path) -> None:
        """Report samples can be stored as JSON, with and without a reference design, and sections have no scripts."""
        opened, item = self.opened(tmp_path / "data"), self.exported(tmp_path)
        for reference in (None, item):
            samples = json.loads(json.dumps(opened.samples(item, reference), allow_nan=False))
            for section in self.task.report_sections(samples):
                assert section.name.isidentifier()
                assert section.title
                assert "<script" not in section.html
        assert not self.task.report_sections({}), "a run that recorded no samples must have no sections"

    def test_what_is_shipped_can_be_read(self, tmp_path: Path) -> None:
        """The winner's folder contains weights, config and additional files."""
        opened, item = self.opened(tmp_path / "data"), self.exported(tmp_path)
        opened.ship(item, tmp_path / "winner", {"chipwise.json": "{}\n"})
        names = {path.name for path in (tmp_path / "winner").iterdir()}
        assert {"chipwise.json", "config.json", "model.safetensors"} <= names
