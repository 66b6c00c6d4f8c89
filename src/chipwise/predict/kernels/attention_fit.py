"""What was fitted for attention, as it ships: constants a kernel design and fold, networks, interval half-widths.

``data/attention.json`` holds constants, half-widths and provenance; ``data/attention.npz`` the networks' weights.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chipwise.core.errors import UnknownName, Unsupported
from chipwise.hardware.datasheet import DeviceProfile
from chipwise.predict.kernels.attention_physics import Constants
from chipwise.predict.kernels.times import Situation

DATA = Path(__file__).parents[1] / "data"
SHIPPED = "all"
STACKS = ("vllm", "sglang", "trtllm")
LANES = ("fa2", "fa3", "gen", "flashinfer", "trt-hopper", "trt-blackwell", "trt", "xe", "other")
"""Kernel designs: FlashAttention 2 and 3, NVIDIA's generated kernels for data-centre Blackwell, FlashInfer, those of
TensorRT-LLM by generation, Intel's, and what is known of none of them."""


def lane(stack: str, device: DeviceProfile, cache: str) -> str:
    """The kernel design that ``stack`` runs on ``device`` where the user asks for none.

    Raises:
        UnknownName: The stack is none of ``STACKS``.
    """
    if stack not in STACKS:
        raise UnknownName("stack", stack, STACKS)
    if device.vendor != "NVIDIA":
        return "xe" if device.family == "xe" else "other"
    hopper = device.family == "hopper"
    blackwell = device.architecture in ("Blackwell", "Blackwell Ultra")
    if stack == "trtllm":
        return "trt-hopper" if hopper else "trt-blackwell" if blackwell else "trt"
    if hopper or blackwell:
        return "fa3" if hopper else "gen"
    return "flashinfer" if (stack == "sglang" and device.family != "ampere") or cache == "fp8" else "fa2"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitted:
    """What the fit learned."""

    facts: Mapping[str, Any]

    @property
    def devices(self) -> Mapping[str, str]:
        """Devices in the fit -> their families."""
        devices: Mapping[str, str] = self.facts["devices"]
        return devices

    def fold(self, fold: str | None) -> str:
        """The fold whose arrays answer: the one asked for, or what ships where it left out nothing that was seen.

        Raises:
            Unsupported: ``fold`` is neither None, ``device:NAME`` nor ``family:NAME``.
        """
        if fold is None:
            return SHIPPED
        if fold.partition(":")[0] not in ("device", "family"):
            raise Unsupported(f"no fold {fold!r}; folds are device:NAME and family:NAME, such as device:l40s")
        return fold if fold in self.facts["constants"] else SHIPPED

    def constants(self, schedule: str, lane: str, fold: str) -> Constants:
        """Constants of :func:`.attention_physics.base_s`; those of all designs where the fold saw none of this one."""
        lanes: Mapping[str, Constants] = self.facts["constants"][fold][schedule]
        return lanes.get(lane, lanes["other"])

    def situation(self, device: DeviceProfile, fold: str | None) -> Situation:
        """What ``fold`` has seen of such kernels on ``device``: themselves, those of its family, or neither."""
        kind, _, name = (fold or "").partition(":")
        out = {"device": (name, None), "family": (None, name)}.get(kind, (None, None))
        kept = {known: family for known, family in self.devices.items() if known != out[0] and family != out[1]}
        if device.name in kept:
            return "seen"
        return "sibling" if device.family in kept.values() else "unseen"

    def halfwidth(self, schedule: str, situation: Situation) -> float:
        """Half of the 90 % interval on the scale of logarithms."""
        return float(self.facts["log_halfwidth"][schedule][situation])


@functools.cache
def fitted() -> Fitted:
    """What ships."""
    return Fitted(facts=json.loads((DATA / "attention.json").read_text(encoding="utf-8")))
