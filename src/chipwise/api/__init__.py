"""The public Python API. ``chipwise.NAME`` is ``chipwise.api.NAME``, loaded on first use.

Its modules are loaded on first use too: a command writes ``api.serving.write_plan_page`` and imports nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from chipwise.api import catalogue as catalogue
    from chipwise.api import cost_models as cost_models
    from chipwise.api import explanations as explanations
    from chipwise.api import exports as exports
    from chipwise.api import kits as kits
    from chipwise.api import measured_parts as measured_parts
    from chipwise.api import measuring as measuring
    from chipwise.api import names as names
    from chipwise.api import predictions as predictions
    from chipwise.api import ranking as ranking
    from chipwise.api import runs as runs
    from chipwise.api import serving as serving
    from chipwise.api import spaces as spaces
    from chipwise.api import telemetry as telemetry
    from chipwise.api import whole_runs as whole_runs
    from chipwise.api.catalogue import devices, models, models_on, runtimes
    from chipwise.api.cost_models import calibrate, learn
    from chipwise.api.explanations import explain, sensitivity
    from chipwise.api.exports import Exported, export
    from chipwise.api.kits import import_measurements, kit
    from chipwise.api.measured_parts import MeasuredParts, measure_parts
    from chipwise.api.measuring import Measured, measure
    from chipwise.api.predictions import EstimateTable, compare, estimate, estimate_table, estimate_training
    from chipwise.api.ranking import CandidateCost, candidates
    from chipwise.api.runs import evaluate, export_subnetwork, quality, report, search, shrink, train
    from chipwise.api.serving import agent_loop, plan, simulate
    from chipwise.api.specs import load_run, lower, resolve, uniform
    from chipwise.api.telemetry import teach
    from chipwise.api.whole_runs import estimate_parts, estimate_pictures, explain_pictures
    from chipwise.deploy.measure.measurement import Measurement
    from chipwise.design.report.record import RunRecord
    from chipwise.design.run.spec import RunSpec
    from chipwise.errors import ChipwiseError
    from chipwise.hardware.device import MachineProfile
    from chipwise.model.arch.arch import ArchSpec
    from chipwise.model.arch.design import Design
    from chipwise.model.arch.feed_forward import FeedForward
    from chipwise.model.arch.layer import Layer
    from chipwise.model.arch.mixers import Attention
    from chipwise.model.ops.workload import Phase, Workload
    from chipwise.model.space.search_space import SearchSpace
    from chipwise.predict.cost.model import CostEstimate

__all__ = [
    "ArchSpec",
    "Attention",
    "CandidateCost",
    "ChipwiseError",
    "CostEstimate",
    "Design",
    "EstimateTable",
    "Exported",
    "FeedForward",
    "Layer",
    "MachineProfile",
    "Measured",
    "MeasuredParts",
    "Measurement",
    "Phase",
    "RunRecord",
    "RunSpec",
    "SearchSpace",
    "Workload",
    "agent_loop",
    "calibrate",
    "candidates",
    "compare",
    "devices",
    "estimate",
    "estimate_parts",
    "estimate_pictures",
    "estimate_table",
    "estimate_training",
    "evaluate",
    "explain",
    "explain_pictures",
    "export",
    "export_subnetwork",
    "import_measurements",
    "kit",
    "learn",
    "load_run",
    "lower",
    "measure",
    "measure_parts",
    "models",
    "models_on",
    "plan",
    "quality",
    "report",
    "resolve",
    "runtimes",
    "search",
    "sensitivity",
    "shrink",
    "simulate",
    "teach",
    "train",
    "uniform",
]

_HOMES: Mapping[str, tuple[str, ...]] = {
    "chipwise.api.catalogue": ("devices", "models", "models_on", "runtimes"),
    "chipwise.api.cost_models": ("calibrate", "learn"),
    "chipwise.api.explanations": ("explain", "sensitivity"),
    "chipwise.api.exports": ("Exported", "export"),
    "chipwise.api.kits": ("import_measurements", "kit"),
    "chipwise.api.measured_parts": ("MeasuredParts", "measure_parts"),
    "chipwise.api.measuring": ("Measured", "measure"),
    "chipwise.api.predictions": (
        "EstimateTable",
        "compare",
        "estimate",
        "estimate_table",
        "estimate_training",
    ),
    "chipwise.api.ranking": ("CandidateCost", "candidates"),
    "chipwise.api.runs": ("evaluate", "export_subnetwork", "quality", "report", "search", "shrink", "train"),
    "chipwise.api.serving": ("agent_loop", "plan", "simulate"),
    "chipwise.api.specs": ("load_run", "lower", "resolve", "uniform"),
    "chipwise.api.telemetry": ("teach",),
    "chipwise.api.whole_runs": ("estimate_parts", "estimate_pictures", "explain_pictures"),
    "chipwise.errors": ("ChipwiseError",),
    "chipwise.predict.cost.model": ("CostEstimate",),
    "chipwise.hardware.device": ("MachineProfile",),
    "chipwise.model.ops.workload": (
        "Phase",
        "Workload",
    ),
    "chipwise.deploy.measure.measurement": ("Measurement",),
    "chipwise.design.report.record": ("RunRecord",),
    "chipwise.design.run.spec": ("RunSpec",),
    "chipwise.model.space.search_space": ("SearchSpace",),
    "chipwise.model.arch.arch": ("ArchSpec",),
    "chipwise.model.arch.mixers": ("Attention",),
    "chipwise.model.arch.design": ("Design",),
    "chipwise.model.arch.feed_forward": ("FeedForward",),
    "chipwise.model.arch.layer": ("Layer",),
}
_HOME = {name: module for module, names in _HOMES.items() for name in names}
_MODULES = {"names", "spaces", *(home.rpartition(".")[2] for home in _HOMES if home.startswith(__name__))}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(f"{__name__}.{name}")
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = getattr(import_module(_HOME[name]), name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME})
