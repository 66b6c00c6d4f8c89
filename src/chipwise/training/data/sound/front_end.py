"""Log-mel spectrograms of samples, the input of speech models, in NumPy. Axes: N clips, T frames, M mel bands.

Frame ``i`` is centred on sample ``i * hop``; clips are padded with silence. Each frame of 25 ms is weighted with a
periodic Hann window, its power spectrum is summed in mel bands, and log10 of the sums is returned. The bands are
triangular filters that are evenly spaced on the mel scale and overlap by half.

References:
    Mel scale: HTK, ``2595 log10(1 + f / 700)`` (Young et al., The HTK Book, section 5.4), the default of torchaudio.
    Windows of 25 ms every 10 ms, 40 bands: Berg et al. 2021, Keyword Transformer, arXiv:2104.00769.
    Centred frames, dropping the last frame, and the floor of 1e-10: Radford et al. 2022 (Whisper), arXiv:2212.04356.
"""

from __future__ import annotations

import functools
import time

import numpy as np
from numpy.typing import NDArray

from chipwise.core.arrays import Float64Array

RATE_HZ = 16_000
WINDOW_S, HOP_S = 0.025, 0.010
WINDOW, HOP = round(RATE_HZ * WINDOW_S), round(RATE_HZ * HOP_S)  # samples
BINS = 512  # length of the Fourier transform; the window is zero-padded on both sides
FLOOR = 1e-10  # minimum power; quieter bands are raised to it
ROWS = 64  # clips processed at a time
TIMED = 21  # spectrograms that are timed


def log_mel(samples_NS: NDArray[np.floating], *, bands: int) -> NDArray[np.float32]:
    """Log-mel spectrograms (N, M, T) of 16 kHz clips with values from -1 to 1; one frame for every 160 samples."""
    parts = [
        np.log10(np.maximum(power(samples_NS[start : start + ROWS]) @ filters(bands), FLOOR))
        for start in range(0, len(samples_NS), ROWS)
    ]
    found = np.concatenate(parts).transpose(0, 2, 1)
    return np.ascontiguousarray(found, np.float32)


def power(samples_NS: NDArray[np.floating]) -> Float64Array:
    """The power spectrum of every frame, (N, T, BINS / 2 + 1)."""
    count = samples_NS.shape[1] // HOP
    padded = np.pad(samples_NS.astype(np.float64), ((0, 0), (BINS // 2, BINS // 2)))
    frames = np.lib.stride_tricks.sliding_window_view(padded, BINS, axis=1)[:, : count * HOP : HOP]
    spectrum: Float64Array = np.abs(np.fft.rfft(frames * window(), axis=2)) ** 2
    return spectrum


@functools.cache
def window() -> Float64Array:
    """The periodic Hann window of 400 samples, padded with zeros on both sides to 512, (BINS,)."""
    hann = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(WINDOW) / WINDOW)
    left = (BINS - WINDOW) // 2
    return np.pad(hann, (left, BINS - WINDOW - left))


@functools.cache
def filters(bands: int) -> Float64Array:
    """Filter bank (BINS / 2 + 1, M): triangles of height 1, evenly spaced in mel from 0 Hz to half the sample rate."""
    edges_hz = hertz(np.linspace(0.0, mel(RATE_HZ / 2), bands + 2))
    frequencies = np.linspace(0.0, RATE_HZ / 2, BINS // 2 + 1)[:, None]
    left, middle, right = edges_hz[:-2], edges_hz[1:-1], edges_hz[2:]
    rising, falling = (frequencies - left) / (middle - left), (right - frequencies) / (right - middle)
    return np.maximum(0.0, np.minimum(rising, falling))


def mel(hz: float) -> float:
    """Converts a frequency in Hz to the mel scale.

    >>> round(mel(1000.0))
    1000
    """
    return float(2595 * np.log10(1 + hz / 700))


def hertz(mels: Float64Array) -> Float64Array:
    """Converts values on the mel scale to frequencies in Hz."""
    return np.asarray(700 * (10 ** (mels / 2595) - 1), np.float64)


def front_end_s(frames: int, *, bands: int) -> float:
    """Median seconds to compute the spectrogram of one clip on this machine."""
    clip = np.random.default_rng(0).standard_normal((1, frames * HOP))
    seconds = []
    for _ in range(TIMED):
        start = time.perf_counter()
        log_mel(clip, bands=bands)
        seconds.append(time.perf_counter() - start)
    return float(np.median(seconds))


def described(frames: int, mean: NDArray[np.floating], std: NDArray[np.floating]) -> dict[str, object]:
    """Settings of the front end as plain data, so that other programs can compute a model's input."""
    return {
        "what": "log10 of mel power, then (x - mean) / std of each band; "
        "chipwise.training.data.sound.front_end.log_mel",
        "sampling_rate": RATE_HZ,
        "samples": frames * HOP,
        "hop_length": HOP,
        "window": "periodic hann",
        "win_length": WINDOW,
        "n_fft": BINS,
        "mel_scale": "htk",
        "num_mel_bins": mean.size,
        "mean": mean.ravel().tolist(),
        "std": std.ravel().tolist(),
    }
