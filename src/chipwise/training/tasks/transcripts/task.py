"""Transcripts as a task: what its run file alone tells."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from chipwise.core.files import build
from chipwise.errors import SpecError
from chipwise.model.kinds.sound.choices import NO_MODULE
from chipwise.model.ops.workload import Workload
from chipwise.model.space.space_spec import SpaceSpec
from chipwise.training.laws.scaling import Law
from chipwise.training.tasks.metric import Metric
from chipwise.training.tasks.protocol import Picture, TaskData, Words
from chipwise.training.tasks.transcripts.pictures import drawn
from chipwise.training.tasks.transcripts.references import proportions

LAW = Law(
    floor=0.02, layers=1.0, head=0.0, text=60.0, size_exponent=0.3, text_exponent=0.34, level_known=False
)  # the shape of small image classifiers; the level is that of the run's own trainings

CER = Metric(name="cer", title="character error rate", unit="share", short="CER")
LOAD = """\
from transformers import AutoModelForCTC, Wav2Vec2CTCTokenizer

# input_features are log-mel spectrograms (clips, bands, frames) as front_end.json describes them
model = AutoModelForCTC.from_pretrained("winner", trust_remote_code=True)
tokenizer = Wav2Vec2CTCTokenizer.from_pretrained("winner")  # decodes model(...).logits.argmax(-1)"""
WORDS = Words(
    data="spoken sentences",
    entry=("utterance", "utterances"),
    tokens="positions",
    pace="time per utterance",
    curve="nats per character",
    does="transcribes speech",
    reference="encoder in the proportions of Whisper or Conformer",
    sound=True,
    load=LOAD,
)
EXAMPLE = "{size: 320, classes: 21, stride: [2, 4], window: [global, local20], module: [none, conv15]}"


@dataclass(frozen=True, slots=True, kw_only=True)
class TranscriptsTask:
    """A transformer writes down what is said. See :class:`chipwise.training.tasks.protocol.Task`."""

    metric: Metric = CER
    pace: str = "ttft_p50"
    words: Words = WORDS
    law: Law = LAW
    defaults: Mapping[str, Any] = field(
        default_factory=lambda: {
            "workload": {"prompt_tokens": 1, "new_tokens": 1},
            "objectives": {"cer": "minimize", "ttft_p50": "minimize"},
            "data": {"source": "espeak"},
        }
    )
    per_matrix: bool = False

    def require_fit(self, workload: Workload, space: SpaceSpec) -> None:
        """Raises SpecError for a space that says nothing of sounds."""
        if space.sound is None:
            raise SpecError(f"says what sounds are, spectrograms with frames of 10 ms: {EXAMPLE}", field="space.sound")

    def references(self, space: SpaceSpec) -> Iterator[dict[str, Any]]:
        """Whisper- and Conformer-proportioned designs; see :mod:`chipwise.training.tasks.transcripts.references`."""
        return proportions(space)

    def family(self, choices: Mapping[str, Any]) -> Hashable:
        """Whisper's or Conformer's: which transcribes better cannot be told from sizes."""
        return str(choices["module"]) != NO_MODULE

    def open(self, data: Mapping[str, Any], *, base: Path, folder: Path, space: SpaceSpec) -> TaskData:
        """The utterances; see :class:`chipwise.training.tasks.transcripts.data.TranscriptsData`."""
        from chipwise.training.tasks.transcripts.data import TranscriptsData
        from chipwise.training.tasks.transcripts.sources import UtterancesSpec

        assert space.sound is not None
        return TranscriptsData(build(UtterancesSpec, data, field="data"), base, folder, space.sound)

    def pictures(self, samples: Mapping[str, Any]) -> Sequence[Picture]:
        """Spectrograms with what was said and what was recognised, errors by noise and by word, real-time factor."""
        return drawn(samples)


TRANSCRIPTS = TranscriptsTask()
