"""Times as sums of amounts of work over fitted rates: the form of the laws for whole runs.

    t = Σ over sums s of (Σ over the amounts a in s of (a · e^(Σ terms))^p)^(1/p)

An amount is computed from a data sheet and a model: bytes / bandwidth, FLOPs / peak, or a number of kernels or steps.
Its terms are named logarithms that are bundled as data: one common to all runs, and deviations by stack, device and
vendor. Amounts within one sum overlap (a smooth maximum); the sums are added. A term without runs is 0, so an
unmeasured chip has only its vendor's terms and the common ones.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from chipwise.core.dtypes import Size
from chipwise.core.fields import build
from chipwise.core.files import read_text

SHARPNESS = 3.0  # sharpness of the smooth maximum
Terms = tuple[tuple[str, float], ...]
"""Names of terms, with their factors."""


@dataclass(frozen=True, slots=True)
class Amount:
    """One summand of a run: its value, the sum that it belongs to, and the terms of its rate."""

    value: Size  # seconds at the sheet's rates, or a count; a number, or an array with one value per run
    sum: int
    terms: Terms


Law = Sequence[Amount]
"""The summands of one run."""


def named(kind: str, levels: Iterable[str]) -> Terms:
    """The terms ``kind``, ``kind|level`` … of an amount: the common term, then the deviation of each level."""
    return ((kind, 1.0), *((f"{kind}|{level}", 1.0) for level in levels))


def value_of(law: Law, constants: Mapping[str, float]) -> Size:
    """The law's prediction with ``constants``, in the unit of its amounts: a number, or an array."""
    sums: dict[int, Size] = {}
    for amount in law:
        rate = sum(constants.get(name, 0.0) * times for name, times in amount.terms)
        sums[amount.sum] = sums.get(amount.sum, 0.0) + (amount.value * math.exp(rate)) ** SHARPNESS
    return sum(powered ** (1 / SHARPNESS) for powered in sums.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Constants:
    """Fitted terms by fold, half-widths of 90 % intervals as logarithms, and the fitted situations.

    A fold is named after what the fit left out, such as ``device:h100-sxm``; it stores the terms that differ from the
    full fit's, ``none``. A place is a device with its runtime, for which intervals are estimated. ``halfwidths`` is
    keyed ``SITUATION|PLACE``, with ``*`` for all places together. ``runs`` are ``PLACE|MODEL``.
    """

    folds: Mapping[str, Mapping[str, float]]
    halfwidths: Mapping[str, float]
    runs: frozenset[str]
    places: frozenset[str]
    devices: frozenset[str]
    vendors: frozenset[str]
    splits: Mapping[str, int]  # number of cross-validation parts by kind of fold; one item at a time if missing
    source: str

    def terms(self, fold: str | None = None) -> Mapping[str, float]:
        """The terms of the fit without ``fold``; of the full fit if it had no data of ``fold``."""
        own = self.folds.get(fold or "none", {})
        return {**self.folds["none"], **own}

    def situation(self, *, device: str, vendor: str, place: str, model: str, leave_out: str = "none") -> str:
        """The closest data in the fit: model and device (known), device (seen), vendor (sibling) or none (unseen)."""
        if leave_out in ("none", "model") and device in self.devices:
            return "known" if leave_out == "none" and f"{place}|{model}" in self.runs else "seen"
        return "sibling" if leave_out in ("none", "model", "device") and vendor in self.vendors else "unseen"

    def halfwidth(self, situation: str, place: str) -> float:
        """Half of the 90 % interval, as a logarithm."""
        found = self.halfwidths.get(f"{situation}|{place}")
        return self.halfwidths[f"{situation}|*"] if found is None else found


def load(path: Path) -> Constants:
    """The constants in a bundled file, compressed by gzip or not."""
    return build(Constants, json.loads(read_text(path)), file=str(path))
