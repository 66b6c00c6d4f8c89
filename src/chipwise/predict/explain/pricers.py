"""Predicts the cost of a ``CostQuestion`` from a chip's data sheet or from this machine's calibration."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

from chipwise.errors import ChipwiseError, Unsupported
from chipwise.hardware import datasheet, taught
from chipwise.hardware.datasheet import DeviceProfile
from chipwise.hardware.device import MachineProfile
from chipwise.model.arch.design import Design
from chipwise.model.ops.workload import Phase, Workload
from chipwise.model.walk.lower import lower
from chipwise.predict.cost.estimate import estimate
from chipwise.predict.cost.model import CostEstimate, Predicted
from chipwise.predict.explain.question import CostQuestion
from chipwise.predict.served.energy import energies
from chipwise.predict.served.estimate import estimate_of, misaligned
from chipwise.predict.served.groups import cost_groups, grouped
from chipwise.predict.served.request import Request, resolved
from chipwise.predict.served.training_step import training_step


@functools.lru_cache(maxsize=1024)
def _sheet(device: str, revision: int) -> DeviceProfile:
    return datasheet.load(device)


@dataclass(frozen=True, slots=True, kw_only=True)
class DataSheetPricer:
    """Estimates costs from data sheets. If a question names no device, its costs are those on ``device``."""

    device: str

    @property
    def sheet(self) -> DeviceProfile:
        """The chip's data sheet."""
        return _sheet(self.device, taught.revision(self.device))

    def price(self, questions: Sequence[CostQuestion]) -> list[CostEstimate | ChipwiseError]:
        """One estimate or error per question. A model that does not fit in memory is estimated as if it did."""
        answers: list[CostEstimate | ChipwiseError | None] = [None] * len(questions)
        requests: list[Request] = []
        places: list[int] = []
        for i, question in enumerate(questions):
            try:
                if question.task == "train":
                    answers[i] = train_estimate(question, question.device or self.device)
                else:
                    requests.append(question.request(self.device))
                    places.append(i)
            except ChipwiseError as error:
                answers[i] = error
        groups, errors = grouped(requests)
        for row, problem in errors.items():
            answers[places[row]] = problem
        for group, cost in zip(groups, cost_groups(groups), strict=True):
            energy = None if isinstance(cost, Unsupported) else energies([cost])[0]
            for i, row in enumerate(group.rows):
                answers[places[row]] = cost if isinstance(cost, Unsupported) else estimate_of(cost, i, energy)
        return [answer for answer in answers if answer is not None]


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibratedPricer:
    """Estimates costs on this machine, from its calibration in one runtime."""

    profile: MachineProfile

    @property
    def sheet(self) -> None:
        """None: this machine has no data sheet."""
        return None

    def price(self, questions: Sequence[CostQuestion]) -> list[CostEstimate | ChipwiseError]:
        """One estimate or error per question. For example, it is an error if the profile has no rates for a format."""
        return [self._price(question) for question in questions]

    def _price(self, question: CostQuestion) -> CostEstimate | ChipwiseError:
        try:
            workload = Workload(
                prompt_tokens=question.prompt_tokens, new_tokens=question.new_tokens, batch=question.batch
            )
            design = Design(arch=question.arch, weights=question.weights)
            prefill, decode = (lower(design, workload, phase) for phase in (Phase.PREFILL, Phase.DECODE))
            return estimate(design, prefill, decode, workload, self.profile)
        except ChipwiseError as error:
            return error


def train_estimate(question: CostQuestion, device: str) -> CostEstimate:
    """Estimate of one optimiser step, even if it does not fit in memory.

    The seconds of the step are stored as ``step``, as TTFT and as TPOT.

    Raises:
        UnknownName: A name is unknown.
        SpecError: A parallel degree does not divide the model or the batch.
        Unsupported: The chip has no rate for a format.
    """
    known = resolved(question.request(device))
    found = training_step(
        known.setting,
        known.device,
        batch=question.batch,
        tokens=question.prompt_tokens,
        checkpoint=question.checkpoint,
        hypothetical=True,
    )
    step, tokens = found.step, question.batch * question.prompt_tokens
    metrics = {"step": step, "throughput": Predicted.around(tokens / step.value, step.log_halfwidth)}
    notes = []
    try:
        usd = 1000 / tokens * found.devices * known.device.price_usd_per_s
        metrics["usd_per_1k_tokens"] = Predicted.around(usd * step.value, step.log_halfwidth)
    except Unsupported as error:
        notes.append(f"no price: {error}")
    memory_s = sum(cost.memory_s or 0.0 for cost in found.operators)
    return CostEstimate(
        ttft_s=step.value,
        tpot_s=step.value,
        peak_memory_bytes=found.peak_memory_bytes,
        metrics=metrics,
        prefill=found.operators,
        decode=(),
        model="training@1",
        device=found.device,
        runtime=known.setting.runtime.name,
        devices=found.devices,
        memory_bytes=found.memory_bytes,
        mfu={"prefill": found.mfu},
        mbu={"prefill": memory_s / step.value},
        provenance=found.provenance,
        notes=(*notes, *misaligned(found.operators)),
    )
