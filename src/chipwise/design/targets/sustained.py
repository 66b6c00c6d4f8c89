"""Converts limits on sustained speed, which users state for a hot machine, to limits that a cold machine can check.

On a machine that keeps two thirds of its speed under load, ``tpot_sustained: <= 3 ms`` is measured as
``tpot_p50: <= 2 ms``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from chipwise.design.limits import parse_constraints
from chipwise.design.run.spec import RunSpec
from chipwise.errors import Unsupported
from chipwise.hardware.device import MachineProfile, Thermal

SUSTAINED = "tpot_sustained"


def with_cold_limits(spec: RunSpec, profile: MachineProfile) -> RunSpec:
    """Converts the limits on sustained speed in ``spec`` to limits on the median of a cold machine.

    Raises:
        Unsupported: There is a limit on sustained speed, but the machine was never observed under sustained load.
    """
    if SUSTAINED not in spec.constraints:
        return spec
    if profile.thermal is None:
        raise Unsupported(
            f"constraints.{SUSTAINED}: it is not known how much of its speed {profile.machine.name} keeps under "
            f"load; run: chipwise calibrate --runtime {profile.runtime}, then: chipwise measure MODEL --sustained 10m"
        )
    thermal, ambient_c = profile.thermal, spec.target.ambient_c
    if ambient_c is not None:
        thermal = replace(thermal, sustained_share=thermal.share_at(ambient_c))
    return replace(spec, constraints=cold(spec.constraints, thermal))


def cold(constraints: Mapping[str, object], thermal: Thermal) -> dict[str, object]:
    """Converts the limits on sustained speed in ``constraints`` to limits for a cold machine."""
    rest = {name: value for name, value in constraints.items() if name != SUSTAINED}
    restated: list[object] = []
    for limit in parse_constraints({SUSTAINED: constraints[SUSTAINED]}):
        text = f"{limit.op} {limit.limit * thermal.sustained_share:.9g} s"
        restated.append(text if limit.hard else {"limit": text, "penalty": limit.penalty})
    known = rest.get("tpot_p50", [])
    rest["tpot_p50"] = [*(known if isinstance(known, list) else [known]), *restated]
    return rest
