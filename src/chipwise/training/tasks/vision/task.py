"""Settings of the vision task that need no data: a transformer classifies images."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from chipwise.model.kinds.image.choices import ImageSpace
from chipwise.model.ops.workload import Workload
from chipwise.model.space.space_spec import SpaceSpec
from chipwise.training.laws import operators
from chipwise.training.tasks.one_pass import ACCURACY, CLASSES, LATENCY, check_axes, defaults, inputs_of
from chipwise.training.tasks.protocol import Need, Task, TaskLabels
from chipwise.training.tasks.references import deit_proportions
from chipwise.training.tasks.vision.sections import sections

LOAD = """\
from transformers import AutoModelForImageClassification

# trust_remote_code is needed only where config.json names a modelling file of its own
model = AutoModelForImageClassification.from_pretrained("winner", trust_remote_code=True)"""


def departures(space: SpaceSpec, workload: Workload) -> Iterator[tuple[str, str]]:
    """Returns an error for a space whose inputs do not have two axes."""
    return check_axes(inputs_of(space, ImageSpace), 2, "images have two axes; leave it out")


VISION = Task(
    name="vision",
    forms=("classifier",),
    metric=ACCURACY,
    latency_metric=LATENCY,
    labels=TaskLabels(
        data="images",
        entry=("image", "images"),
        tokens="patches",
        latency="time per image",
        curve="nats per image",
        verb="classifies images",
        reference="vision transformer in the proportions of DeiT",
        derived=("fps",),
        load=LOAD,
    ),
    law=replace(CLASSES, repeats=15.0),
    operators=operators.IMAGES,
    needs=Need(
        part="image",
        message="is missing; describe the images: {size: 28, classes: 10, patch: [4, 7, 14]}",
        departures=departures,
    ),
    defaults=defaults(ACCURACY, source="fashion-mnist"),
    references=deit_proportions,
    family=lambda choices: choices["patch"],  # only training shows which patch size is best
    data="chipwise.training.tasks.vision.data:VisionData",
    report_sections=sections,
)
