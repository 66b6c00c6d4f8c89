"""The public Python API. ``chipwise.NAME`` is ``chipwise.api.NAME``, loaded on first use."""

from chipwise.api.catalogue import devices, models, runtimes
from chipwise.api.cost_models import calibrate, fit, learn, validate
from chipwise.api.explanations import explain, explain_measured, sensitivity
from chipwise.api.kits import import_measurements, kit
from chipwise.api.measuring import Measured, measure
from chipwise.api.predictions import (
    EstimateTable,
    compare,
    estimate,
    estimate_table,
    estimate_training,
    ops_table,
)
from chipwise.api.runs import evaluate, export_subnetwork, quality, report, search, shrink, train
from chipwise.api.serving import plan, simulate
from chipwise.api.specs import load_run, lower, resolve, uniform
from chipwise.api.telemetry import teach
from chipwise.core.errors import ChipwiseError
from chipwise.cost.model import CostEstimate
from chipwise.hardware.device import MachineProfile
from chipwise.ops import Phase, Workload
from chipwise.profile.measurement import Measurement
from chipwise.reporting.record import RunRecord
from chipwise.run.spec import RunSpec
from chipwise.space import SearchSpace
from chipwise.spec import ArchSpec, Attention, Design, FeedForward, Layer

__all__ = [
    "ArchSpec",
    "Attention",
    "ChipwiseError",
    "CostEstimate",
    "Design",
    "EstimateTable",
    "FeedForward",
    "Layer",
    "MachineProfile",
    "Measured",
    "Measurement",
    "Phase",
    "RunRecord",
    "RunSpec",
    "SearchSpace",
    "Workload",
    "calibrate",
    "compare",
    "devices",
    "estimate",
    "estimate_table",
    "estimate_training",
    "evaluate",
    "explain",
    "explain_measured",
    "export_subnetwork",
    "fit",
    "import_measurements",
    "kit",
    "learn",
    "load_run",
    "lower",
    "measure",
    "models",
    "ops_table",
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
    "validate",
]
