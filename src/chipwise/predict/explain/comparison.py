"""Compares the costs of models on several chips: finds the best model per chip and metric, and why it is the best."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from chipwise.core import units
from chipwise.core.results import Result
from chipwise.errors import ChipwiseError, InputError
from chipwise.hardware import datasheet
from chipwise.predict.cost.model import Bound, CostEstimate, OpCost
from chipwise.predict.explain.waterfall import seconds_by_bound
from chipwise.predict.served.deployment import deployed
from chipwise.predict.served.estimate import estimate, estimate_of, fitting_requests, waiting, with_defaults
from chipwise.predict.served.groups import cost_groups, grouped
from chipwise.predict.served.request import Request, listening, taken_for
from chipwise.predict.served.shortage import shortages

ALIKE = 0.95  # the winner's work counts as a reason if it is below this share of the other model's


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
    """The best model on a chip by one metric, its lead over the next best model, and the reason for the lead."""

    device: str
    metric: str
    model: str
    times_better: float | None  # factor over the next best; None if no other has an answer
    sure: bool  # whether the intervals of the best and the next best do not overlap
    why: str


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Comparison(Result):
    """One cell for each model and device, and the winners."""

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
    """Compares the estimates of ``requests``, which are all computed in one call.

    If a device's memory holds only some of the concurrent requests, its cell has the estimate for those that fit, and a
    note that says so.

    Args:
        requests: Requests on devices with data sheets.
        names: Names of the model and the device of each request.
        others: Cells that were computed before, for devices without data sheets.

    Raises:
        InputError: Every request is wrong.
    """
    cells: list[Cell | None] = [None] * len(requests)
    groups, errors = grouped(requests)
    wrong = [error for error in errors.values() if isinstance(error, InputError)]
    if wrong and len(wrong) == len(requests):  # nothing to compare, for example because the runtime is unknown
        raise wrong[0]
    for row, error in errors.items():
        cells[row] = _unanswered(names[row], str(error))
    for group, cost in zip(groups, cost_groups(groups), strict=True):
        for i, row in enumerate(group.rows):
            request, notes = requests[row], taken_for(requests[row].model, requests[row].device)
            if isinstance(cost, ChipwiseError):
                cells[row] = _unanswered(names[row], str(cost))
                continue
            fitting = int(fitting_requests(group, cost.memory)[i])
            if fitting == 0:
                short = shortages([request])[0]
                cells[row] = _unanswered(names[row], short.message if short is not None else "")
                continue
            if fitting < group.in_flight[i]:
                found = estimate(request)
                notes.append(waiting(fitting, int(group.in_flight[i])))
            else:
                found = with_defaults(estimate_of(cost, i), request)
            model, device = names[row]
            generates, note = group.setting.arch.causal, "; ".join(notes)
            cells[row] = Cell(model=model, device=device, estimate=found, generates=generates, note=note)
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


def _unanswered(name: tuple[str, str], problem: str) -> Cell:
    return Cell(model=name[0], device=name[1], estimate=None, problem=problem)


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
        why = "the only model with an estimate"
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
    """The main reason why the winner is faster than the other model, such as ``it moves 60 % as many bytes``."""
    spent = [seconds_by_bound(_pass(cost, phase)) for cost in (best, other)]
    difference = {bound: spent[1].get(bound, 0.0) - spent[0].get(bound, 0.0) for bound in spent[0] | spent[1]}
    bound = max(difference, key=lambda name: difference[name])
    ours, theirs = (_amount(cost, phase, bound) for cost in (best, other))
    if theirs and 0 < ours <= ALIKE * theirs:
        done = {
            Bound.MEMORY: "moves {share} as many bytes",
            Bound.COMPUTE: "does {share} as many FLOPs",
            Bound.LAUNCH: "runs {share} as many kernels",
            Bound.LINK: "sends {share} as many bytes between devices",
        }[bound]
        return f"it {done.format(share=units.show(ours / theirs, 'share', digits=2))}"
    return f"its {bound.value}-bound kernels take less time although their work is similar"


def _pass(cost: CostEstimate, phase: str) -> Sequence[OpCost]:
    return cost.prefill if phase == "prefill" else cost.decode


def _amount(cost: CostEstimate, phase: str, bound: Bound) -> float:
    """Amount of work in a pass, counted in the unit that ``bound`` limits.

    It is the number of FLOPs for ``COMPUTE``, of kernels for ``LAUNCH``, and of bytes for the other bounds. For
    ``LINK``, only the kernels that are bound by the link count.
    """
    kernels = [each for each in _pass(cost, phase) if bound is not Bound.LINK or each.bound is Bound.LINK]
    if bound is Bound.COMPUTE:
        return float(sum(each.work.flops * each.count for each in kernels))
    if bound is Bound.LAUNCH:
        return float(sum(each.count for each in kernels))
    return float(sum(each.work.bytes * each.count for each in kernels))


def requests_of(
    models: Sequence[str], devices: Sequence[str], *, audio_s: float | None = None, **asked: object
) -> tuple[list[Request], list[tuple[str, str]]]:
    """Requests for every model on every device, without duplicates, and the (model, device) names of each request.

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
