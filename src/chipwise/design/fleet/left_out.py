"""Explains why a device is in no fleet of a plan: it cannot run the model, serve the load, or keep the limits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from chipwise.core import units
from chipwise.design.fleet.arrangements import Arrangement
from chipwise.design.fleet.evaluating import Candidate
from chipwise.design.fleet.finding import Finder
from chipwise.design.fleet.holding import Fleet, Times
from chipwise.errors import counted

MOST_SHOWN = 4  # arrangements named in a message; more are only counted


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """A device that is in no fleet of a plan, and why.

    ``needed_devices`` and ``needed_usd_per_h`` describe the fleet of this device that would keep the limits if step
    times were exactly as predicted; None if there is none, or if it was not computed.
    """

    device: str
    reason: str
    needed_devices: int | None = None
    needed_usd_per_h: float | None = None


def left_out(finder: Finder, fleets: Sequence[Fleet], limits: Times) -> tuple[LeftOut, ...]:
    """The allowed devices that are in none of ``fleets``.

    The closest arrangement is only replayed if the question names its devices.
    """
    held = {candidate.arrangement.device for fleet in fleets for candidate, _ in fleet.pools}
    devices = [device for device in finder.devices if device not in held]
    broken: dict[str, list[Arrangement]] = {device: [] for device in devices}
    for each in finder.arrangements:
        if each.device in broken and each.key in finder.problems:
            broken[each.device].append(each)
    return tuple(_left_out(finder, device, broken[device], limits) for device in devices)


def _left_out(finder: Finder, device: str, broken: Sequence[Arrangement], limits: Times) -> LeftOut:
    """Reason why a device is left out; the arrangements in ``broken`` cannot run on it."""
    candidates = [each for each in finder.candidates if each.arrangement.device == device]
    if not candidates:
        return LeftOut(device=device, reason=_cannot_run(finder, broken))
    failed = _failed(broken)
    holding = finder.holding
    if all(holding.most_replicas(each) < holding.least_replicas(each, finder.z) for each in candidates):
        return LeftOut(device=device, reason=_too_many(finder, candidates) + failed)
    if "together" not in finder.question.fleets:
        return LeftOut(device=device, reason=f"not in the cheapest fleet of two pools{failed}")
    if not finder.question.devices:
        return LeftOut(
            device=device, reason="no arrangement keeps the limits; name the device to see how close it comes"
        )
    closest = finder.closest(limits, device=device)
    assert closest is not None  # at least one candidate can serve the load
    fleet, _, upper = closest
    where = fleet.candidate.arrangement
    over = broken_limits(limits, upper, holding.metrics(fleet, 0.0), finder.question.confidence)
    needed = finder.needed(device, limits)
    usd_per_s = None if needed is None else needed.usd_per_s
    alone = "" if needed is None else f"; without prediction error {counted(needed.devices, 'device')} would be enough"
    return LeftOut(
        device=device,
        reason=f"no arrangement keeps {' and '.join(over) or 'the limits'}; the closest is {where.spread}, "
        f"{where.weights.upper()}{alone}{failed}",
        needed_devices=None if needed is None else needed.devices,
        needed_usd_per_h=None if usd_per_s is None else 3600 * usd_per_s,
    )


def broken_limits(limits: Times, upper: Times, predicted: Mapping[str, float], confidence: float) -> list[str]:
    """Limits that ``upper`` (times not exceeded with probability ``confidence``) breaks, each with both times."""
    sure = units.show(confidence, "share")
    return [
        f"{name} <= {units.show(limit, 'time')} (closest: predicted {units.show(predicted.get(name, 0.0), 'time')}, "
        f"with {sure} certainty at most {units.show(upper[name], 'time')})"
        for name, limit in limits.items()
        if upper.get(name, 0.0) > limit
    ]


def _cannot_run(finder: Finder, broken: Sequence[Arrangement]) -> str:
    """Why no arrangement of a device can run: the reason of the one with most devices and narrowest weights."""
    if not broken:
        return "none of the allowed degrees, formats and runtimes applies to it"
    most = max(each.devices for each in broken)
    last = [each for each in broken if each.devices == most][-1]
    return f"cannot run the model; at {last.spread}, {last.weights.upper()}: {finder.problems[last.key]}"


def _too_many(finder: Finder, candidates: Sequence[Candidate]) -> str:
    """Number of devices that the least demanding arrangement needs for the load, and how many are allowed."""
    holding = finder.holding

    def devices(candidate: Candidate, z: float) -> int:
        return holding.least_replicas(candidate, z) * candidate.arrangement.devices

    fewest = min(candidates, key=lambda each: devices(each, finder.z))
    allowed = holding.most_replicas(fewest) * fewest.arrangement.devices
    return (
        f"the load alone takes {counted(devices(fewest, finder.z), 'device')} with "
        f"{units.show(finder.question.confidence, 'share')} certainty ({devices(fewest, 0.0):,} by the prediction), "
        f"and devices, power and budget allow {allowed:,}"
    )


def _failed(broken: Sequence[Arrangement]) -> str:
    """Arrangements of a device that cannot run, if others can."""
    if not broken:
        return ""
    names = [f"{each.weights.upper()} {each.spread}" for each in broken]
    which = ", ".join(names) if len(names) <= MOST_SHOWN else counted(len(names), "other arrangement")
    return f"; {which} cannot run the model"
