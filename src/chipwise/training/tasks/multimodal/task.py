"""Settings of the task of questions about images that need no data: a decoder reads image tokens and a question."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from chipwise.model.kinds.image.choices import ImageSpace
from chipwise.model.ops.workload import Workload
from chipwise.model.space.space_spec import SpaceSpec
from chipwise.training.tasks.multimodal.references import proportions
from chipwise.training.tasks.multimodal.sections import sections
from chipwise.training.tasks.one_pass import ACCURACY, LATENCY, LAW, check_axes, defaults, inputs_of
from chipwise.training.tasks.protocol import Need, Task, TaskLabels

RIGHT = replace(ACCURACY, title="share of right answers", seed_sd=0.08)  # seed_sd over six seeds
LOAD = """\
from transformers import AutoModelForImageClassification

model = AutoModelForImageClassification.from_pretrained("winner", trust_remote_code=True)
# model(pixel_values, input_ids): words.json lists the words; shorter questions are padded in front"""
MISSING = (
    "is missing; describe both inputs: {size: 32, channels: 3, classes: 14, question: 8, words: 32, patch: [4, 8]}"
)


def departures(space: SpaceSpec, workload: Workload) -> Iterator[tuple[str, str]]:
    """Returns an error for a space without questions, or whose images do not have two axes."""
    image = inputs_of(space, ImageSpace)
    if not image.question:
        yield "space.image", MISSING
    yield from check_axes(image, 2, "images have two axes; leave it out")


MULTIMODAL = Task(
    name="multimodal",
    forms=("classifier",),
    metric=RIGHT,
    latency_metric=LATENCY,
    labels=TaskLabels(
        data="questions",
        entry=("question", "questions"),
        tokens="tokens of image and question",
        latency="time per answer",
        curve="nats per answer",
        verb="answers questions about images",
        reference="decoder with image tokens in the proportions of LLaVA",
        load=LOAD,
    ),
    law=replace(LAW, floor=0.02),
    needs=Need(part="image", message=MISSING, departures=departures),
    defaults=defaults(RIGHT, source="shapes"),
    references=proportions,
    family=lambda choices: (choices["patch"], choices["merge"]),  # only training shows which patch and merge are best
    data="chipwise.training.tasks.multimodal.data:MultimodalData",
    report_sections=sections,
)
