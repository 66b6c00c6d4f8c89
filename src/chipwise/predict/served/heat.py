"""Speed under long load in hot surroundings: what a cooler carries off, and the clock that this power allows.

In the steady state a cooler carries off heat in proportion to the difference of temperatures over it, so with a limit
on the chip (or, for a phone, on what a hand holds) and a power that suffices at a rated ambient,

    R_th = (T_limit - T_rated) / P_rated        P(T_ambient) = (T_limit - T_ambient) / R_th

A load that draws no more keeps its speed. Otherwise the clock falls until it does: power goes with the clock at a fixed
voltage, with its cube if the voltage falls with it, so speed = (P(T_ambient) / P_load)^(1/a) with a from 1 to 3. Memory
that keeps its clock makes that the slow end. What no sheet says is drawn from ``COOLING``; the interval holds 90 % of
the draws. It was not compared with runs in hot surroundings: no public table has them.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, replace

import numpy as np

from chipwise.core import units
from chipwise.core.statistics import Z90
from chipwise.errors import SpecError, Unsupported
from chipwise.hardware.datasheet import DeviceProfile
from chipwise.hardware.power_draw import is_phone, limit_w
from chipwise.predict.cost.model import CostEstimate, Predicted
from chipwise.predict.served.intervals import UNCHECKED_PROMPT
from chipwise.predict.served.tails import tail_of

USUAL_C = 25.0  # ambient temperature if none is stated
LEAST_C, MOST_C = -40.0, 85.0  # range of ambient temperatures
DRAWS = 4000
LEAST_SPEED = 0.05  # share of the speed; below it a device rather shuts down
TOLERANCE_C = 3.0  # half-width of a published temperature
SUSTAINED = {"ttft_sustained": "ttft_p50", "tpot_sustained": "tpot_p50"}
"""Times under long load, and the cold medians that they are multiples of."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cooling:
    """How a class of devices is cooled; each figure is the middle and the half-width of 90 % of such devices.

    ``power`` is what the cooler carries off at the rated ambient, as a share of the device's power limit; its
    half-width is a logarithm.
    """

    limit_c: tuple[float, float]
    rated_c: tuple[float, float]
    power: tuple[float, float]


COOLING = {
    "phone": Cooling(limit_c=(55.0, 7.0), rated_c=(25.0, 5.0), power=(0.4, 0.6)),
    "board": Cooling(limit_c=(85.0, 8.0), rated_c=(25.0, 10.0), power=(0.7, 0.6)),
    "laptop": Cooling(limit_c=(100.0, 6.0), rated_c=(35.0, 8.0), power=(0.8, 0.4)),
    "card": Cooling(limit_c=(90.0, 7.0), rated_c=(35.0, 7.0), power=(1.05, 0.15)),
}
"""Assumed from limits that makers publish: batteries of phones discharge up to 60 °C; boards throttle from 80 to 99 °C,
processors at 95 to 105 °C, cards at 83 to 94 °C; rooms of servers and desktops have up to 35 °C (ASHRAE A2)."""


def cooling_of(device: DeviceProfile) -> str:
    """The class of ``COOLING`` that a device belongs to."""
    if is_phone(device):
        return "phone" if device.board_power is None else "board"
    if device.name.startswith("jetson"):
        return "board"
    return "laptop" if device.kind == "soc" or "laptop" in device.name else "card"


def ambient_of(value: str | float, field: str = "ambient") -> float:
    """An ambient temperature in degrees Celsius.

    Raises:
        SpecError: It is not a temperature, or out of range.
    """
    found = units.parse_field(value, "temperature", field)
    if not LEAST_C <= found <= MOST_C:
        raise SpecError(f"must be from {LEAST_C:g} to {MOST_C:g} °C, not {found:g} °C", field=field)
    return found


