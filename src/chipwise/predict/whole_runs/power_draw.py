"""Watts of a GPU over a whole run: an idle part, plus parts for moving bytes and for arithmetic.

``kernels/power.py`` predicts the power of one kernel that runs without gaps. Over a whole run, power mostly follows
from the average utilisation of memory bandwidth and arithmetic. The constants are fitted to the boards' power counters.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from chipwise.hardware.datasheet import DeviceProfile
from chipwise.predict.whole_runs.sums import Amount, Law, named, value_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Shares:
    """Shares of a run's time that each kind of work would take at the data sheet's rates. Their sum may exceed one."""

    memory: float
    compute: float
    attention: float = 0.0


def watts_law(device: DeviceProfile, shares: Shares, levels: tuple[str, ...]) -> Law:
    """The law for one board's mean power: a sum of contributions, such as idle power and power for moving bytes.

    Args:
        device: The board; each contribution is a share of its power limit.
        shares: Average utilisation in the run.
        levels: Properties that other runs may share, such as the GPU; fitted terms have a deviation for each property.

    Raises:
        Unsupported: The device lists no board power.
    """
    limit = device.board_power_w
    return (
        Amount(limit, 0, named("awake", levels)),
        Amount(limit * min(shares.memory, 1.0), 1, named("memory", levels)),
        Amount(limit * min(shares.compute, 1.0), 2, named("compute", levels)),
        Amount(limit * min(shares.attention, 1.0), 3, named("attention", levels)),
    )


def mean_watts(device: DeviceProfile, law: Law, terms: Mapping[str, float]) -> float:
    """Mean watts according to the law with the fitted ``terms``, at most the board's power limit."""
    return min(float(value_of(law, terms)), device.board_power_w)
