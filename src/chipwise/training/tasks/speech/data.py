"""Spectrograms of spoken words in one file for all training runs; exported graphs classify one clip at a time."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from chipwise.core.arrays import Float64Array
from chipwise.errors import SpecError
from chipwise.model.kinds.image.choices import ImageSpace
from chipwise.model.space.search_space import Rows, SearchSpace
from chipwise.training.data.sound.front_end import HOP
from chipwise.training.tasks.array_data import confusion, first_and_wrong
from chipwise.training.tasks.protocol import Exported
from chipwise.training.tasks.sound_data import SAMPLE_BYTES, SoundData
from chipwise.training.tasks.speech.dataset import LabelledSpectrograms
from chipwise.training.tasks.speech.sources import WordsSpec, parts_of, words_of

SHOWN = 12  # test clips shown in the report


class SpeechData(SoundData[WordsSpec, ImageSpace, LabelledSpectrograms]):
    """Spoken words; see :class:`chipwise.training.tasks.protocol.TaskData`."""

    recipe: Mapping[str, object] = {"batch_windows": 64}
    quick = 1_000  # clips in an early evaluation
    spec_type, part, dataset, kind, name = WordsSpec, "image", LabelledSpectrograms, "spectrograms", "spectrograms"

    def make(self) -> tuple[LabelledSpectrograms, Mapping[str, object]]:
        """Reads or synthesises the words, and splits them by speaker."""
        words, inputs = words_of(self.spec, self.base), self.inputs
        if len(words) != inputs.classes:
            raise SpecError(
                f"must be {len(words)}, the data's number of words, not {inputs.classes}", field="space.image.classes"
            )
        parts = parts_of(self.spec, self.base, bands=inputs.channels, length=inputs.size * HOP)
        return self.dataset_of(parts, words), self.facts_of(parts)

    def bytes_per_token(self, space: SearchSpace, rows: Rows) -> Float64Array:
        """Bytes of a clip's 16-bit samples, divided by the number of positions after the model's stem."""
        slices = self.inputs.size // space.values(rows, "patch").astype(np.int64)
        first = (space.values(rows, "pooling") == "first").astype(np.int64)
        return np.asarray(self.inputs.size * HOP * SAMPLE_BYTES / (slices + first), np.float64)

    def clip(self, row: int) -> Mapping[str, object]:
        """The spoken word of each clip."""
        return {"label": self.arrays.classes[self.arrays.test[1][row]]}

    def samples(self, winner: Exported, reference: Exported | None) -> Mapping[str, object]:
        """Some test clips with predictions, accuracy by noise level, times, and the winner's confusion matrix."""
        labels, classes = self.arrays.test[1], self.arrays.classes
        logits, pass_s = self.answered(winner, reference)
        said = {who: given.argmax(1) for who, given in logits.items()}
        right = {who: ((found == labels).astype(float), np.ones(len(labels))) for who, found in said.items()}
        names = {who: [classes[answer] for answer in found] for who, found in said.items()}
        rows = first_and_wrong(labels, said["winner"], count=SHOWN)
        return {
            **self.sound_samples(rows, names, right, pass_s, entries="clips"),
            "confusion": confusion(labels, said["winner"], len(classes)),
            "classes": list(classes),
        }
