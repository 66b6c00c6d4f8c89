"""chipwise: design transformers that fit the chip.

The public names load what they need when they are first used, so importing the package is quick and loads no torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from chipwise.api import calibrate, compare, estimate, explain, measure, quality, report, search
    from chipwise.blocks.lowering import lower
    from chipwise.core.errors import ChipwiseError
    from chipwise.cost.model import CostEstimate
    from chipwise.hardware.device import MachineProfile
    from chipwise.ops import Phase, Workload
    from chipwise.profile.measurement import Measurement
    from chipwise.reporting.record import RunRecord
    from chipwise.run.spec import RunSpec, load_run
    from chipwise.shrinking import start_from
    from chipwise.space import SearchSpace
    from chipwise.spec import ArchSpec, Attention, Design, FeedForward, Layer, uniform
    from chipwise.spec.hf import resolve

_HOMES = {
    "ArchSpec": "chipwise.spec",
    "Attention": "chipwise.spec",
    "ChipwiseError": "chipwise.core.errors",
    "CostEstimate": "chipwise.cost.model",
    "Design": "chipwise.spec",
    "FeedForward": "chipwise.spec",
    "Layer": "chipwise.spec",
    "MachineProfile": "chipwise.hardware.device",
    "Measurement": "chipwise.profile.measurement",
    "Phase": "chipwise.ops",
    "RunRecord": "chipwise.reporting.record",
    "RunSpec": "chipwise.run.spec",
    "SearchSpace": "chipwise.space",
    "Workload": "chipwise.ops",
    "calibrate": "chipwise.api",
    "compare": "chipwise.api",
    "estimate": "chipwise.api",
    "explain": "chipwise.api",
    "load_run": "chipwise.run.spec",
    "lower": "chipwise.blocks.lowering",
    "measure": "chipwise.api",
    "quality": "chipwise.api",
    "report": "chipwise.api",
    "resolve": "chipwise.spec.hf",
    "search": "chipwise.api",
    "start_from": "chipwise.shrinking",
    "uniform": "chipwise.spec",
}

__all__ = [
    "ArchSpec",
    "Attention",
    "ChipwiseError",
    "CostEstimate",
    "Design",
    "FeedForward",
    "Layer",
    "MachineProfile",
    "Measurement",
    "Phase",
    "RunRecord",
    "RunSpec",
    "SearchSpace",
    "Workload",
    "calibrate",
    "compare",
    "estimate",
    "explain",
    "load_run",
    "lower",
    "measure",
    "quality",
    "report",
    "resolve",
    "search",
    "start_from",
    "uniform",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'chipwise' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
