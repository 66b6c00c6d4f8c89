"""The deployment of a served model: device, runtime, number formats and parallelism."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, TypeVar

from chipwise.errors import SpecError
from chipwise.hardware.datasheet import DeviceProfile
from chipwise.hardware.runtime import Runtime
from chipwise.predict.served.plan import Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    """The device, the runtime on it, the formats, and the degrees of parallelism of one model.

    Attributes:
        device: A known name, a file or a data sheet; None means this machine with its calibration.
        runtime: Name of the runtime; None means the device's default.
        weights: One format, or formats per layer and for the head: ``int8/int4 head:int8`` (``model/arch/formats.py``).
            None means the chip's default (``hardware/suited.py``), and ``own`` means the checkpoint's format.
        kv: Format of the KV cache; None means the activations' format.
        tp: Tensor-parallel degree.
        pp: Pipeline-parallel degree.
        ep: Expert-parallel degree: number of groups among which experts are divided.
        dp: Number of attention replicas, which share the experts.
    """

    device: str | Path | DeviceProfile | None = None
    runtime: str | Runtime | None = None
    weights: str | None = None
    kv: str | None = None
    tp: int = 1
    pp: int = 1
    ep: int = 1
    dp: int = 1

    def __post_init__(self) -> None:
        for field in ("weights", "kv"):
            if getattr(self, field) == "":
                raise SpecError("must name a number format, not be empty", field=field)

    @property
    def plan(self) -> Plan:
        """The degrees of parallelism, checked.

        Raises:
            SpecError: A degree is not a whole number from 1 to 1,024, or the groups of experts do not divide the
                devices.
        """
        return Plan(tp=self.tp, pp=self.pp, ep=self.ep, dp=self.dp)

    @property
    def devices(self) -> int:
        """Number of devices of one replica."""
        return self.tp * self.pp * self.dp

    @property
    def spread(self) -> str:
        """Text on the degrees of parallelism, such as ``TP 4, EP 4``."""
        degrees = (("PP", self.pp), ("EP", self.ep), ("DP", self.dp))
        return ", ".join([f"TP {self.tp}", *(f"{name} {value}" for name, value in degrees if value > 1)])


WORDS = frozenset(field.name for field in fields(Deployment))
_Deployed = TypeVar("_Deployed")


def changed(value: _Deployed, changes: dict[str, Any]) -> _Deployed:
    """A copy of ``value`` with ``changes``, which name fields of ``value`` itself or of its deployment."""
    of_deployment = {name: new for name, new in changes.items() if name in WORDS}
    others = {name: new for name, new in changes.items() if name not in WORDS}
    if of_deployment:
        others["deployment"] = replace(value.deployment, **of_deployment)  # type: ignore[attr-defined]
    return replace(value, **others)  # type: ignore[type-var]


def deployed(words: dict[str, Any]) -> dict[str, Any]:
    """Converts the keyword arguments ``words`` to fields of a request.

    Those that describe the deployment are combined into the field ``deployment``.
    """
    found = {name: value for name, value in words.items() if name not in WORDS}
    return {**found, "deployment": Deployment(**{name: words[name] for name in words if name in WORDS})}
