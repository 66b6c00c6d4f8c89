"""Speech as a task: what its run file alone tells."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from chipwise.core.files import build
from chipwise.errors import SpecError
from chipwise.model.ops.workload import Workload
from chipwise.model.space.space_spec import SpaceSpec
from chipwise.training.laws.scaling import Law
from chipwise.training.tasks.metric import Metric
from chipwise.training.tasks.protocol import Picture, TaskData, Words
from chipwise.training.tasks.speech.pictures import drawn
from chipwise.training.tasks.speech.references import proportions

LAW = Law(
    floor=0.05, layers=1.0, head=0.0, text=60.0, size_exponent=0.3, text_exponent=0.34, level_known=False
)  # the shape of small image classifiers; the level is that of the run's own trainings

ACCURACY = Metric(name="accuracy", title="accuracy", unit="share", more_is_better=True)
LOAD = """\
from transformers import AutoModelForAudioClassification

# input_values are log-mel spectrograms (clips, bands, frames) as front_end.json describes them
model = AutoModelForAudioClassification.from_pretrained("winner", trust_remote_code=True)"""
WORDS = Words(
    data="spoken words",
    entry=("clip", "clips"),
    tokens="slices",
    pace="time per clip",
    curve="nats per clip",
    does="recognises words",
    reference="transformer in the proportions of KWT",
    sound=True,
    load=LOAD,
)
EXAMPLE = "{axes: 1, size: 100, channels: 40, classes: 20, patch: [2, 5, 10]}"


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeechTask:
    """A transformer tells spoken words apart. See :class:`chipwise.training.tasks.protocol.Task`."""

    metric: Metric = ACCURACY
    pace: str = "ttft_p50"
    words: Words = WORDS
    law: Law = LAW
    defaults: Mapping[str, Any] = field(
        default_factory=lambda: {
            "workload": {"prompt_tokens": 1, "new_tokens": 1},
            "objectives": {"accuracy": "maximize", "ttft_p50": "minimize"},
            "data": {"source": "espeak"},
        }
    )
    per_matrix: bool = False

    def require_fit(self, workload: Workload, space: SpaceSpec) -> None:
        """Raises SpecError for a space that says nothing of spectrograms."""
        if space.image is None:
            raise SpecError(f"says what spectrograms are, frames of 10 ms with bands: {EXAMPLE}", field="space.image")
        if space.image.axes != 1:
            raise SpecError(f"spectrograms have one axis, time: {EXAMPLE}", field="space.image.axes")

    def references(self, space: SpaceSpec) -> Iterator[dict[str, Any]]:
        """Designs in the proportions of KWT; see :mod:`chipwise.training.tasks.speech.references`."""
        return proportions(space)

    def family(self, choices: Mapping[str, Any]) -> Hashable:
        """The slice of time: which is best cannot be told from sizes."""
        return int(choices["patch"])

    def open(self, data: Mapping[str, Any], *, base: Path, folder: Path, space: SpaceSpec) -> TaskData:
        """The clips; see :class:`chipwise.training.tasks.speech.data.SpeechData`."""
        from chipwise.training.tasks.speech.data import SpeechData
        from chipwise.training.tasks.speech.sources import WordsSpec

        assert space.image is not None
        return SpeechData(build(WordsSpec, data, field="data"), base, folder, space.image)

    def pictures(self, samples: Mapping[str, Any]) -> Sequence[Picture]:
        """Spectrograms with what was recognised, accuracy by noise, real-time factor, and which words are confused."""
        return drawn(samples)


SPEECH = SpeechTask()
