"""Settings of the speech task that need no data: a transformer classifies spoken words."""

from __future__ import annotations

from collections.abc import Iterator

from chipwise.model.kinds.image.choices import ImageSpace
from chipwise.model.ops.workload import Workload
from chipwise.model.space.space_spec import SpaceSpec
from chipwise.training.laws import operators
from chipwise.training.tasks.one_pass import ACCURACY, CLASSES, LATENCY, check_axes, defaults, inputs_of
from chipwise.training.tasks.protocol import Need, Task, TaskLabels
from chipwise.training.tasks.speech.references import proportions
from chipwise.training.tasks.speech.sections import sections

LOAD = """\
from transformers import AutoModelForAudioClassification

# input_values are log-mel spectrograms (clips, bands, frames) as front_end.json describes them
model = AutoModelForAudioClassification.from_pretrained("winner", trust_remote_code=True)"""
EXAMPLE = "{axes: 1, size: 100, channels: 40, classes: 20, patch: [2, 5, 10]}"


def departures(space: SpaceSpec, workload: Workload) -> Iterator[tuple[str, str]]:
    """Returns an error for a space whose inputs do not have exactly one axis."""
    return check_axes(inputs_of(space, ImageSpace), 1, f"spectrograms have one axis, time: {EXAMPLE}")


SPEECH = Task(
    name="speech",
    forms=("classifier",),
    metric=ACCURACY,
    latency_metric=LATENCY,
    labels=TaskLabels(
        data="spoken words",
        entry=("clip", "clips"),
        tokens="slices",
        latency="time per clip",
        curve="nats per clip",
        verb="recognises words",
        reference="transformer in the proportions of KWT",
        derived=("rtf",),
        load=LOAD,
    ),
    law=CLASSES,
    operators=operators.WORDS,
    needs=Need(
        part="image",
        message=f"is missing; describe the spectrograms, frames of 10 ms with bands: {EXAMPLE}",
        departures=departures,
    ),
    defaults=defaults(ACCURACY, source="espeak"),
    references=proportions,
    family=lambda choices: choices["patch"],  # patch sizes in time; only training shows which is best
    data="chipwise.training.tasks.speech.data:SpeechData",
    report_sections=sections,
)
