"""An explanation as plain data: what ``--json`` prints, in SI units."""

from __future__ import annotations

from typing import Any

from chipwise.core.digest import plain
from chipwise.explaining.advice import Advice
from chipwise.explaining.answer import Explanation

SCHEMA = "chipwise.explanation/1"


def to_data(found: Explanation) -> dict[str, Any]:
    """The explanation without the kernels of every changed model."""
    question, cost = found.case.question, found.estimate
    return {
        "schema": SCHEMA,
        "model": question.arch.name,
        "device": cost.device,
        "devices": cost.devices,
        "runtime": cost.runtime,
        "weights": question.weights,
        "kv": question.kv,
        "task": question.task,
        "batch": question.batch,
        "prompt_tokens": question.prompt_tokens,
        "new_tokens": question.new_tokens,
        "provenance": cost.provenance,
        "metrics": plain(
            {
                name: value
                for name, value in cost.metrics.items()
                if found.case.generates or found.case.training or name.startswith("ttft")
            }
        ),
        "phases": plain(found.phases),
        "saturation": plain(found.saturation),
        "memory_bytes": dict(found.memory_bytes),
        "peak_memory_bytes": cost.peak_memory_bytes,
        "capacity_bytes": found.capacity_bytes,
        "training": plain(found.training),
        "shared_context": plain(found.shared),
        "advice": [_advice(number, each) for number, each in enumerate(found.advice, start=1)],
        "notes": list(found.notes),
    }


def _advice(number: int, advice: Advice) -> dict[str, Any]:
    proposal = advice.proposal
    return {
        "number": number,
        "rule": advice.rule,
        "title": proposal.title,
        "touches": proposal.touches,
        "how": proposal.how,
        "quality": proposal.quality,
        "source": proposal.source,
        "sure": advice.sure,
        "fits": advice.fits,
        "headline": advice.headline.metric,
        "gains": {
            gain.metric: {"before": gain.before, "after": gain.after, **plain(gain.ratio)} for gain in advice.gains
        },
    }
