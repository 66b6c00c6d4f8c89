"""Training steps as estimates that rules read: one pass, whose time is the step's."""

from __future__ import annotations

from chipwise.core.errors import Unsupported
from chipwise.cost.model import CostEstimate, Predicted
from chipwise.explaining.question import Question
from chipwise.explaining.requests import request_of
from chipwise.serve.answer import misaligned
from chipwise.serve.request import resolved
from chipwise.serve.training import price_step


def train_estimate(question: Question, device: str) -> CostEstimate:
    """One optimiser step, whether it fits or not: its seconds stand as ``step``, and as TTFT and TPOT.

    Raises:
        UnknownName: A name that is not known.
        SpecError: A plan or batch that does not divide.
        Unsupported: The chip lacks a rate.
    """
    known = resolved(request_of(question, device))
    found = price_step(
        known.setting,
        known.device,
        batch=question.batch,
        tokens=question.prompt_tokens,
        checkpoint=question.checkpoint,
    )
    step, tokens = found.step, question.batch * question.prompt_tokens
    metrics = {"step": step, "throughput": _inverse(step, tokens)}
    notes = []
    try:
        usd = 1000 / tokens * found.devices * known.device.price_usd_per_s
        metrics["usd_per_1k_tokens"] = Predicted(value=usd * step.value, low=usd * step.low, high=usd * step.high)
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


def _inverse(step: Predicted, count: float) -> Predicted:
    return Predicted(value=count / step.value, low=count / step.high, high=count / step.low)
