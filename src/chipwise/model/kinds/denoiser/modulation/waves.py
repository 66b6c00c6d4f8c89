"""The waves that a denoiser's times are written in."""

from __future__ import annotations

import math

PERIODS = 10_000.0  # the longest wave over the shortest
SCALE = 1_000.0  # times from 0 to 1 turn as steps from 0 to 1000 did


def wave_tables(frequencies: int) -> tuple[list[float], list[float]]:
    """Turns and phases, each (F,), of the waves that a time is written in: cosines, then sines as in DiT.

    References:
        Vaswani et al. 2017, arXiv:1706.03762, section 3.5.
    """
    half = max(1, frequencies // 2)
    turns = [SCALE * math.exp(-math.log(PERIODS) * (i % half) / half) for i in range(frequencies)]
    return turns, [math.pi / 2 if i < half else 0.0 for i in range(frequencies)]
