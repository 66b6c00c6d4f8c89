"""A small network that corrects a physical formula. The correction is bounded, and tends to 0 far from known hardware.

Each kind of kernel has two bundled files in ``predict/data``: KIND.json (constants, half-widths of intervals, hardware
in the fit, provenance) and KIND.npz (weights of the networks, one set per fold). They contain no executable code.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from chipwise.core.arrays import Float32Array, Float64Array
from chipwise.errors import Unsupported
from chipwise.hardware.datasheet import DeviceProfile
from chipwise.predict.kernels.times import Situation

DATA = Path(__file__).parents[1] / "data"
SHIPPED = "all"  # the fold that leaves nothing out
NEAR = 0.5  # least nearness of similar devices (a family may have unlike ones: RTX PRO 6000 and B200 are Blackwell)
STACKS = ("vllm", "sglang", "trtllm")
PARTS = ("mean", "scale", "first", "second", "third", "low", "high")  # arrays of a network


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """A network with two hidden layers over standardised inputs; its output is ``bound * tanh(...)``.

    Inputs are clipped to their range in the fit, so only the physical formula extrapolates beyond it.
    """

    mean: Float32Array  # (inputs,)
    scale: Float32Array  # (inputs,)
    first: Float32Array  # (inputs + 1, hidden): weights, the last row the bias
    second: Float32Array  # (hidden + 1, hidden)
    third: Float32Array  # (hidden + 1,)
    low: Float32Array  # (inputs,) least value seen
    high: Float32Array  # (inputs,) greatest value seen
    bound: float

    def __call__(self, inputs: npt.ArrayLike) -> Float64Array:
        """Corrections within ±bound; (rows, inputs) -> (rows,)."""
        x = (np.clip(np.asarray(inputs, dtype=np.float32), self.low, self.high) - self.mean) / self.scale
        hidden = np.tanh(x @ self.first[:-1] + self.first[-1])
        hidden = np.tanh(hidden @ self.second[:-1] + self.second[-1])
        corrections: Float64Array = (self.bound * np.tanh(hidden @ self.third[:-1] + self.third[-1])).astype(np.float64)
        return corrections


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitted:
    """The fit of one kind of kernel: constants and a network for each fold, and half-widths for each situation."""

    facts: Mapping[str, Any]
    networks: Mapping[str, Network]

    @property
    def devices(self) -> Mapping[str, str]:
        """The devices in the fit, each with its family."""
        devices: Mapping[str, str] = self.facts["devices"]
        return devices

    def fold(self, device: DeviceProfile, fold: str | None) -> str:
        """Name of the fit to use: the fit that leaves out the data of ``fold``.

        If there are no such data, it is the full fit.

        Raises:
            Unsupported: ``fold`` is neither None, ``device:NAME`` nor ``family:NAME``.
        """
        if fold is None:
            return SHIPPED
        if fold.partition(":")[0] not in ("device", "family"):
            raise Unsupported(f"no fold {fold!r}; folds are device:NAME and family:NAME, such as device:{device.name}")
        return fold if fold in self.facts["constants"] else SHIPPED

    def situation(self, device: DeviceProfile, fold: str | None, here: Float64Array | None = None) -> Situation:
        """How close ``device`` is to the devices that remain in the fit without the data of ``fold``.

        ``seen`` if the device itself remains, ``sibling`` if only other devices of its family remain, else ``unseen``.
        If ``here`` is given (see :meth:`nearness`), devices of the family only count if their data sheets are similar.
        """
        known = kept(self.devices, fold)
        if device.name in known:
            return "seen"
        relatives = [name for name, family in known.items() if family == device.family]
        near = here is None or any(self._near(here, name) >= NEAR for name in relatives)
        return "sibling" if relatives and near else "unseen"

    def halfwidth(self, group: str, situation: Situation) -> float:
        """Half-width of the 90 % interval in logarithms; the value for all groups together if ``group`` has none."""
        table: Mapping[str, Mapping[str, float]] = self.facts["log_halfwidth"]
        return float(table.get(group, table["all"])[situation])

    def nearness(self, here: Float64Array, fold: str) -> float:
        """Nearness of a device to the hardware in the fold: exp(-(distance / reach)²).

        It is 1 on devices in the fold, and tends to 0 far from them. The distance is that from ``here`` (logarithms of
        the device's data-sheet figures, such as those of :func:`hardware`) to the nearest device in the fold.
        """
        return max(self._near(here, name) for name in kept(self.devices, fold))

    def _near(self, here: Float64Array, name: str) -> float:
        distance = float(np.linalg.norm(here - np.asarray(self.facts["hardware"][name])))
        return float(np.exp(-((distance / self.facts["reach"]) ** 2)))


def hardware(device: DeviceProfile) -> Float64Array:
    """Base-2 logarithms of a device's memory bandwidth, FLOPs per byte, number of units, and clock.

    If unpublished, the number of units is assumed to be one per 25 GB/s of bandwidth, and the clock 1.7 GHz.
    """
    bandwidth = device.mem_bandwidth_bytes_per_s
    units = device.units.number if device.units is not None else bandwidth / 25e9
    clock = device.clock.number if device.clock is not None else 1.7e9
    peak = device.rate("bf16", "fp16", "int8", "fp32")
    if peak is None:
        raise Unsupported(f"{device.name} lists no arithmetic rate; pass a device file of your own that has one")
    return np.log2([bandwidth / 1e12, peak / bandwidth, units, clock / 1e9])


def kept(devices: Mapping[str, str], fold: str | None) -> dict[str, str]:
    """``devices`` (name -> family) without the devices that ``fold`` leaves out."""
    kind, _, name = (fold or SHIPPED).partition(":")
    return {known: family for known, family in devices.items() if name != {"device": known, "family": family}.get(kind)}


def one_hot(name: str, names: Sequence[str]) -> list[float]:
    """One-hot encoding of ``name``; all 0 if it is not listed."""
    return [float(name == known) for known in names]


def columns(rows: Sequence[Float64Array | float], size: int) -> Float32Array:
    """Stacks the inputs of a network as columns, (size, len(rows)); an input that is one number is repeated."""
    table = np.empty((size, len(rows)), dtype=np.float32)
    for index, row in enumerate(rows):
        table[:, index] = row
    return table


@functools.cache
def load(kind: str) -> Fitted:
    """The bundled fit of ``kind``: its constants, and its networks if it has any."""
    facts = json.loads((DATA / f"{kind}.json").read_text(encoding="utf-8"))
    networks: dict[str, Network] = {}
    if "bound" in facts:
        with np.load(DATA / f"{kind}.npz", allow_pickle=False) as arrays:
            for fold in {name.rpartition("/")[0] for name in arrays.files}:
                loaded = {part: arrays[f"{fold}/{part}"].astype(np.float32) for part in PARTS}
                networks[fold] = Network(bound=float(facts["bound"]), **loaded)
    return Fitted(facts=facts, networks=networks)
