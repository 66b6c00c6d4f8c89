"""Spectrograms of utterances in one file for all training runs; exported graphs transcribe one utterance at a time."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from chipwise.core.arrays import Float64Array
from chipwise.errors import SpecError
from chipwise.model.arch.arch import ArchSpec
from chipwise.model.kinds.sound.choices import SoundSpace
from chipwise.model.space.search_space import Rows, SearchSpace
from chipwise.training.data.sound.front_end import HOP
from chipwise.training.tasks.protocol import Exported, Losses
from chipwise.training.tasks.sound_data import SAMPLE_BYTES, SoundData
from chipwise.training.tasks.transcripts.dataset import TranscribedSpectrograms, decoded, distance, least_positions
from chipwise.training.tasks.transcripts.sources import BLANK_NAME, UtterancesSpec, parts_of, read_utterances

SHOWN = 8  # test utterances shown in the report
SPACE_NAME = "|"  # the space between words in character tokenizers of transformers


class TranscriptsData(SoundData[UtterancesSpec, SoundSpace, TranscribedSpectrograms]):
    """Utterances; see :class:`chipwise.training.tasks.protocol.TaskData`."""

    recipe: Mapping[str, object] = {"batch_windows": 32}
    quick = 200  # utterances in an early evaluation
    spec_type, part, dataset = UtterancesSpec, "sound", TranscribedSpectrograms
    kind, name = "transcripts", "utterances"

    def make(self) -> tuple[TranscribedSpectrograms, Mapping[str, object]]:
        """Reads or synthesises the utterances, and splits them by speaker."""
        length = self.inputs.size * HOP
        found = read_utterances(self.spec, self.base, length=length)
        if len(found.characters) != self.inputs.classes:
            shown = "".join(found.characters[1:])
            raise SpecError(
                f"must be {len(found.characters)} (the blank and the characters {shown!r}), not {self.inputs.classes}",
                field="space.sound.classes",
            )
        parts = parts_of(found, self.spec, bands=self.inputs.channels, length=length)
        self._check_positions(max(int(least_positions(part.labels).max()) for part in parts.values()))
        left_out = f"; without {found.too_long} utterances that are too long" if found.too_long else ""
        return self.dataset_of(parts, found.characters), self.facts_of(parts, note=left_out)

    def _check_positions(self, needed: int) -> None:
        """Checks that even the largest stride leaves enough positions for CTC to output the longest text."""
        stride = max(self.inputs.stride)
        left = self.inputs.size // stride
        if left < needed:
            raise SpecError(
                f"stride {stride} leaves only {left} positions per sound, but the longest text needs {needed}",
                field="space.sound.stride",
            )

    def bytes_per_token(self, space: SearchSpace, rows: Rows) -> Float64Array:
        """Bytes of a sound's 16-bit samples, divided by the number of positions."""
        return np.asarray(HOP * SAMPLE_BYTES * space.values(rows, "stride"), np.float64)

    def clip(self, row: int) -> Mapping[str, object]:
        """The spoken text of each clip."""
        return {"text": self.arrays.text(self.arrays.test[1][row])}

    def samples(self, winner: Exported, reference: Exported | None) -> Mapping[str, object]:
        """Some test utterances with transcripts, character and word error rates, rates by noise level, and times."""
        data = self.arrays
        said = [data.text(row) for row in data.test[1]]
        outputs, pass_s = self.answered(winner, reference)
        heard = {who: [data.text(decoded(each)) for each in logits] for who, logits in outputs.items()}
        edits = {who: data.metric(logits, "test") for who, logits in outputs.items()}
        rows = np.unique(np.linspace(0, len(said) - 1, SHOWN).astype(int)).tolist()
        return {
            **self.sound_samples(rows, heard, edits, pass_s, entries="utterances"),
            "rates": {who: self._rates(texts, said) for who, texts in heard.items()},
        }

    def _rates(self, heard: list[str], said: list[str]) -> dict[str, object]:
        """Character and word error rates on the test part, with standard errors over speakers."""
        found: dict[str, object] = {}
        pairs = list(zip(heard, said, strict=True))
        for name, parts in (("characters", list), ("words", str.split)):
            edits = np.array([distance(parts(one), parts(other)) for one, other in pairs], np.float64)
            sizes = np.array([len(parts(other)) for _, other in pairs], np.float64)
            losses = Losses.of(edits, sizes, self.alike("test"))
            found[name] = {"rate": losses.loss, "std_error": losses.std_error}
        return found

    def shipped(self, arch: ArchSpec) -> Mapping[str, Mapping[str, object]]:
        """A tokenizer of characters, and the settings of the front end."""
        classes = self.arrays.classes
        return {
            **super().shipped(arch),
            "vocab.json": {SPACE_NAME if sign == " " else sign: number for number, sign in enumerate(classes)},
            "tokenizer_config.json": {
                "tokenizer_class": "Wav2Vec2CTCTokenizer",
                "pad_token": BLANK_NAME,
                "word_delimiter_token": SPACE_NAME,
                "bos_token": None,
                "eos_token": None,
            },
        }
