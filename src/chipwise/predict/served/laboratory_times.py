"""A request's kernels as another laboratory would time them, beside our own times (``predict/laboratory``)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from chipwise.core.results import Result
from chipwise.errors import UnknownName
from chipwise.hardware.datasheet import DeviceProfile
from chipwise.predict.cost.model import Predicted
from chipwise.predict.served.estimate import cost_of
from chipwise.predict.served.kernel_times import op_at
from chipwise.predict.served.request import Request
from chipwise.predict.served.steps import PassTimes
from chipwise.predict.whole_runs.laboratory import constants, timed_law
from chipwise.predict.whole_runs.sums import value_of

LABORATORIES = ("llmservingsim",)
_SORTS = {"matmul": "products", "norm": "norm", "embedding": "embedding"}


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class LaboratoryTime(Result):
    """All calls of one operator in a pass: our time, and what the other laboratory's table would hold."""

    phase: str
    place: str
    count: int
    ours_s: float
    theirs: Predicted | None  # None where that laboratory timed no such kernel

    def headline(self) -> str:
        """Place, and both times."""
        theirs = "not timed there" if self.theirs is None else f"{self.theirs.value:.3g} s"
        return f"{self.phase} {self.place}: {self.ours_s:.3g} s here, {theirs}"

    def rows(self) -> list[dict[str, object]]:
        """One row."""
        theirs = self.theirs
        ends = {} if theirs is None else {"theirs_s": theirs.value, "low_s": theirs.low, "high_s": theirs.high}
        return [{"phase": self.phase, "place": self.place, "count": self.count, "ours_s": self.ours_s} | ends]


def laboratory_times(request: Request, laboratory: str) -> list[LaboratoryTime]:
    """The kernels of a request's prefill and decode step in another laboratory's terms.

    Raises:
        UnknownName: The laboratory, or a name in the request, is not known.
        SpecError: A plan that does not divide the model.
        Unsupported: The device lacks a rate.
    """
    if laboratory.strip().lower() not in LABORATORIES:
        raise UnknownName("laboratory", laboratory, LABORATORIES)
    cost = cost_of(request)
    device = cost.group.device
    passes = {"prefill": cost.prefill, "decode": cost.decode} if cost.group.generates else {"prefill": cost.prefill}
    return [each for phase, times in passes.items() for each in _of_pass(phase, times, device)]


def _of_pass(phase: str, times: PassTimes, device: DeviceProfile) -> Iterator[LaboratoryTime]:
    held = constants()
    for part, ours in zip(times.parts, times.kernel_s[:, 0].tolist(), strict=True):
        sort = _sort(part.op.kind, part.place, phase)
        theirs = None
        if sort is not None:
            seconds = part.count * float(value_of(timed_law(op_at(part.op, 0), device, sort), held.terms()))
            place = f"{device.name}|factor|{sort}"
            situation = held.situation(device=device.name, vendor=device.vendor, place=place, model="")
            theirs = Predicted.around(seconds, held.halfwidth(situation, place))
        yield LaboratoryTime(phase=phase, place=part.place, count=part.count, ours_s=part.count * ours, theirs=theirs)


def _sort(kind: str, place: str, phase: str) -> str | None:
    """Kind of kernel, by its name in the laboratory's tables."""
    if kind == "attention":
        return "attention, prompt" if phase == "prefill" else "attention, decode"
    if kind == "elementwise":
        last = place.rpartition(".")[2]
        return "act_fn" if last.startswith("act") else "rope" if last.startswith("rope") else None
    return _SORTS.get(kind)
