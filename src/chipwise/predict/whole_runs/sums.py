"""The form of the laws for whole runs: a time is a sum of amounts of work over fitted rates.

    t = Σ over sums s of (Σ over the amounts a in s of (a · e^(Σ terms))^p)^(1/p)

An amount is computed from a data sheet and a model: bytes / bandwidth, FLOPs / peak, or a number of kernels or steps.
Its terms are logarithms with names, and their fitted values are bundled as data: one term is common to all runs, and
others are deviations by stack, device and vendor. Amounts within one sum overlap (a smooth maximum); the sums are
added. A term without runs is 0, so a chip without runs has only the common terms and those of its vendor.
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
"""Names of terms, each with the factor by which the term is multiplied."""


@dataclass(frozen=True, slots=True)
class Amount:
    """One amount of work of a run: its value, the number of the sum to which it belongs, and the terms of its rate."""

    value: Size  # seconds at the sheet's rates, or a count; a number, or an array with one value per run
    sum: int
    terms: Terms


Law = Sequence[Amount]
"""The amounts of work of one run."""


def named(kind: str, levels: Iterable[str]) -> Terms:
    """Names of an amount's terms: ``kind`` for the common term, and ``kind|level`` for the deviation of each level."""
    return ((kind, 1.0), *((f"{kind}|{level}", 1.0) for level in levels))


def value_of(law: Law, constants: Mapping[str, float]) -> Size:
    """The prediction of a law with ``constants``, as a number or an array in the unit of the law's amounts."""
    sums: dict[int, Size] = {}
    for amount in law:
        rate = sum(constants.get(name, 0.0) * times for name, times in amount.terms)
        sums[amount.sum] = sums.get(amount.sum, 0.0) + (amount.value * math.exp(rate)) ** SHARPNESS
    return sum(powered ** (1 / SHARPNESS) for powered in sums.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Constants:
    """Fitted terms of each fold, half-widths of 90 % intervals as logarithms, and what the runs in the fit cover.

    A fold is named after the data that its fit leaves out, such as ``device:h100-sxm``; it stores the terms that differ
    from those of the full fit, which is named ``none``. A place is a device with its runtime. The keys of
    ``halfwidths`` are ``SITUATION|PLACE``, with ``*`` for all places together. ``runs`` lists the runs in
    the fit as ``PLACE|MODEL``.
    """

    folds: Mapping[str, Mapping[str, float]]
    halfwidths: Mapping[str, float]
    runs: frozenset[str]
    places: frozenset[str]
    devices: frozenset[str]
    vendors: frozenset[str]
    splits: Mapping[str, int]  # by kind of fold: parts into which its names are split; if missing, a part is one name
    source: str

    def terms(self, fold: str | None = None) -> Mapping[str, float]:
        """The terms of the fit without the data of ``fold``, or those of the full fit if there is no such data."""
        own = self.folds.get(fold or "none", {})
        return {**self.folds["none"], **own}

    def situation(self, *, device: str, vendor: str, place: str, model: str, leave_out: str = "none") -> str:
        """How close the runs in the fit are to a run.

        ``known``: the model was run on the device. ``seen``: other models were run on the device. ``sibling``: only
        other devices of the vendor are in the fit. ``unseen``: none of these.
        """
        if leave_out in ("none", "model") and device in self.devices:
            return "known" if leave_out == "none" and f"{place}|{model}" in self.runs else "seen"
        return "sibling" if leave_out in ("none", "model", "device") and vendor in self.vendors else "unseen"

    def halfwidth(self, situation: str, place: str) -> float:
        """Half-width of the 90 % interval in logarithms."""
        found = self.halfwidths.get(f"{situation}|{place}")
        return self.halfwidths[f"{situation}|*"] if found is None else found


def load(path: Path) -> Constants:
    """Loads the constants from a bundled file, which may be compressed by gzip."""
    return build(Constants, json.loads(read_text(path)), file=str(path))
