"""Speed under sustained load in hot surroundings: how much heat a cooler removes, and which clock this allows.

In the steady state, a cooler removes heat in proportion to the temperature difference across it. The thermal
resistance R_th follows from two facts: the highest temperature of the chip (for a phone, of its surface), and the power
that is removed at a rated ambient temperature. R_th then gives the power that is removed at any ambient temperature:

    R_th = (T_limit - T_rated) / P_rated        P(T_ambient) = (T_limit - T_ambient) / R_th

A load that draws at most P(T_ambient) keeps its speed. For a larger load, the clock falls until the load draws no more
than that. Power is proportional to the clock at a fixed voltage, and to the clock's cube if the voltage falls with the
clock, so speed = (P(T_ambient) / P_load)^(1/a) with a from 1 to 3. The real speed may be higher, because memory may
keep its clock. Figures that the data sheet does not state are drawn at random from ``COOLING``; the interval holds 90 %
of the results. The formula was not compared with runs in hot surroundings, because no public table has such runs.
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
LEAST_SPEED = 0.05  # share of the cold speed; lower results are raised to it, since such a device would shut down
TOLERANCE_C = 3.0  # half-width of a published temperature
SUSTAINED = {"ttft_sustained": "ttft_p50", "tpot_sustained": "tpot_p50"}
"""For each metric under long load: the median on a cold device, from which a factor predicts the metric."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cooling:
    """How a class of devices is cooled: temperature limit, rated ambient temperature, and cooling power.

    Each field is a middle value and the half-width of the range that holds 90 % of devices. ``power`` is the heat that
    the cooler removes at the rated ambient temperature, as a share of the device's power limit; its half-width is a
    logarithm.
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
"""The cooling of each class, assumed from limits that makers publish: phone batteries may discharge at up to 60 °C;
boards throttle at 80 to 99 °C, processors at 95 to 105 °C, and cards at 83 to 94 °C; the rooms of servers and desktops
have up to 35 °C (ASHRAE A2)."""


def cooling_of(device: DeviceProfile) -> str:
    """The class of ``COOLING`` to which a device belongs."""
    if is_phone(device):
        return "phone" if device.board_power is None else "board"
    if device.name.startswith("jetson"):
        return "board"
    return "laptop" if device.kind == "soc" or "laptop" in device.name else "card"


def ambient_of(value: str | float, field: str = "ambient") -> float:
    """Reads an ambient temperature in degrees Celsius.

    Raises:
        SpecError: ``value`` is not a temperature, or is out of range.
    """
    found = units.parse_field(value, "temperature", field)
    if not LEAST_C <= found <= MOST_C:
        raise SpecError(f"must be from {LEAST_C:g} to {MOST_C:g} °C, not {found:g} °C", field=field)
    return found


def slowdown(device: DeviceProfile, ambient_c: float, drawn: Predicted | None = None) -> Predicted:
    """Factor, at least 1, by which times are longer under sustained load, with its 90 % interval.

    Args:
        device: The device.
        ambient_c: Temperature of the surroundings in degrees Celsius.
        drawn: Watts of the load at full speed. None if unknown: any share of the power limit from 0.3 to 1 is then
            equally likely.

    Raises:
        Unsupported: The data sheet lists no power (phone chips need none), or the surroundings are at least as hot as
            the device's temperature limit.
    """
    known = COOLING[cooling_of(device)]
    most_w = limit_w(device)
    published = device.max_temperature is not None, device.rated_ambient is not None
    limit = (device.max_temperature.number, TOLERANCE_C) if device.max_temperature is not None else known.limit_c
    rated = (device.rated_ambient.number, TOLERANCE_C) if device.rated_ambient is not None else known.rated_c
    if ambient_c >= limit[0]:
        where = "its sheet" if published[0] else f"assumed for a {cooling_of(device)}"
        raise Unsupported(
            f"{device.name} must stay below {limit[0]:g} °C ({where}), so it cannot run for long at {ambient_c:g} °C; "
            "state a lower ambient temperature"
        )
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
    """Watts of one device that serves the estimate's requests without a break; None if their energy is unknown."""
    energy = next((each for name, each in found.metrics.items() if name.startswith("joules_per_")), None)
    if energy is None:
        return None
    return Predicted.around(energy.value * found.metrics["throughput"].value / found.devices, energy.log_halfwidth)


def sustained(found: CostEstimate, device: DeviceProfile, ambient_c: float) -> CostEstimate:
    """Adds ``ttft_sustained`` and ``tpot_sustained`` to ``found``, and a note on how they were computed.

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
    """One line on the speed under sustained load, and on the facts from which it was computed."""
    kind = cooling_of(device)
    facts = []
    if device.max_temperature is not None:
        facts.append(f"its data sheet states a limit of {device.max_temperature.number:g} °C")
    if device.rated_ambient is not None:
        facts.append(f"made for up to {device.rated_ambient.number:g} °C")
    if not facts:
        facts.append(f"its data sheet has no temperatures, so typical cooling of a {kind} is assumed")
    watts = "an unknown power" if load is None else f"{units.show(load.value, 'power')}"
    share = units.span(1 / slow.value, 1 / (slow.high or math.inf), 1 / (slow.low or 1.0), "share")
    return (
        f"at {ambient_c:g} °C under long load at {watts} it keeps {share} of its speed: {', '.join(facts)}; computed "
        "from a thermal resistance, not checked against runs in hot surroundings"
    )
