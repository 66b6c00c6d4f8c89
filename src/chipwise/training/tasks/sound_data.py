"""Base class for the data of speech tasks: clips with noise, facts about them, and report samples."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from chipwise.core.arrays import Float64Array
from chipwise.core.files import read_mapping
from chipwise.core.record import Record
from chipwise.errors import counted
from chipwise.model.arch.arch import ArchSpec
from chipwise.model.kinds.image.choices import ImageSpace
from chipwise.model.kinds.image.hf_vit import labels_of
from chipwise.model.kinds.sound.choices import SoundSpace
from chipwise.training.data.arrays import LabelledArrays
from chipwise.training.data.dataset import Split
from chipwise.training.data.sound.clips import Part, RecordingsSpec, spectrogram
from chipwise.training.data.sound.front_end import HOP_S, described, front_end_s
from chipwise.training.tasks.array_data import ArrayData

SAMPLE_BYTES = 2  # bytes of a 16-bit sample


SpecT = TypeVar("SpecT", bound=RecordingsSpec)
InputsT = TypeVar("InputsT", ImageSpace, SoundSpace)
DatasetT = TypeVar("DatasetT", bound=LabelledArrays)


class SoundData(ArrayData[SpecT, InputsT, DatasetT]):
    """Base class for speech clips with noise, in which each speaker is in only one part."""

    identifying = ("size", "channels")

    def dataset_of(self, parts: Mapping[str, Part], classes: Sequence[str]) -> DatasetT:
        """Builds the data set of clips; bands are scaled by mean and standard deviation over the training part."""
        learnt = parts["train"].inputs.astype(np.float32)
        scales = learnt.mean((0, 2))[:, None], np.maximum(learnt.std((0, 2)), 1e-2)[:, None]
        arrays = {name: (part.inputs, part.labels) for name, part in parts.items()}
        return self.dataset.of_parts(arrays, classes, scales)

    def facts_of(self, parts: Mapping[str, Part], *, note: str = "") -> Mapping[str, object]:
        """Facts about the clips; ``note`` is appended to their source."""
        spec, synthetic = self.spec, self.spec.source == "espeak"
        source = "espeak-ng" if synthetic else f"the user's recordings ({spec.path})"
        if endless := sum(part.endless for part in parts.values()):
            note += f"; {counted(endless, 'file')} without a stated length, read to the end"
        noise = f", noise at {', '.join(f'{ratio:g}' for ratio in spec.snr_db)} dB" if spec.snr_db else ""
        return {
            "source": source + noise + note,
            "licence": "made by this run" if synthetic else spec.licence,
            "synthetic": synthetic,
            "test_snr_db": parts["test"].snr_db.tolist() if spec.snr_db else [],
            "speakers": {name: part.speakers.tolist() for name, part in parts.items() if name != "train"},
        }

    def summary(self) -> Mapping[str, object]:
        """Name, source and licence of the clips, and the number of clips and of bytes in each part."""
        synthetic = read_mapping(self.facts)["synthetic"]
        return {**super().summary(), **({"name": "synthetic speech"} if synthetic else {})}

    def alike(self, split: Split) -> NDArray[np.int64]:
        """Speaker ids: clips of one speaker form a group."""
        return np.array(Record.read(self.facts).record("speakers").sequence(split, int))

    @abstractmethod
    def clip(self, row: int) -> Mapping[str, object]:
        """Fields of a test clip to show next to its spectrogram."""

    def sound_samples(
        self,
        rows: Sequence[int],
        said: Mapping[str, Sequence[str]],
        lost: Mapping[str, tuple[Float64Array, Float64Array]],
        pass_s: Mapping[str, float],
        *,
        entries: str,
    ) -> dict[str, object]:
        """Report samples of the sound tasks: test clips with answers, accuracy or error rate by SNR, and times.

        Args:
            rows: Indices of the clips to show.
            said: The answer of each model to every test clip.
            lost: For each model, two arrays with one number per clip, (n,). The accuracy or error rate on any clips is
                the sum of the first array over these clips, divided by the sum of the second.
            pass_s: Seconds of a pass, by model.
            entries: Name of the counted units, such as clips.
        """
        facts, inputs = read_mapping(self.facts), self.arrays.test[0]
        ratios = np.array(facts["test_snr_db"], np.float64)
        return {
            "clips": [
                {"image": spectrogram(inputs[i].astype(np.float32)), **self.clip(i)}
                | {who: answers[i] for who, answers in said.items()}
                | ({"snr_db": float(ratios[i])} if len(ratios) else {})
                for i in rows
            ],
            "synthetic": facts["synthetic"],
            "noise": [
                {"snr_db": ratio, entries: int(held.sum())}
                | {who: float(values[held].sum() / sizes[held].sum()) for who, (values, sizes) in lost.items()}
                for ratio in sorted(set(ratios.tolist()), reverse=True)
                if (held := ratios == ratio).any()
            ],
            "times": {
                "clip_s": self.inputs.size * HOP_S,
                "front_end_s": front_end_s(self.inputs.size, bands=self.inputs.channels),
                **pass_s,
            },
        }

    def shipped(self, arch: ArchSpec) -> Mapping[str, Mapping[str, object]]:
        """The names of the classes, and the settings of the front end."""
        data = self.arrays
        return {
            "config.json": labels_of(arch, data.classes),
            "front_end.json": described(self.inputs.size, data.mean, data.std),
        }
