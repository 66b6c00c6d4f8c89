"""The sinusoidal embedding of a denoiser's time input."""

from __future__ import annotations

import math

PERIODS = 10_000.0  # ratio of the longest to the shortest wavelength
SCALE = 1_000.0  # gives times from 0 to 1 the angles of DiT's steps from 0 to 1000


def wave_tables(frequencies: int) -> tuple[list[float], list[float]]:
    """Frequencies and phases, each (F,), of the sinusoids that embed a time: first cosines, then sines, as in DiT.

    References:
        Vaswani et al. 2017, arXiv:1706.03762, section 3.5.
    """
    half = max(1, frequencies // 2)
    turns = [SCALE * math.exp(-math.log(PERIODS) * (i % half) / half) for i in range(frequencies)]
    return turns, [math.pi / 2 if i < half else 0.0 for i in range(frequencies)]
