"""The log-mel front end by pencil, by law, and against torch's short-time Fourier transform."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from chipwise.training.data.sound.front_end import (
    BINS,
    FLOOR,
    HOP,
    RATE_HZ,
    WINDOW,
    filters,
    hertz,
    log_mel,
    mel,
    power,
    window,
)

BANDS = 40


def test_a_pure_tone_lies_in_its_band() -> None:
    """The middle of band k is the (k + 1)th of 42 even steps of mel; a tone there is loudest in band k."""
    edges = hertz(np.linspace(0, mel(8000), BANDS + 2))
    time = np.arange(RATE_HZ) / RATE_HZ
    for band in (3, 10, 25, 38):
        tone = np.sin(2 * np.pi * edges[band + 1] * time)
        found = log_mel(tone[None], bands=BANDS)[0]
        assert found.shape == (BANDS, 100)
        assert set(found[:, 5:-5].argmax(0)) == {band}


def test_power_is_that_of_the_windowed_samples() -> None:
    """Parseval: the sum over all 512 frequencies of |X|² is 512 times that of the windowed samples' squares."""
    samples = np.random.default_rng(0).standard_normal(4 * HOP + BINS)
    spectrum = power(samples[None])[0]
    whole = spectrum.sum(1) + spectrum[:, 1:-1].sum(1)  # negative frequencies
    for frame in (2, 3, 4):
        start = frame * HOP - BINS // 2
        assert whole[frame] == pytest.approx(BINS * ((samples[start : start + BINS] * window()) ** 2).sum())


def test_frames_are_torchs() -> None:
    samples = np.random.default_rng(1).standard_normal((2, 16_000))
    hann = torch.hann_window(WINDOW, dtype=torch.float64)
    sizes = {"hop_length": HOP, "win_length": WINDOW, "window": hann, "center": True, "pad_mode": "constant"}
    theirs = torch.stft(torch.from_numpy(samples), BINS, return_complex=True, **sizes).abs() ** 2
    np.testing.assert_allclose(power(samples), theirs.numpy().transpose(0, 2, 1)[:, :100], rtol=1e-9, atol=1e-9)


def test_mel_is_the_published_scale() -> None:
    """1000 Hz is 1000 mel to a thousandth; 700 Hz is 2595 log10(2) = 781.2; the way back is the inverse."""
    assert mel(1000) == pytest.approx(1000, rel=1e-4)
    assert mel(700) == pytest.approx(781.17, abs=0.01)
    values = np.array([0.0, 500.0, 2840.0])
    assert [mel(hz) for hz in hertz(values)] == pytest.approx(values.tolist())


def test_triangles_overlap_to_one() -> None:
    """Between the middles of the first and the last band the weights of two neighbours add up to one."""
    edges = hertz(np.linspace(0, mel(8000), BANDS + 2))
    frequencies = np.linspace(0, 8000, BINS // 2 + 1)
    inside = (frequencies > edges[1]) & (frequencies < edges[-2])
    np.testing.assert_allclose(filters(BANDS)[inside].sum(1), 1)
    assert (filters(BANDS).sum(0) > 0).all()


def test_silence_is_the_floor_and_loudness_is_twice_the_logarithm() -> None:
    """Ten times the amplitude is a hundred times the power: 2 more."""
    assert (log_mel(np.zeros((1, 1600)), bands=BANDS) == np.float32(np.log10(FLOOR))).all()
    samples = np.random.default_rng(2).standard_normal((1, 1600))
    np.testing.assert_allclose(log_mel(10 * samples, bands=BANDS) - log_mel(samples, bands=BANDS), 2, atol=1e-5)
