"""The bundled fit of attention: constants of each kernel design, networks, and half-widths of intervals.

``data/attention.json`` holds constants, half-widths and provenance. ``data/attention.npz`` holds the weights of the
networks. One network per stack predicts the devices in the fit. One network per fold predicts other devices: its inputs
include the kernel design but not the device. ``data/latent.*`` hold the same for latent attention.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from chipwise.core.arrays import Float32Array, Float64Array
from chipwise.errors import UnknownName, Unsupported
from chipwise.hardware.datasheet import DeviceProfile
from chipwise.predict.kernels.attention_physics import Constants
from chipwise.predict.kernels.bounded import DATA, SHIPPED, STACKS, kept
from chipwise.predict.kernels.perceptron import Perceptron
from chipwise.predict.kernels.times import Situation

LANES = ("fa2", "fa3", "gen", "flashinfer", "trt-hopper", "trt-blackwell", "trt", "xe", "other")
"""Kernel designs, called lanes: FlashAttention 2 and 3, NVIDIA's generated kernels for data-centre Blackwell,
FlashInfer, TensorRT-LLM's kernels by GPU generation, Intel's kernels, and ``other`` for all further devices."""
USUAL_HEAD = 128  # wider heads were measured less and have separate half-widths
Kinship = Literal["seen", "sibling", "design", "unseen"]
"""How close a device is to the devices in the fit, which selects the half-width. ``seen``: the fit has the device
itself. ``sibling``: it has a device of the same family and kernel design. ``design``: it has this kernel design only on
devices of other families. ``unseen``: it has no device with this kernel design."""


def lane(stack: str, device: DeviceProfile, cache: str) -> str:
    """Kernel design that ``stack`` runs on ``device`` by default.

    Raises:
        UnknownName: The stack is not one of ``STACKS``.
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


def one_hot(name: str, names: Sequence[str]) -> Float32Array:
    """A vector with 1 at the position of ``name`` in ``names``, and 0 elsewhere."""
    return np.asarray([float(name == known) for known in names], dtype=np.float32)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitted:
    """The bundled fit of one kind of attention: the contents of the JSON file, and the networks."""

    facts: Mapping[str, Any]
    networks: Mapping[str, Perceptron]

    def fold(self, fold: str | None) -> str:
        """Name of the fit to use: the fit that leaves out the data of ``fold``.

        If there are no such data, it is the full fit.

        Raises:
            Unsupported: ``fold`` is neither None, ``device:NAME`` nor ``family:NAME``.
        """
        if fold is None:
            return SHIPPED
        if fold.partition(":")[0] not in ("device", "family"):
            raise Unsupported(f"no fold {fold!r}; folds are device:NAME and family:NAME, such as device:l40s")
        return str(self.facts["folds"].get(fold, SHIPPED))

    def constants(self, schedule: str, lane: str, fold: str) -> Constants:
        """Constants for :func:`.attention_physics.base_s`.

        The constants of the kernel design ``lane`` if the fold has data for it, else those of all designs together.
        """
        lanes: Mapping[str, Constants] = self.facts["constants"][fold][schedule]
        return lanes.get(lane, lanes["other"])

    def situation(self, device: DeviceProfile, fold: str | None) -> Situation:
        """How close ``device`` is to the devices that remain in the fit without the data of ``fold``.

        ``seen`` if the device itself remains, ``sibling`` if only other devices of its family remain, else ``unseen``.
        """
        remaining = kept(self.facts["devices"], fold)
        if device.name in remaining:
            return "seen"
        return "sibling" if device.family in remaining.values() else "unseen"

    def kinship(self, device: DeviceProfile, stack: str, lane: str, fold: str | None) -> Kinship:
        """How close ``device`` is to the devices that ``fold`` was fitted to, for kernels of the design ``lane``."""
        remaining = kept(self.facts["devices"], fold)
        if fold is None and device.name in self.facts["seen"].get(stack, ()):
            return "seen"
        alike = [remaining[name] for name in self.facts["lanes"].get(lane, ()) if name in remaining]
        return "sibling" if device.family in alike else "design" if alike else "unseen"

    def halfwidth(self, schedule: str, kinship: Kinship, fold: str, head_size: Float64Array) -> Float64Array:
        """Half-width of the 90 % interval in logarithms, for each head size."""
        widths: Mapping[str, float] = self.facts["log_halfwidth"][schedule][fold][kinship]
        return np.where(head_size <= USUAL_HEAD, widths["usual"], widths["wide"])

    def correction(
        self,
        inputs: Float32Array,
        device: DeviceProfile,
        *,
        schedule: str,
        stack: str,
        lane: str,
        fold: str,
        kinship: Kinship,
    ) -> Float64Array:
        """Predicts the logarithm of measured time over the physical formula's time; (rows, SHAPE) -> (rows,).

        A device in the bundled fit uses a network that knows the device. Other devices use the network of the fold. Its
        correction is multiplied by a factor of at most 1, which is smaller for devices unlike those in the fit.
        """
        if kinship == "seen" and fold == SHIPPED:
            marks = one_hot(device.name, self.facts["seen"][stack])
            return self.networks[f"seen/{stack}/{schedule}"](_beside(inputs, marks))
        marks = np.concatenate([one_hot(lane, list(self.facts["lanes"])), one_hot(stack, STACKS)])
        share = float(self.facts["trust"][kinship])
        return share * self.networks[f"{fold}/{schedule}"](_beside(inputs, marks))


def _beside(inputs: Float32Array, marks: Float32Array) -> Float32Array:
    return np.hstack([inputs, np.broadcast_to(marks, (len(inputs), len(marks)))])


@functools.cache
def fitted(kind: str) -> Fitted:
    """Loads the bundled fit of a kind: ``attention``, or ``latent`` for latent attention."""
    facts = json.loads((DATA / f"{kind}.json").read_text(encoding="utf-8"))
    with np.load(DATA / f"{kind}.npz", allow_pickle=False) as file:
        arrays = {name: file[name] for name in file.files}
    names = {name.rpartition("/")[0] for name in arrays}
    return Fitted(facts=facts, networks={name: Perceptron.of(arrays, name, bound=facts["bound"]) for name in names})
