"""Spoken words in the folder of a run: spectrograms for all trainings; exported graphs are judged clip by clip."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from chipwise.core.arrays import Float64Array
from chipwise.core.digest import digest
from chipwise.core.files import read_mapping, write_json
from chipwise.deploy.export.hf import save_pretrained
from chipwise.errors import SpecError
from chipwise.model.arch.arch import ArchSpec
from chipwise.model.kinds.image.choices import ImageSpace
from chipwise.model.kinds.image.hf_vit import labels_of
from chipwise.model.space.search_space import Rows, SearchSpace
from chipwise.training.data.arrays import LabelledArrays, load_arrays
from chipwise.training.data.dataset import DataFile, Split
from chipwise.training.tasks.exported_classifier import confusion, errors_in, logits_of
from chipwise.training.tasks.made import is_made
from chipwise.training.tasks.protocol import Exported, Losses
from chipwise.training.tasks.speech.front_end import HOP, HOP_S, described, front_end_s
from chipwise.training.tasks.speech.kept import by_speaker, fields_of, keep, summary_of
from chipwise.training.tasks.speech.pictures import spectrogram
from chipwise.training.tasks.speech.sources import WordsSpec, parts_of, words_of

QUICK = 1_000  # clips that short trainings are judged on
SHOWN = 12  # test clips in the report
BATCH = 64
SAMPLE_BYTES = 2  # of a recording


class SpeechData:
    """See :class:`chipwise.training.tasks.protocol.TaskData`.

    Args:
        spec: Where words come from.
        base: Where its paths start.
        folder: Where the file of spectrograms is kept.
        image: Frames, bands and words that the space is for.
    """

    recipe: Mapping[str, Any] = {"batch_windows": BATCH}
    quick = QUICK

    def __init__(self, spec: WordsSpec, base: Path, folder: Path, image: ImageSpace) -> None:
        self.spec, self.base, self.folder, self.image = spec, base, folder, image

    @property
    def path(self) -> Path:
        """The file of spectrograms."""
        return self.folder / "spectrograms.npz"

    @property
    def facts(self) -> Path:
        """What the file was made of: source, licence, noise."""
        return self.folder / "spectrograms.json"

    @property
    def clip_s(self) -> float:
        """Seconds of audio in a clip."""
        return self.image.size * HOP_S

    def prepare(self) -> None:
        """Reads or speaks the words, divides their speakers, and writes the spectrograms once."""
        wanted = digest([self.spec, self.image.size, self.image.channels])
        if is_made(self.facts, wanted, entries="clips"):
            return
        words = words_of(self.spec, self.base)
        if len(words) != self.image.classes:
            raise SpecError(
                f"must be {len(words)}, the words of the data, not {self.image.classes}", field="space.image.classes"
            )
        parts = parts_of(self.spec, self.base, bands=self.image.channels, length=self.image.size * HOP)
        data = LabelledArrays(classes=words, **fields_of(parts))
        keep(data, parts, self.spec, self.path, self.facts, identity=wanted)

    @cached_property
    def arrays(self) -> LabelledArrays:
        """The spectrograms of all parts."""
        return load_arrays(self.path)

    def summary(self) -> Mapping[str, Any]:
        """Clips and bytes of each part, source and licence."""
        return summary_of(self.arrays, self.facts, self.spec)

    def data(self, arch: ArchSpec) -> DataFile:
        """The spectrograms, shifted and partly hidden while they are learnt."""
        return DataFile(path=str(self.path), kind="spectrograms")

    def step_tokens(self, arch: ArchSpec) -> int:
        """Positions of a batch of clips."""
        return BATCH * arch.max_tokens

    def bytes_per_token(self, space: SearchSpace, rows: Rows) -> Float64Array:
        """Bytes of a clip's 16-bit samples over the positions that a stem makes of it."""
        slices = self.image.size // space.values(rows, "patch").astype(np.int64)
        first = (space.values(rows, "pooling") == "first").astype(np.int64)
        return np.asarray(self.image.size * HOP * SAMPLE_BYTES / (slices + first), np.float64)

    def losses(self, item: Exported, *, split: Split) -> Losses:
        """Clips of each speaker that the exported graph gets wrong, one clip at a time as it serves them.

        Clips of one voice are alike: speakers are what the uncertainty counts.
        """
        values = errors_in(item, self.arrays, split)
        return by_speaker(values, np.ones(len(values)), self.facts, split)

    def samples(self, winner: Exported, reference: Exported | None) -> Mapping[str, Any]:
        """Some test clips with what was recognised, accuracy by noise, times, and the winner's confusion matrix."""
        inputs, labels = self.arrays.test
        classes, facts = self.arrays.classes, read_mapping(self.facts)
        said, pass_s = {}, {}
        for who, item in (("winner", winner), ("baseline", reference)):
            if item is not None:
                logits, pass_s[who] = logits_of(item, self.arrays, "test")
                said[who] = logits.argmax(1)
        ratios = facts["test_snr_db"]
        front_s = front_end_s(self.image.size, bands=self.image.channels)
        clips = [
            {"image": spectrogram(inputs[i].astype(np.float32)), "label": classes[labels[i]]}
            | {who: classes[answers[i]] for who, answers in said.items()}
            | ({"snr_db": ratios[i]} if ratios else {})
            for i in _chosen(labels, said["winner"])
        ]
        return {
            "clips": clips,
            "synthetic": facts["synthetic"],
            "noise": [
                {"snr_db": ratio, "clips": int(held.sum())}
                | {who: float((answers == labels)[held].mean()) for who, answers in said.items()}
                for ratio in sorted(set(ratios), reverse=True)
                if (held := np.array(ratios) == ratio).any()
            ],
            "times": {"clip_s": self.clip_s, "front_end_s": front_s, **pass_s},
            "confusion": confusion(labels, said["winner"], len(classes)),
            "classes": list(classes),
        }

    def ship(self, item: Exported, folder: Path, files: Mapping[str, str]) -> None:
        """The Hugging Face folder with the words' names, and what the front end must compute before it."""
        arch, arrays = item.design.arch, self.arrays
        save_pretrained(arch, item.weights, None, folder, dict(files))
        write_json(folder / "config.json", read_mapping(folder / "config.json") | labels_of(arch, arrays.classes))
        front_end = described(self.image.size, arrays.mean, arrays.std)
        write_json(folder / "front_end.json", front_end)


def _chosen(labels: NDArray[np.int64], said: NDArray[np.int64]) -> list[int]:
    """Test clips to show: half of them the first of different words, half the first that are wrong."""
    first = [int(np.flatnonzero(labels == label)[0]) for label in np.unique(labels)[: SHOWN // 2]]
    wrong = [int(i) for i in np.flatnonzero(labels != said) if int(i) not in first]
    return first + wrong[: SHOWN - len(first)]
