"""Utterances in the folder of a run: spectrograms for all trainings; exported graphs are judged one by one."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from chipwise.core.arrays import Float64Array
from chipwise.core.digest import digest
from chipwise.core.files import read_mapping, write_json
from chipwise.deploy.export.hf import save_pretrained
from chipwise.errors import MeasurementError, SpecError
from chipwise.model.arch.arch import ArchSpec
from chipwise.model.kinds.image.hf_vit import labels_of
from chipwise.model.kinds.sound.choices import SoundSpace
from chipwise.model.space.search_space import Rows, SearchSpace
from chipwise.training.data.dataset import DataFile, Split
from chipwise.training.tasks.exported_classifier import logits_of
from chipwise.training.tasks.made import is_made
from chipwise.training.tasks.protocol import Exported, Losses
from chipwise.training.tasks.speech.front_end import HOP, described, front_end_s
from chipwise.training.tasks.speech.kept import by_speaker, fields_of, keep, summary_of
from chipwise.training.tasks.speech.pictures import spectrogram
from chipwise.training.tasks.transcripts.dataset import (
    BLANK,
    TranscribedSpectrograms,
    decoded,
    distance,
    edits_of,
    least_positions,
    load_transcripts,
)
from chipwise.training.tasks.transcripts.sources import BLANK_NAME, UtterancesSpec, parts_of, read_utterances

QUICK = 200  # utterances that short trainings are judged on
SHOWN = 8  # test utterances in the report
BATCH = 32
SAMPLE_BYTES = 2  # of a recording
SPACE_NAME = "|"  # between words, as transformers' tokenizers of characters write it


class TranscriptsData:
    """See :class:`chipwise.training.tasks.protocol.TaskData`.

    Args:
        spec: Where utterances come from.
        base: Where its paths start.
        folder: Where the file of spectrograms is kept.
        sound: Frames, bands and characters that the space is for.
    """

    recipe: Mapping[str, Any] = {"batch_windows": BATCH}
    quick = QUICK

    def __init__(self, spec: UtterancesSpec, base: Path, folder: Path, sound: SoundSpace) -> None:
        self.spec, self.base, self.folder, self.sound = spec, base, folder, sound

    @property
    def path(self) -> Path:
        """The file of spectrograms."""
        return self.folder / "utterances.npz"

    @property
    def facts(self) -> Path:
        """What the file was made of: source, licence, noise."""
        return self.folder / "utterances.json"

    def prepare(self) -> None:
        """Reads or speaks the utterances, divides their speakers, and writes the spectrograms once."""
        wanted = digest([self.spec, self.sound.size, self.sound.channels])
        if is_made(self.facts, wanted, entries="utterances"):
            return
        length = self.sound.size * HOP
        found = read_utterances(self.spec, self.base, length=length)
        if len(found.characters) != self.sound.classes:
            shown = "".join(found.characters[1:])
            raise SpecError(
                f"there are {len(found.characters)} characters with the blank ({shown!r}), not {self.sound.classes}",
                field="space.sound.classes",
            )
        parts = parts_of(found, self.spec, bands=self.sound.channels, length=length)
        self._check_positions(max(int(least_positions(part.labels).max()) for part in parts.values()))
        data = TranscribedSpectrograms(classes=found.characters, **fields_of(parts))
        left_out = f"; {found.too_long} utterances too long, left out" if found.too_long else ""
        keep(data, parts, self.spec, self.path, self.facts, identity=wanted, note=left_out)

    def _check_positions(self, needed: int) -> None:
        """Checks that CTC can write the longest text at the positions that every stride leaves."""
        stride = max(self.sound.stride)
        left = self.sound.size // stride
        if left < needed:
            raise SpecError(
                f"{stride} leaves {left} positions of a sound, and the longest text needs {needed}",
                field="space.sound.stride",
            )

    @cached_property
    def utterances(self) -> TranscribedSpectrograms:
        """The spectrograms of all parts with what was said."""
        return load_transcripts(self.path)

    def summary(self) -> Mapping[str, Any]:
        """Utterances and bytes of each part, source and licence."""
        return summary_of(self.utterances, self.facts, self.spec)

    def data(self, arch: ArchSpec) -> DataFile:
        """The spectrograms, parts of which are hidden while they are learnt."""
        return DataFile(path=str(self.path), kind="transcripts")

    def step_tokens(self, arch: ArchSpec) -> int:
        """Positions of a batch of utterances."""
        return BATCH * arch.max_tokens

    def bytes_per_token(self, space: SearchSpace, rows: Rows) -> Float64Array:
        """Bytes of 16-bit samples that a position stands for."""
        return np.asarray(HOP * SAMPLE_BYTES * space.values(rows, "stride"), np.float64)

    def losses(self, item: Exported, *, split: Split) -> Losses:
        """Edits and characters of each speaker, decoded from the exported graph one utterance at a time.

        Utterances of one voice are alike: speakers are what the uncertainty counts.
        """
        logits, _ = logits_of(item, self.utterances, split)
        labels = self.utterances.part(split)[1]
        edits = edits_of(logits, labels)
        if not np.isfinite(edits).all():
            raise MeasurementError(f"{item.folder}: the exported model's logits are not finite")
        return by_speaker(edits, (labels != BLANK).sum(1), self.facts, split)

    def samples(self, winner: Exported, reference: Exported | None) -> Mapping[str, Any]:
        """Some test utterances with what was recognised, error rates of characters and words, by noise, and times."""
        data, facts = self.utterances, read_mapping(self.facts)
        inputs, labels = data.test
        said = [data.text(row) for row in labels]
        heard: dict[str, list[str]] = {}
        pass_s, rates, edits = {}, {}, {}
        for who, item in (("winner", winner), ("baseline", reference)):
            if item is None:
                continue
            logits, pass_s[who] = logits_of(item, data, "test")
            heard[who] = [data.text(decoded(each)) for each in logits]
            edits[who] = edits_of(logits, labels)
            rates[who] = self._rates(heard[who], said)
        ratios = np.array(facts["test_snr_db"], np.float64)
        shown = np.unique(np.linspace(0, len(said) - 1, SHOWN).astype(int)).tolist()
        return {
            "clips": [
                {"image": spectrogram(inputs[i].astype(np.float32)), "text": said[i]}
                | {who: texts[i] for who, texts in heard.items()}
                | ({"snr_db": float(ratios[i])} if len(ratios) else {})
                for i in shown
            ],
            "synthetic": facts["synthetic"],
            "rates": rates,
            "noise": [
                {"snr_db": ratio, "utterances": int(held.sum())}
                | {who: float(found[held].sum() / (labels[held] != BLANK).sum()) for who, found in edits.items()}
                for ratio in sorted(set(ratios.tolist()), reverse=True)
                if (held := ratios == ratio).any()
            ],
            "times": {
                "clip_s": self.sound.seconds,
                "front_end_s": front_end_s(self.sound.size, bands=self.sound.channels),
                **pass_s,
            },
        }

    def _rates(self, heard: list[str], said: list[str]) -> dict[str, Any]:
        """Error rates of characters and words on the test part, with standard errors over speakers."""
        found = {}
        pairs = list(zip(heard, said, strict=True))
        for name, parts in (("characters", list), ("words", str.split)):
            edits = np.array([distance(parts(one), parts(other)) for one, other in pairs], np.float64)
            sizes = np.array([len(parts(other)) for _, other in pairs], np.float64)
            losses = by_speaker(edits, sizes, self.facts, "test")
            found[name] = {"rate": losses.loss, "std_error": losses.std_error}
        return found

    def ship(self, item: Exported, folder: Path, files: Mapping[str, str]) -> None:
        """The Hugging Face folder with a tokenizer of characters, and what the front end must compute before it."""
        arch, data = item.design.arch, self.utterances
        save_pretrained(arch, item.weights, None, folder, dict(files))
        write_json(folder / "config.json", read_mapping(folder / "config.json") | labels_of(arch, data.classes))
        write_json(folder / "front_end.json", described(self.sound.size, data.mean, data.std))
        vocabulary = {SPACE_NAME if sign == " " else sign: number for number, sign in enumerate(data.classes)}
        write_json(folder / "vocab.json", vocabulary)
        settings = {
            "tokenizer_class": "Wav2Vec2CTCTokenizer",
            "pad_token": BLANK_NAME,
            "word_delimiter_token": SPACE_NAME,
            "bos_token": None,
            "eos_token": None,
        }
        write_json(folder / "tokenizer_config.json", settings)
