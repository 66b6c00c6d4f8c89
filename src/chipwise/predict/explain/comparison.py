"""Compares models on several chips: each model's cost, the winner per chip and metric, and the reason for the win."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from chipwise.core import units
from chipwise.core.results import Result
from chipwise.errors import ChipwiseError, InputError
from chipwise.hardware import datasheet
from chipwise.predict.cost.model import Bound, CostEstimate, OpCost
from chipwise.predict.served.deployment import deployed
from chipwise.predict.served.estimate import estimate, estimate_of, fitting_requests, waiting, with_defaults
from chipwise.predict.served.groups import cost_groups, grouped
from chipwise.predict.served.request import Request, listening, taken_for
from chipwise.predict.served.shortage import shortages

ALIKE = 0.95  # work below this share of the other's counts as a reason


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One model on one chip: its estimate, or the reason why there is none."""

    model: str
    device: str
    estimate: CostEstimate | None
    problem: str = ""
    note: str = ""  # how a name was read, and how many requests fit at once
    generates: bool = True  # False for encoders, whose single pass is their TTFT


@dataclass(frozen=True, slots=True, kw_only=True)
class Winner:
    """The best model on a chip by one metric, with its lead and the reason."""

    device: str
    metric: str
    model: str
    times_better: float | None  # factor over the next best; None if no other has an answer
    sure: bool  # whether the intervals of the two do not overlap
    why: str


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Comparison(Result):
    """All cells, by device, and the winners."""

    models: tuple[str, ...]
    devices: tuple[str, ...]
    cells: tuple[Cell, ...]
    winners: tuple[Winner, ...]

    def headline(self) -> str:
        """Names of the models, and the number of devices."""
        return f"{', '.join(self.models)} on {len(self.devices)} device{'s' if len(self.devices) != 1 else ''}"

    def rows(self) -> list[dict[str, object]]:
        """One row per model and device, with every metric that has a value."""
        found = []
        for cell in self.cells:
            metrics = {} if cell.estimate is None else cell.estimate.metrics
            values: dict[str, object] = {name: item.value for name, item in metrics.items()}
            found.append({"model": cell.model, "device": cell.device} | values | {"problem": cell.problem})
        return found

    def at(self, model: str, device: str) -> Cell:
        """The cell of a model and a device."""
        return next(cell for cell in self.cells if (cell.model, cell.device) == (model, device))


def compare(
    requests: Sequence[Request], names: Sequence[tuple[str, str]], *, others: Sequence[Cell] = ()
) -> Comparison:
    """Compares ``requests`` with ``names`` (model, device), priced in one call.

    If only some of the concurrent requests fit in memory, the estimate is for as many as fit, and the cell says so.

    Args:
        requests: Requests on devices with data sheets.
        names: Name of each request.
        others: Further cells, for other devices.

    Raises:
        InputError: Every request is wrong.
    """
    cells: list[Cell | None] = [None] * len(requests)
    groups, errors = grouped(requests)
    wrong = [error for error in errors.values() if isinstance(error, InputError)]
    if wrong and len(wrong) == len(requests):  # nothing to compare, for example because the runtime is unknown
        raise wrong[0]
    for row, error in errors.items():
        cells[row] = Cell(model=names[row][0], device=names[row][1], estimate=None, problem=str(error))
    for group, cost in zip(groups, cost_groups(groups), strict=True):
        for i, row in enumerate(group.rows):
            model, device = names[row]
            notes = taken_for(requests[row].model, requests[row].device)
            if isinstance(cost, ChipwiseError):
                cells[row] = Cell(model=model, device=device, estimate=None, problem=str(cost))
            elif (fitting := int(fitting_requests(group, cost.memory)[i])) == 0:
                short = shortages([requests[row]])[0]
                problem = short.message if short is not None else ""
                cells[row] = Cell(model=model, device=device, estimate=None, problem=problem)
            elif fitting < group.in_flight[i]:
                cells[row] = Cell(
                    model=model,
                    device=device,
                    estimate=estimate(requests[row]),
                    generates=group.setting.arch.causal,
                    note="; ".join([*notes, waiting(fitting, int(group.in_flight[i]))]),
                )
            else:
                cells[row] = Cell(
                    model=model,
                    device=device,
                    estimate=with_defaults(estimate_of(cost, i), requests[row]),
                    generates=group.setting.arch.causal,
                    note="; ".join(notes),
                )
    known = (*(cell for cell in cells if cell is not None), *others)
    models = tuple(dict.fromkeys(cell.model for cell in known))
    devices = tuple(dict.fromkeys(cell.device for cell in known))
    winners = [
        winner
        for device in devices
        for metric in ("ttft_p50", "tpot_p50")
        if (winner := _winner(known, device, metric))
    ]
    return Comparison(models=models, devices=devices, cells=known, winners=tuple(winners))


