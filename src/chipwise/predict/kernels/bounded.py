"""A small network that corrects a physical formula. The correction is bounded, and tends to 0 far from known hardware.

Two files of ``predict/data`` ship for each kind of kernel: KIND.json (constants, half-widths of intervals, data
sheets seen, provenance) and KIND.npz (the networks' weights, one set per fold). Nothing in them is executed.
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
NEAR = 0.5  # least nearness of a similar device in a family (RTX PRO 6000 and B200 are both Blackwell)
STACKS = ("vllm", "sglang", "trtllm")
PARTS = ("mean", "scale", "first", "second", "third", "low", "high")  # arrays of a network


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """A network with two hidden layers over standardised inputs; its output is ``bound * tanh(...)``.

    Inputs are clipped to their range in the fit, so that only the formula extrapolates.
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
    """The fit of one kind of kernel: constants and a network per fold, half-widths per situation."""

    facts: Mapping[str, Any]
    networks: Mapping[str, Network]

    @property
    def devices(self) -> Mapping[str, str]:
        """Families of the devices in the fit."""
        devices: Mapping[str, str] = self.facts["devices"]
        return devices

    def fold(self, device: DeviceProfile, fold: str | None) -> str:
        """The fold to use: the requested one, or the full fit if the requested one leaves nothing out.

        Raises:
            Unsupported: ``fold`` is neither None, ``device:NAME`` nor ``family:NAME``.
        """
        if fold is None:
            return SHIPPED
        if fold.partition(":")[0] not in ("device", "family"):
            raise Unsupported(f"no fold {fold!r}; folds are device:NAME and family:NAME, such as device:{device.name}")
        return fold if fold in self.facts["constants"] else SHIPPED

    def situation(self, device: DeviceProfile, fold: str | None, here: Float64Array | None = None) -> Situation:
        """Whether ``fold`` was fitted to such kernels on ``device``, on its family, or on neither.

        With ``here`` (see :meth:`nearness`) a device of the family counts only if its data sheet is similar.
        """
        kept = self._kept(fold or SHIPPED)
        if device.name in kept:
            return "seen"
        relatives = [name for name in kept if self.devices[name] == device.family]
        near = here is None or any(self._near(here, name) >= NEAR for name in relatives)
        return "sibling" if relatives and near else "unseen"

    def halfwidth(self, group: str, situation: Situation) -> float:
        """Half of the 90 % interval, as a logarithm; over all groups if ``group`` has none."""
        table: Mapping[str, Mapping[str, float]] = self.facts["log_halfwidth"]
        return float(table.get(group, table["all"])[situation])

    def nearness(self, here: Float64Array, fold: str) -> float:
        """Nearness to the fold's hardware: exp(-(distance / reach)²), so 1 on its devices and 0 far from them.

        The distance is from ``here`` (logarithms of data-sheet figures, such as :func:`hardware`'s) to the nearest
        device in the fold.
        """
        return max(self._near(here, name) for name in self._kept(fold))

    def _near(self, here: Float64Array, name: str) -> float:
        distance = float(np.linalg.norm(here - np.asarray(self.facts["hardware"][name])))
        return float(np.exp(-((distance / self.facts["reach"]) ** 2)))

    def _kept(self, fold: str) -> list[str]:
        """The devices that the fold was fitted on."""
        kind, _, name = fold.partition(":")
        if kind == "device":
            return [known for known in self.devices if known != name]
        return [known for known, family in self.devices.items() if kind != "family" or family != name]


def hardware(device: DeviceProfile) -> Float64Array:
    """Base-2 logarithms of a device's memory bandwidth, FLOPs per byte, units and clock.

    Unpublished facts are replaced by stated values: one unit per 25 GB/s, 1.7 GHz.
    """
    bandwidth = device.mem_bandwidth_bytes_per_s
    units = device.units.number if device.units is not None else bandwidth / 25e9
    clock = device.clock.number if device.clock is not None else 1.7e9
    listed = [name for name in ("bf16", "fp16", "int8", "fp32") if name in device.peak_flops_per_s]
    if not listed:
        raise Unsupported(f"{device.name} lists no arithmetic rate; pass a device file of your own that has one")
    return np.log2([bandwidth / 1e12, device.peak(listed[0]) / bandwidth, units, clock / 1e9])


def one_hot(name: str, names: Sequence[str]) -> list[float]:
    """One-hot encoding of ``name``; all 0 if it is not listed."""
    return [float(name == known) for known in names]


def columns(rows: Sequence[Float64Array | float], size: int) -> Float32Array:
    """Columns of a network's inputs, (size, len(rows)); numbers are repeated."""
    table = np.empty((size, len(rows)), dtype=np.float32)
    for index, row in enumerate(rows):
        table[:, index] = row
    return table


@functools.cache
def load(kind: str) -> Fitted:
    """The bundled fit of ``kind``; its networks, where it has some, are stored beside its facts."""
    facts = json.loads((DATA / f"{kind}.json").read_text(encoding="utf-8"))
    networks: dict[str, Network] = {}
    if "bound" in facts:
        with np.load(DATA / f"{kind}.npz", allow_pickle=False) as arrays:
            for fold in {name.rpartition("/")[0] for name in arrays.files}:
                loaded = {part: arrays[f"{fold}/{part}"].astype(np.float32) for part in PARTS}
                networks[fold] = Network(bound=float(facts["bound"]), **loaded)
    return Fitted(facts=facts, networks=networks)