def slowdown(device: DeviceProfile, ambient_c: float, drawn: Predicted | None = None) -> Predicted:
    """Factor on times under long load, at least 1, with its 90 % interval.

    Args:
        device: The device.
        ambient_c: Temperature of the surroundings in degrees Celsius.
        drawn: Watts of the load at full speed; None if unknown: anything from 0.3 of the limit to all of it.

    Raises:
        Unsupported: The sheet lists no power and it is no phone's chip, or the surroundings are as hot as the limit.
    """
    known = COOLING[cooling_of(device)]
    most_w = limit_w(device)
    published = device.max_temperature is not None, device.rated_ambient is not None
    limit = (device.max_temperature.number, TOLERANCE_C) if device.max_temperature is not None else known.limit_c
    rated = (device.rated_ambient.number, TOLERANCE_C) if device.rated_ambient is not None else known.rated_c
    if ambient_c >= limit[0]:
        where = "its sheet" if published[0] else f"assumed for a {cooling_of(device)}"
        raise Unsupported(f"{device.name} is to stay below {limit[0]:g} °C ({where}): no long load at {ambient_c:g} °C")
    normal = _normal()
    limits_c, rated_c = (middle + half / Z90 * normal[i] for i, (middle, half) in enumerate((limit, rated)))
    removed_w = most_w * known.power[0] * np.exp(known.power[1] / Z90 * normal[2])
    removed_w = removed_w * np.maximum(limits_c - ambient_c, 0.1) / np.maximum(limits_c - rated_c, 5.0)
    uniform = (np.argsort(np.argsort(normal[3:5], axis=1), axis=1) + 0.5) / DRAWS
    if drawn is None:
        load_w = most_w * (0.3 + 0.7 * uniform[1])
    else:
        load_w = np.minimum(drawn.value * np.exp((drawn.log_halfwidth or 0.6) / Z90 * normal[4]), most_w)
    speed = np.clip(removed_w / load_w, LEAST_SPEED, 1.0) ** (1 / (1 + 2 * uniform[0]))
    low, middle, high = np.quantile(1 / np.maximum(speed, LEAST_SPEED), (0.05, 0.5, 0.95))
    return Predicted(value=float(middle), low=float(low), high=float(high))


@functools.cache
def _normal() -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
    """Independent standard normal draws, (5, ``DRAWS``)."""
    return np.random.default_rng(0).standard_normal((5, DRAWS))


def drawn_w(found: CostEstimate) -> Predicted | None:
    """Watts of one device while the estimate's requests follow one another; None if their energy is unknown."""
    energy = next((each for name, each in found.metrics.items() if name.startswith("joules_per_")), None)
    if energy is None:
        return None
    return Predicted.around(energy.value * found.metrics["throughput"].value / found.devices, energy.log_halfwidth)


def sustained(found: CostEstimate, device: DeviceProfile, ambient_c: float) -> CostEstimate:
    """``found`` with ``tpot_sustained`` and ``ttft_sustained``, and a note on where they come from.

    Raises:
        Unsupported: See :func:`slowdown`.
    """
    load = drawn_w(found)
    slow = slowdown(device, ambient_c, load)
    metrics = dict(found.metrics)
    for name, median in SUSTAINED.items():
        if median in metrics:
            metrics[name] = tail_of(metrics[median], slow, UNCHECKED_PROMPT)
    return replace(found, metrics=metrics, notes=(*found.notes, _said(device, ambient_c, slow, load)))


def _said(device: DeviceProfile, ambient_c: float, slow: Predicted, load: Predicted | None) -> str:
    """One line on the speed that remains, and on the facts behind it."""
    kind = cooling_of(device)
    facts = []
    if device.max_temperature is not None:
        facts.append(f"limit {device.max_temperature.number:g} °C by its sheet")
    if device.rated_ambient is not None:
        facts.append(f"made for up to {device.rated_ambient.number:g} °C")
    if not facts:
        facts.append(f"its sheet has no temperature: cooled like any {kind}, so the interval is wide")
    watts = "an unknown power" if load is None else f"{units.show(load.value, 'power')}"
    share = units.span(1 / slow.value, 1 / (slow.high or math.inf), 1 / (slow.low or 1.0), "share")
    return (
        f"at {ambient_c:g} °C under long load at {watts} it keeps {share} of its speed: {', '.join(facts)}; a thermal "
        "resistance, not compared with hot runs"
    )