def _winner(cells: Sequence[Cell], device: str, metric: str) -> Winner | None:
    ranked = sorted(
        (
            (cell.estimate.metrics[metric], cell, cell.estimate)
            for cell in cells
            if cell.device == device and cell.estimate and (cell.generates or metric == "ttft_p50")
        ),
        key=lambda each: each[0].value,
    )
    if not ranked:
        return None
    best, cell, estimate = ranked[0]
    if len(ranked) == 1:
        why = "the only one with an answer"
        return Winner(device=device, metric=metric, model=cell.model, times_better=None, sure=False, why=why)
    second, _, other = ranked[1]
    times = second.value / best.value
    return Winner(
        device=device,
        metric=metric,
        model=cell.model,
        times_better=times,
        sure=times > 1 and best.high is not None and second.low is not None and best.high < second.low,
        why=_why(estimate, other, "prefill" if metric == "ttft_p50" else "decode"),
    )


def _why(best: CostEstimate, other: CostEstimate, phase: str) -> str:
    """The main reason for the difference: how much less of the limiting work the winner does in a pass."""
    spent = [_by_bound(cost, phase) for cost in (best, other)]
    difference = {bound: spent[1].get(bound, 0.0) - spent[0].get(bound, 0.0) for bound in spent[0] | spent[1]}
    bound = max(difference, key=lambda name: difference[name])
    ours, theirs = (_amount(cost, phase, bound) for cost in (best, other))
    if theirs and 0 < ours <= ALIKE * theirs:
        done = {
            Bound.MEMORY: "moves {share} of the bytes",
            Bound.COMPUTE: "does {share} of the FLOPs",
            Bound.LAUNCH: "runs {share} of the kernels",
            Bound.LINK: "sends {share} of the bytes between devices",
        }[bound]
        return f"it {done.format(share=units.show(ours / theirs, 'share', digits=2))}"
    return f"its {bound.value}-bound kernels take less time for similar work"


def _by_bound(cost: CostEstimate, phase: str) -> dict[Bound, float]:
    found: dict[Bound, float] = {}
    for each in _pass(cost, phase):
        found[each.bound] = found.get(each.bound, 0.0) + each.latency_s
    return found


def _pass(cost: CostEstimate, phase: str) -> Sequence[OpCost]:
    return cost.prefill if phase == "prefill" else cost.decode


def _amount(cost: CostEstimate, phase: str, bound: Bound) -> float:
    """Total work of a pass that ``bound`` limits: FLOPs, kernels, or bytes."""
    kernels = [each for each in _pass(cost, phase) if bound is not Bound.LINK or each.bound is Bound.LINK]
    if bound is Bound.COMPUTE:
        return float(sum(each.work.flops * each.count for each in kernels))
    if bound is Bound.LAUNCH:
        return float(sum(each.count for each in kernels))
    return float(sum(each.work.bytes * each.count for each in kernels))


def requests_of(
    models: Sequence[str], devices: Sequence[str], *, audio_s: float | None = None, **asked: object
) -> tuple[list[Request], list[tuple[str, str]]]:
    """Requests for every model on every device, without duplicates, and their names.

    Raises:
        UnknownName: A device is unknown.
        SpecError: Seconds of sound are given, but a model does not take audio.
    """
    sheets = {datasheet.load(device).label: device for device in devices}
    names = [(model, device) for device in sheets for model in dict.fromkeys(models)]
    heard = {model: listening(model, audio_s) for model in models}
    requests = [
        Request(model=heard[model][0], audio_s=heard[model][1], **deployed({**asked, "device": sheets[device]}))
        for model, device in names
    ]
    return requests, names
