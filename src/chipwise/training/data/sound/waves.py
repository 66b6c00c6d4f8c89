"""Reads WAV files as samples, cuts clips of one length, and adds noise at a given SNR."""

from __future__ import annotations

import io
import math
import wave
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from chipwise.errors import DataError
from chipwise.training.data.sound.front_end import RATE_HZ

QUIET = 0.02  # relative to the loudest sample; quieter samples at both ends count as silence
LOUDNESS = 0.1  # root mean square of the word in a clip
LEAST_HZ, MOST_HZ = 4_000, 768_000
STREAM_BYTES = 2**31 - 2**16  # programs that write to a pipe put this length or more in the header
COLOURS = (0.0, 2.0)  # spectral exponents: 0 is white noise, 1 pink, 2 brown


def decoded(content: bytes, *, where: str) -> NDArray[np.float32]:
    """Decodes a WAV file to samples at 16 kHz between -1 and 1; channels are averaged.

    If the header states no length (:func:`endless`), all of ``content`` is read. The decoder never reads beyond
    ``content``, whatever length the header states.

    Raises:
        DataError: ``content`` is not a WAV file of 8 or 16-bit integers, or it has no samples.
    """
    try:
        with wave.open(io.BytesIO(content)) as file:
            width, channels, rate = file.getsampwidth(), file.getnchannels(), file.getframerate()
            stated = _stated_bytes(file)
            raw = file.readframes(min(file.getnframes(), len(content) // max(1, width * channels)))
    except EOFError:
        raise DataError(f"{where}: not a WAV file: it ends too early") from None
    except wave.Error as error:
        raise DataError(f"{where}: not a WAV file of integers: {error}") from None
    if len(raw) < stated < STREAM_BYTES:
        raise DataError(f"{where}: is truncated: it has {len(raw):,} bytes of sound, but its header states {stated:,}")
    if not LEAST_HZ <= rate <= MOST_HZ:
        raise DataError(f"{where}: has {rate:,} samples a second; it must have from {LEAST_HZ:,} to {MOST_HZ:,}")
    if (bits := _bits(content)) != 8 * width:
        raise DataError(f"{where}: has {bits} bits a sample; convert it to 16 (`sox in.wav -b 16 out.wav`)")
    if width == 2:
        values = np.frombuffer(raw[: len(raw) // 2 * 2], "<i2").astype(np.float32) / 2**15
    elif width == 1:
        values = (np.frombuffer(raw, np.uint8).astype(np.float32) - 128) / 2**7
    else:
        raise DataError(f"{where}: has {8 * width} bits a sample; convert it to 16 (`sox in.wav -b 16 out.wav`)")
    values = values[: len(values) // channels * channels].reshape(-1, channels).mean(1)
    if not len(values):
        raise DataError(f"{where}: holds no samples")
    return resampled(values, rate)


def endless(content: bytes) -> bool:
    """Whether the header of a WAV file states no real length, as in a file that was written to a pipe.

    If such a file is truncated, this cannot be detected.
    """
    with wave.open(io.BytesIO(content)) as file:
        return _stated_bytes(file) >= STREAM_BYTES


def _stated_bytes(file: wave.Wave_read) -> int:
    return file.getnframes() * max(1, file.getsampwidth() * file.getnchannels())


def _bits(content: bytes) -> int:
    """Bits per sample as stated in the header; ``wave`` itself rounds them up to whole bytes."""
    place = content.find(b"fmt ")
    return int.from_bytes(content[place + 22 : place + 24], "little")


def resampled(samples: NDArray[np.float32], rate_hz: int) -> NDArray[np.float32]:
    """Resamples a sound to 16 kHz."""
    if rate_hz == RATE_HZ:
        return samples
    from scipy.signal import resample_poly

    common = math.gcd(RATE_HZ, rate_hz)
    return np.asarray(resample_poly(samples, RATE_HZ // common, rate_hz // common), np.float32)


def trimmed(samples: NDArray[np.float32]) -> NDArray[np.float32]:
    """Removes the silence at both ends; a single sample remains if everything is silent."""
    loud = np.flatnonzero(np.abs(samples) > QUIET * np.abs(samples).max(initial=0.0))
    return samples[loud[0] : loud[-1] + 1] if len(loud) else samples[:1]


def clip_of(samples: NDArray[np.float32], length: int, random: np.random.Generator) -> NDArray[np.float32]:
    """A clip of ``length`` samples with the word at a random offset, at normalised loudness; cuts long words."""
    word = trimmed(samples)
    if len(word) > length:
        start = (len(word) - length) // 2
        word = word[start : start + length]
    found = np.zeros(length, np.float32)
    start = int(random.integers(length - len(word) + 1))
    found[start : start + len(word)] = word * (LOUDNESS / max(1e-9, float(np.sqrt(np.mean(word**2)))))
    return found


def noise(length: int, random: np.random.Generator) -> NDArray[np.float32]:
    """Random noise with a colour between white and brown, and a root mean square of 1."""
    frequency = np.maximum(np.fft.rfftfreq(length), 50 / RATE_HZ)  # the spectrum is flat below 50 Hz
    shape = frequency ** (-random.uniform(*COLOURS) / 2)
    made = np.fft.irfft(shape * np.fft.rfft(random.standard_normal(length)), length)
    return np.asarray(made / np.sqrt(np.mean(made**2)), np.float32)


def noisy(clip: NDArray[np.float32], snr_db: float, random: np.random.Generator) -> NDArray[np.float32]:
    """Adds noise whose power is ``snr_db`` below the word's power, which is averaged over samples that are not 0."""
    held = clip[clip != 0]
    power = float(np.mean(held**2)) if len(held) else 0.0
    return clip + np.float32(math.sqrt(power * 10 ** (-snr_db / 10))) * noise(len(clip), random)


def divided(speakers: Sequence[str], *, share: float) -> dict[str, frozenset[str]]:
    """Splits speakers into disjoint groups for training, validation and test.

    Raises:
        DataError: There are fewer than three speakers.
    """
    known = sorted(set(speakers))
    if len(known) < 3:
        raise DataError(f"there are {len(known)} speakers, but training, validation and test need at least one each")
    mixed = np.random.default_rng(0).permutation(known).tolist()
    size = max(1, round(share * len(known)))
    return {
        "validation": frozenset(mixed[:size]),
        "test": frozenset(mixed[size : 2 * size]),
        "train": frozenset(mixed[2 * size :]),
    }
