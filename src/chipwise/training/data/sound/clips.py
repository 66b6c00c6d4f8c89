"""Makes spectrograms of speech clips with noise, splits them into parts, and draws them as PNG images."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from chipwise.core.fields import check_fields, positive
from chipwise.errors import SpecError
from chipwise.training.data.images.pixels import png
from chipwise.training.data.sound.front_end import ROWS, log_mel
from chipwise.training.data.sound.waves import clip_of, divided, noisy

MOST_BYTES = 2**28  # per recording, which is read whole


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Clips for training, validation or testing.

    ``inputs`` are spectrograms (n, bands, frames); ``labels`` are (n, …); ``snr_db`` (n,) is NaN for clean clips.
    """

    inputs: NDArray[np.float16]
    labels: NDArray[np.int64]
    snr_db: NDArray[np.float64]
    speakers: NDArray[np.int64]  # speaker ids from 0, (n,)
    endless: int = 0  # number of recordings whose files state no length


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """A recording of one speaker: samples at 16 kHz between -1 and 1, and the text that is spoken."""

    samples: NDArray[np.float32]
    text: str
    speaker: str
    endless: bool = False  # whether the recording's file states no length


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordingsSpec:
    """Source of the recordings: synthesised by ``espeak``, or a ``folder`` relative to the run file's folder.

    Each speaker is in only one part. ``held_out`` is the share of speakers in the validation part, and also the share
    in the test part.
    """

    source: Literal["espeak", "folder"] = "espeak"
    path: str = ""
    words: tuple[str, ...] = ()  # for espeak: the 20 commands unless listed
    voices: int = 101  # for espeak: number of voice variants, limited by those installed
    copies: int  # copies of each training recording, each with different noise and offset
    snr_db: tuple[float, ...]  # signal-to-noise ratios, used in turn; an empty list adds no noise
    held_out: float = 0.12
    licence: str = "not stated"

    def __post_init__(self) -> None:
        check_fields(self)
        positive(self, "voices", "copies", most=1_000)
        if (self.source == "folder") != bool(self.path):
            raise SpecError("`source: folder` needs a path; `source: espeak` takes none", field="path")
        if any(not -20 <= ratio <= 60 for ratio in self.snr_db):
            raise SpecError(f"must be from -20 to 60 dB, not {list(self.snr_db)}", field="snr_db")
        if not 0 < self.held_out <= 0.4:
            raise SpecError(f"must be above 0 and at most 0.4, not {self.held_out}", field="held_out")


def parts_of(
    found: Sequence[Recording], labels: NDArray[np.int64], spec: RecordingsSpec, *, bands: int, length: int, seed: int
) -> dict[str, Part]:
    """Splits recordings with ``labels`` (n, …) into training, validation and test clips; adds noise to them.

    Args:
        found: The recordings.
        labels: The label of each recording.
        spec: SNRs of the noise, number of copies of training clips, and share of held-out speakers.
        bands: Number of mel bands of a spectrogram.
        length: Length of a clip, in samples.
        seed: Random seed of noise and order.

    Raises:
        DataError: There are fewer than three speakers.
    """
    speakers = divided([each.speaker for each in found], share=spec.held_out)
    made = {}
    for number, (name, who) in enumerate(speakers.items()):
        rows = [row for row, each in enumerate(found) if each.speaker in who]
        order, ratios, spectra = mixed(
            [found[row].samples for row in rows],
            spec.snr_db,
            np.random.default_rng([seed, number]),
            copies=spec.copies if name == "train" else 1,
            bands=bands,
            length=length,
        )
        _, spoken_by = np.unique([found[rows[index]].speaker for index in order], return_inverse=True)
        made[name] = Part(
            inputs=spectra,
            labels=labels[rows][order],
            snr_db=ratios,
            speakers=spoken_by.astype(np.int64),
            endless=sum(found[row].endless for row in rows),
        )
    return made


def mixed(
    sounds: Sequence[NDArray[np.float32]],
    snr_db: Sequence[float],
    random: np.random.Generator,
    *,
    copies: int,
    bands: int,
    length: int,
) -> tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.float16]]:
    """Makes ``copies`` clips of every recording, each with different noise; returns them in random order.

    Returns:
        The index of each clip's recording (n,), its SNR in dB (n,), and the spectrograms (n, bands, frames).
    """
    order = random.permutation(len(sounds) * copies) % len(sounds)
    ratios = np.resize(np.array(snr_db or (np.nan,), np.float64), len(order))
    spectra = []
    for start in range(0, len(order), ROWS):
        clips = []
        for index, ratio in zip(order[start : start + ROWS], ratios[start : start + ROWS], strict=True):
            clip = clip_of(sounds[index], length, random)
            clips.append(clip if np.isnan(ratio) else noisy(clip, float(ratio), random))
        spectra.append(log_mel(np.stack(clips), bands=bands).astype(np.float16))
    return order, ratios, np.concatenate(spectra)


def stretches(count: int, length: int, share: float, random: np.random.Generator) -> NDArray[np.bool_]:
    """Random masks (count, length): in each row, an interval of at most ``share`` · ``length`` positions is true."""
    sizes = random.integers(0, int(share * length) + 1, count)
    starts = random.integers(0, length - sizes + 1)
    places = np.arange(length)
    return (places >= starts[:, None]) & (places < (starts + sizes)[:, None])


def spectrogram(bands_MT: NDArray[np.floating]) -> str:
    """Draws a log-mel spectrogram as a PNG data URI; loud values are dark, and low bands are at the bottom."""
    low, high = float(bands_MT.min()), float(bands_MT.max())
    shades = 255 - np.round(255 * (bands_MT[::-1] - low) / max(high - low, 1e-9)).astype(np.uint8)
    return png(shades[None])
