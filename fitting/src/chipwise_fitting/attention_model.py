"""Fits constants and networks of attention's kernels to measured calls, and judges them on left-out calls.

Constants are pooled over the devices of a kernel design. Networks correct the remaining errors: for each stack one
network that knows the devices, and for each fold one that only knows kernel designs. A fold's half-widths come only
from devices that this fold keeps. The errors on each of these devices come from the folds that leave that device out.
"""

from __future__ import annotations

import io
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from chipwise.core.arrays import Float32Array, Float64Array
from chipwise.core.files import write_atomic, write_json
from chipwise.hardware import datasheet
from chipwise.predict.kernels import attention_physics as physics
from chipwise.predict.kernels.attention import SCHEDULES
from chipwise.predict.kernels.attention_features import SHAPE
from chipwise.predict.kernels.attention_fit import USUAL_HEAD, Fitted, Kinship, one_hot
from chipwise.predict.kernels.bounded import SHIPPED, STACKS, kept
from chipwise.predict.kernels.perceptron import Perceptron
from chipwise_fitting import perceptron
from chipwise_fitting.bounded_training import provenance
from chipwise_fitting.report import Progress, Report, conformal, errors

BOUND = 1.5  # largest logarithm of a correction: a factor of 4.5 either way
CONSTANT_ROWS = 1_500  # rows of a device and design to which constants are fitted
LEFT_CONFIGURATIONS = 0.12  # share of head configurations that are left out to judge devices in the fit
TRUST = {"seen": 1.0, "sibling": 1.0, "design": 1.0, "unseen": 0.5}
"""Share of the network's correction that is applied, by how closely the devices in the fold's fit are related to the
predicted device."""
LIMITS = {
    # constant: (least, first guess, greatest)
    "launch": (2e3, 1.6e4, 1e5),
    "start": (2e1, 2e3, 4e4),
    "step": (2e-2, 4e1, 2e3),
    "walk": (0.3, 0.7, 1.0),
    "tail": (0.01, 0.5, 1.5),
    "compute": (0.1, 0.6, 1.0),
    "dram": (0.4, 0.8, 1.0),
    "cache": (0.02, 0.4, 1.5),
    "full": (0.2, 0.9, 2.0),
    "edge": (1.5, 6.0, 20.0),
    "sharpness": (1.0, 3.0, 8.0),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """The settings that differ between the kinds of attention."""

    kind: str
    tables: str  # where the rows come from, for the provenance
    lanes: tuple[str, ...]
    stacks: tuple[str, ...]
    judge: str  # the stack whose errors give the half-widths
    fold_rows: dict[str, int]  # stack -> most rows of a cell for a fold's network
    wide: tuple[int, ...] = (96, 96, 96)  # hidden layers of the networks that know devices
    narrow: tuple[int, ...] = (64, 64)  # hidden layers of the folds' networks
    wide_epochs: int = 40
    narrow_epochs: int = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """Calls of one device, stack, pair of formats and schedule, with their measured seconds."""

    device: datasheet.DeviceProfile
    stack: str
    lane: str
    schedule: str
    plain: bool  # 16-bit, no window
    parts: physics.Parts
    inputs: Float32Array  # (rows, SHAPE)
    measured_s: Float64Array
    configuration: npt.NDArray[np.int64]  # a number that identifies (heads, kv_heads, head_size)

    def take(self, rows: Any) -> Cell:
        """Returns the cell with only these rows."""
        parts = {name: getattr(self.parts, name)[rows] for name in physics.Parts.__slots__}
        return Cell(
            device=self.device, stack=self.stack, lane=self.lane, schedule=self.schedule, plain=self.plain,
            parts=physics.Parts(**parts), inputs=self.inputs[rows], measured_s=self.measured_s[rows],
            configuration=self.configuration[rows],
        )  # fmt: skip

    def sample(self, most: int, random: np.random.Generator) -> Cell:
        """Returns the cell with at most ``most`` of its rows, drawn at random."""
        return self if len(self.measured_s) <= most else self.take(random.permutation(len(self.measured_s))[:most])


def fit_cells(recipe: Recipe, cells: list[Cell], out: Path, *, progress: Progress, seed: int) -> Report:
    """Fits ``cells`` and writes KIND.json and KIND.npz into ``out``."""
    random = np.random.default_rng(seed)
    devices = {cell.device.name: cell.device.family for cell in cells}
    rows = sum(len(cell.measured_s) for cell in cells)
    progress(f"{recipe.kind}: {rows} rows of {len(devices)} devices")
    facts: dict[str, Any] = {
        "provenance": provenance() | {"tables": recipe.tables},
        "devices": devices,
        "seen": {stack: sorted({c.device.name for c in cells if c.stack == stack}) for stack in recipe.stacks},
        "lanes": {name: sorted({c.device.name for c in cells if c.lane == name}) for name in recipe.lanes},
        "bound": BOUND,
        "trust": TRUST,
        "inputs": list(SHAPE),
        "folds": _folds(devices),
    }
    folds = sorted(set(facts["folds"].values()))
    facts["constants"] = _constants(cells, recipe, devices, folds, random=random)
    progress(f"{recipe.kind}: constants fitted")
    networks: dict[str, Perceptron] = {}
    model = Fitted(facts=facts, networks=networks)
    for fold in folds:
        for schedule in SCHEDULES:
            chosen = [c for c in cells if c.schedule == schedule and c.device.name in kept(devices, fold)]
            networks[f"{fold}/{schedule}"] = _narrow(chosen, model, recipe, fold, random=random, seed=seed)
        progress(f"{recipe.kind}: {fold} fitted")
    left_out = _left_out(cells, model, recipe)
    report = {f"{schedule} {name}, {kinship}": m.errors() for (schedule, name, kinship), m in left_out.items()}
    widths = _halfwidths(left_out, devices, folds)
    for stack in recipe.stacks:
        for schedule in SCHEDULES:
            chosen = [c for c in cells if c.schedule == schedule and c.stack == stack]
            seen = _seen(chosen, model, recipe, stack, random=random, seed=seed)
            report[f"{schedule} {stack}, seen, new head configurations"] = seen.errors()
            if stack == recipe.judge:
                for fold in folds:
                    widths[schedule][fold]["seen"] = {g: round(seen.halfwidth(g), 4) for g in ("usual", "wide")}
            network = _wide(chosen, model, recipe, stack, epochs=recipe.wide_epochs, seed=seed)
            networks[f"seen/{stack}/{schedule}"] = network
            progress(f"{recipe.kind}: {stack} {schedule} fitted")
    facts["log_halfwidth"] = widths
    facts["errors"] = {name: {key: round(value, 2) for key, value in found.items()} for name, found in report.items()}
    write_json(out / f"{recipe.kind}.json", facts)
    buffer = io.BytesIO()
    arrays: dict[str, Any] = {key: a for name, net in networks.items() for key, a in net.arrays(name).items()}
    np.savez_compressed(buffer, **arrays)
    write_atomic(out / f"{recipe.kind}.npz", buffer.getvalue())
    return Report(kind=recipe.kind, rows=rows, errors=report)


def _folds(devices: dict[str, str]) -> dict[str, str]:
    """Maps every fold to the first fold that leaves out the same devices."""
    named = [
        SHIPPED,
        *(f"device:{name}" for name in devices),
        *(f"family:{name}" for name in sorted({*devices.values()})),
    ]
    first: dict[frozenset[str], str] = {}
    return {fold: first.setdefault(frozenset(kept(devices, fold)), fold) for fold in named}


# --- constants -------------------------------------------------------------------------------------------------------


def _constants(
    cells: list[Cell], recipe: Recipe, devices: dict[str, str], folds: list[str], *, random: np.random.Generator
) -> dict[str, Any]:
    """Maps fold -> schedule -> kernel design -> constants; folds that keep the same devices of a design share them."""
    found: dict[str, Any] = {}
    known: dict[tuple[str, str, frozenset[str]], dict[str, float]] = {}
    for fold in folds:
        found[fold] = {}
        for schedule in SCHEDULES:
            found[fold][schedule] = {}
            for name in recipe.lanes:
                chosen = [
                    c
                    for c in cells
                    if c.schedule == schedule
                    and c.device.name in kept(devices, fold)
                    and (c.lane == name or (name == "other" and c.lane != "xe" and c.plain))
                ]
                key = (schedule, name, frozenset(c.device.name for c in chosen))
                if chosen and key not in known:
                    most = CONSTANT_ROWS // (3 if name == "other" else 1)
                    known[key] = least([c.sample(most if c.plain else most // 4, random) for c in chosen])
                if chosen:
                    found[fold][schedule][name] = known[key]
    return found


def least(cells: list[Cell]) -> dict[str, float]:
    """Fits constants of :func:`.attention_physics.base_s` that minimise |log(measured / physics)|, robustly."""
    from scipy.optimize import least_squares

    parts = joined([c.parts for c in cells])
    measured = np.log(np.concatenate([c.measured_s for c in cells]))
    low, first, high = (np.log([limits[i] for limits in LIMITS.values()]) for i in range(3))

    def missed(logs: Float64Array) -> Float64Array:
        predicted = physics.base_s(parts, dict(zip(LIMITS, np.exp(logs), strict=True)))
        return np.asarray(np.log(predicted) - measured)

    solved = least_squares(missed, first, bounds=(low, high), loss="soft_l1", f_scale=0.1, max_nfev=40)
    return {name: float(f"{value:.4g}") for name, value in zip(LIMITS, np.exp(solved.x), strict=True)}


def joined(parts: Iterable[physics.Parts]) -> physics.Parts:
    """Concatenates several arrays."""
    several = list(parts)
    return physics.Parts(
        **{name: np.concatenate([getattr(part, name) for part in several]) for name in physics.Parts.__slots__}
    )


# --- networks --------------------------------------------------------------------------------------------------------


def _left(cell: Cell, model: Fitted, fold: str) -> Float64Array:
    """Returns log(measured / physics), which the network corrects."""
    base = physics.base_s(cell.parts, model.constants(cell.schedule, cell.lane, fold))
    left: Float64Array = np.log(cell.measured_s / base)
    return left


def _stacked(cells: list[Cell], marks: list[Float32Array]) -> Float32Array:
    rows = [
        np.hstack([c.inputs, np.broadcast_to(mark, (len(c.inputs), len(mark)))])
        for c, mark in zip(cells, marks, strict=True)
    ]
    return np.concatenate(rows)


def _narrow(
    cells: list[Cell], model: Fitted, recipe: Recipe, fold: str, *, random: np.random.Generator, seed: int
) -> Perceptron:
    cells = [c.sample(recipe.fold_rows[c.stack] if c.plain else recipe.fold_rows[c.stack] // 4, random) for c in cells]
    marks = [np.concatenate([one_hot(c.lane, recipe.lanes), one_hot(c.stack, STACKS)]) for c in cells]
    return perceptron.train(
        _stacked(cells, marks),
        np.concatenate([_left(c, model, fold) for c in cells]),
        np.concatenate([np.full(len(c.measured_s), 1.0 if c.lane != "xe" else 0.2) for c in cells]),
        identity=slice(len(SHAPE), None),
        hidden=recipe.narrow,
        epochs=recipe.narrow_epochs,
        bound=BOUND,
        seed=seed,
        forget=0.05,
    )


def _wide(cells: list[Cell], model: Fitted, recipe: Recipe, stack: str, *, epochs: int, seed: int) -> Perceptron:
    return perceptron.train(
        _stacked(cells, [one_hot(c.device.name, model.facts["seen"][stack]) for c in cells]),
        np.concatenate([_left(c, model, SHIPPED) for c in cells]),
        np.concatenate([np.full(len(c.measured_s), 1.0 if c.plain else 0.5) for c in cells]),
        identity=slice(len(SHAPE), None),
        hidden=recipe.wide,
        epochs=epochs,
        bound=BOUND,
        seed=seed,
    )


# --- judging ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Misses:
    """Measured and predicted seconds of calls, each predicted by a fit that left the call out."""

    measured_s: Float64Array
    predicted_s: Float64Array
    usual: npt.NDArray[np.bool_]  # heads of at most USUAL_HEAD

    def errors(self) -> dict[str, float]:
        """Returns mean, median and 90th percentile of the errors, in percent."""
        return errors(self.measured_s, self.predicted_s)

    def halfwidth(self, group: str) -> float:
        """Conformal half-width for ``usual`` or ``wide`` heads; for the other group of heads if this group is empty."""
        rows = self.usual == (group == "usual")
        if not rows.any():
            rows = ~rows
        return conformal(self.measured_s[rows], self.predicted_s[rows])


def _misses(cells: list[Cell], model: Fitted, fold: str, corrections: list[Float64Array]) -> Misses:
    measured = [c.measured_s for c in cells]
    predicted = [
        c.measured_s * np.exp(found - _left(c, model, fold)) for c, found in zip(cells, corrections, strict=True)
    ]
    head = SHAPE.index("head size")
    usual = [c.inputs[:, head] <= np.log2(USUAL_HEAD) for c in cells]
    return Misses(
        measured_s=np.concatenate(measured), predicted_s=np.concatenate(predicted), usual=np.concatenate(usual)
    )


def _seen(
    cells: list[Cell], model: Fitted, recipe: Recipe, stack: str, *, random: np.random.Generator, seed: int
) -> Misses:
    """Predicts left-out head configurations of known devices by a network that was trained without them."""
    every = np.unique(np.concatenate([c.configuration for c in cells]))
    out = random.permutation(every)[: max(1, int(LEFT_CONFIGURATIONS * len(every)))]
    known = [c.take(~np.isin(c.configuration, out)) for c in cells]
    network = _wide(known, model, recipe, stack, epochs=recipe.wide_epochs // 2, seed=seed)
    new = [c.take(np.isin(c.configuration, out)) for c in cells if c.plain]
    names = model.facts["seen"][stack]
    return _misses(new, model, SHIPPED, [network(_stacked([c], [one_hot(c.device.name, names)])) for c in new])


def _left_out(cells: list[Cell], model: Fitted, recipe: Recipe) -> dict[tuple[str, str, Kinship], Misses]:
    """Maps (schedule, device, kinship) to errors on the device, in folds without the device or its whole family."""
    found: dict[tuple[str, str, Kinship], Misses] = {}
    for name, family in model.facts["devices"].items():
        for schedule in SCHEDULES:
            mine = [
                c
                for c in cells
                if c.device.name == name and c.schedule == schedule and c.plain and c.stack == recipe.judge
            ]
            for fold in (f"device:{name}", f"family:{family}") if mine else ():
                one, used = mine[0], model.fold(fold)
                kinship = model.kinship(one.device, one.stack, one.lane, fold)
                if (schedule, name, kinship) not in found:
                    corrections = [
                        model.correction(
                            c.inputs,
                            c.device,
                            schedule=schedule,
                            stack=c.stack,
                            lane=c.lane,
                            fold=used,
                            kinship=kinship,
                        )
                        for c in mine
                    ]
                    found[schedule, name, kinship] = _misses(mine, model, used, corrections)
    return found


def _halfwidths(misses: dict[tuple[str, str, Kinship], Misses], devices: dict[str, str], folds: list[str]) -> Any:
    """schedule -> fold -> kinship -> group of head sizes -> half-width.

    A half-width is the median over those devices that the fold keeps and that have this kinship. With fewer than three
    such devices, the median is widened by sqrt(1 + 1/devices), like the prediction interval of a mean. For unseen
    designs the mean is used instead, so that the worst device counts. If no device has this kinship, the widest
    half-width of any device is used.
    """
    widths: dict[str, Any] = {}
    for schedule in SCHEDULES:
        widths[schedule] = {}
        for fold in folds:
            others = {key: m for key, m in misses.items() if key[0] == schedule and key[1] in kept(devices, fold)}
            widths[schedule][fold] = {}
            for kinship in ("sibling", "design", "unseen"):
                widths[schedule][fold][kinship] = {}
                for group in ("usual", "wide"):
                    alike = [m.halfwidth(group) for key, m in others.items() if key[2] == kinship]
                    widest = max(m.halfwidth(group) for m in others.values())
                    widths[schedule][fold][kinship][group] = round(_middle(alike, kinship) if alike else widest, 4)
    return widths


def _middle(halfwidths: list[float], kinship: Kinship) -> float:
    if kinship == "unseen":
        return float(np.mean(halfwidths))
    few = len(halfwidths) < 3
    return float(np.median(halfwidths)) * (float(np.sqrt(1 + 1 / len(halfwidths))) if few else 1.0)
