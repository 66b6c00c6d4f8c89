"""Settings of the diffusion task that need no data: a transformer generates images of given labels."""

from __future__ import annotations

from collections.abc import Iterator

from chipwise.model.kinds.image.choices import LATENTS, PIXELS, ImageSpace
from chipwise.model.ops.workload import Workload
from chipwise.model.space.space_spec import SpaceSpec
from chipwise.training.laws.scaling import Law
from chipwise.training.tasks.diffusion.references import proportions
from chipwise.training.tasks.diffusion.sections import sections
from chipwise.training.tasks.metric import Metric
from chipwise.training.tasks.one_pass import LATENCY, defaults, inputs_of
from chipwise.training.tasks.protocol import Need, Task, TaskLabels

LAW = Law(
    floor=0.05,
    layers=8.0,
    head=0.0,
    text=2_000.0,
    size_exponent=0.3,
    text_exponent=0.5,
    level_known=False,
    one_pass=4.0,
)  # approximate Fréchet distances of Fashion-MNIST at CPU model sizes; the level is fitted to the run's own training
DISTANCE = Metric(
    name="frechet_distance",
    title="Fréchet distance",
    short="distance",
    seed_sd=0.16,  # from 18 training runs of 60 s: three seeds of six designs (docs/notes/validation.md)
    least_share=1 / 3,  # after a ninth of a training run, distances are ten times as large and the smallest models lead
)
LOAD = """\
from transformers import AutoModel

model = AutoModel.from_pretrained("winner", trust_remote_code=True)
images = model.generate([0, 1, 2], seed=0)  # labels; images (n, channels, rows, columns) from -1 to 1"""
EXAMPLE = "{size: 28, classes: 10, patch: [4, 7], steps: [1, 2, 4, 8]}"


def departures(space: SpaceSpec, workload: Workload) -> Iterator[tuple[str, str]]:
    """Returns an error for a space without ``steps``."""
    if not inputs_of(space, ImageSpace).steps:
        yield "space.image.steps", f"is missing; list the numbers of steps to choose from: {EXAMPLE}"


DIFFUSION = Task(
    name="diffusion",
    forms=("denoiser",),
    metric=DISTANCE,
    latency_metric=LATENCY,
    labels=TaskLabels(
        data="images",
        entry=("image", "images"),
        tokens="patches",
        latency="time per image",
        curve="flow loss",
        verb="draws images",
        reference="diffusion transformer in the proportions of DiT",
        load=LOAD,
    ),
    law=LAW,
    needs=Need(
        part="image",
        message=f"is missing; describe the images and the numbers of sampling steps: {EXAMPLE}",
        departures=departures,
    ),
    defaults=defaults(DISTANCE, source="fashion-mnist"),
    references=proportions,
    family=lambda choices: (choices["patch"], choices.get(LATENTS, PIXELS), choices["steps"]),
    data="chipwise.training.tasks.diffusion.data:DiffusionData",
    report_sections=sections,
)
