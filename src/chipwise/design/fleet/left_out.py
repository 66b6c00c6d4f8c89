"""Explains why a plan uses no fleet of some device: it cannot run the model, serve the load, or meet the limits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from chipwise.core import units
from chipwise.design.fleet.arrangements import Arrangement
from chipwise.design.fleet.evaluating import Candidate
from chipwise.design.fleet.finding import Finder
from chipwise.design.fleet.holding import Fleet, Times
from chipwise.errors import counted

MOST_SHOWN = 4  # most arrangements that a message names; if there are more, it counts them


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """A device that no fleet of a plan uses, and the reason.

    If step times were exactly as predicted, a fleet of ``needed_devices`` such devices, at ``needed_usd_per_h``, would
    meet the limits. Both are None if no fleet would meet them, or if this was not computed.
    """

    device: str
    reason: str
    needed_devices: int | None = None
    needed_usd_per_h: float | None = None


def left_out(finder: Finder, fleets: Sequence[Fleet], limits: Times) -> tuple[LeftOut, ...]:
    """The question's devices that none of ``fleets`` uses, with reasons.

    If the question names its devices, arrangements are replayed to say how close each device comes to the limits.
    """
    held = {candidate.arrangement.device for fleet in fleets for candidate, _ in fleet.pools}
    devices = [device for device in finder.devices if device not in held]
    broken: dict[str, list[Arrangement]] = {device: [] for device in devices}
    for each in finder.arrangements:
        if each.device in broken and each.key in finder.problems:
            broken[each.device].append(each)
    return tuple(_left_out(finder, device, broken[device], limits) for device in devices)


def _left_out(finder: Finder, device: str, broken: Sequence[Arrangement], limits: Times) -> LeftOut:
    """Why no fleet uses this device; ``broken`` are its arrangements that cannot run."""
    candidates = [each for each in finder.candidates if each.arrangement.device == device]
    if not candidates:
        return LeftOut(device=device, reason=_cannot_run(finder, broken))
    failed = _failed(broken)
    holding = finder.holding
    if all(holding.most_replicas(each) < holding.least_replicas(each, finder.z) for each in candidates):
        return LeftOut(device=device, reason=_too_many(finder, candidates) + failed)
    if "together" not in finder.question.fleets:
        return LeftOut(device=device, reason=f"the cheapest fleet of two pools does not use it{failed}")
    if not finder.question.devices:
        return LeftOut(
            device=device, reason="no arrangement meets the limits; name the device to see how close it comes"
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
        reason=f"no arrangement meets {' and '.join(over) or 'the limits'}; the closest is {where.spread}, "
        f"{where.weights.upper()}{alone}{failed}",
        needed_devices=None if needed is None else needed.devices,
        needed_usd_per_h=None if usd_per_s is None else 3600 * usd_per_s,
    )


def broken_limits(limits: Times, upper: Times, predicted: Mapping[str, float], confidence: float) -> list[str]:
    """The limits that ``upper`` exceeds, as text. Times are at most ``upper`` with probability ``confidence``."""
    sure = units.show(confidence, "share")
    return [
        f"{name} <= {units.show(limit, 'time')} (closest: predicted {units.show(predicted.get(name, 0.0), 'time')}, "
        f"with {sure} certainty at most {units.show(upper[name], 'time')})"
        for name, limit in limits.items()
        if upper.get(name, 0.0) > limit
    ]


def _cannot_run(finder: Finder, broken: Sequence[Arrangement]) -> str:
    """Why no arrangement of a device can run: the reason for the largest one, with the narrowest weights."""
    if not broken:
        return "this device supports none of the allowed combinations of degrees, formats and runtimes"
    most = max(each.devices for each in broken)
    last = [each for each in broken if each.devices == most][-1]
    return f"cannot run the model; at {last.spread}, {last.weights.upper()}: {finder.problems[last.key]}"


def _too_many(finder: Finder, candidates: Sequence[Candidate]) -> str:
    """Says how many devices the load needs even if limits on times are ignored, and how many are allowed."""
    holding = finder.holding

    def devices(candidate: Candidate, z: float) -> int:
        return holding.least_replicas(candidate, z) * candidate.arrangement.devices

    fewest = min(candidates, key=lambda each: devices(each, finder.z))
    allowed = holding.most_replicas(fewest) * fewest.arrangement.devices
    return (
        f"with {units.show(finder.question.confidence, 'share')} certainty, the load alone, without limits on times, "
        f"needs {counted(devices(fewest, finder.z), 'device')} ({devices(fewest, 0.0):,} without prediction error), "
        f"but the limits on devices, power and budget allow only {allowed:,}"
    )


def _failed(broken: Sequence[Arrangement]) -> str:
    """Says which arrangements of a device cannot run; empty if all can."""
    if not broken:
        return ""
    names = [f"{each.weights.upper()} {each.spread}" for each in broken]
    which = ", ".join(names) if len(names) <= MOST_SHOWN else counted(len(names), "other arrangement")
    return f"; {which} cannot run the model"
