"""The public Python API. ``chipwise.NAME`` is ``chipwise.api.NAME``, loaded on first use.

The modules of this package hold the public functions. They check their arguments and call the other packages of
chipwise. Names that only the command line needs are in :mod:`chipwise.api.answers`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from chipwise.core.lazy import on_first_use

if TYPE_CHECKING:
    from chipwise.api.catalogue import devices, models, models_on, runtimes
    from chipwise.api.cost_models import calibrate, learn
    from chipwise.api.explanations import explain, sensitivity
    from chipwise.api.measuring import (
        export,
        import_measurements,
        kit,
        measure,
        measure_compiled,
        measure_pages,
        measure_phone,
        quantize,
        teach,
    )
    from chipwise.api.own_modules import search_module
    from chipwise.api.predictions import (
        EstimateTable,
        candidates,
        compare,
        estimate,
        estimate_table,
        estimate_training,
        owned,
    )
    from chipwise.api.runs import evaluate, quality, report, search, shrink, train
    from chipwise.api.serving import agent_loop, bill, plan, serve, simulate
    from chipwise.api.specs import load_run, lower, resolve, uniform
    from chipwise.api.whole_runs import estimate_parts, estimate_pictures, explain_pictures
    from chipwise.deploy.measure.measurement import Measurement
    from chipwise.design.fleet.offered_load import OfferedLoad
    from chipwise.design.fleet.question import FleetQuestion
    from chipwise.design.models.candidates import CandidateCost
    from chipwise.design.models.exports import Exported
    from chipwise.design.models.measuring import Measured
    from chipwise.design.report.record import RunRecord
    from chipwise.design.run.past import PastTrainings
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
    from chipwise.predict.served.deployment import Deployment

__all__ = [
    "ArchSpec",
    "Attention",
    "CandidateCost",
    "ChipwiseError",
    "CostEstimate",
    "Deployment",
    "Design",
    "EstimateTable",
    "Exported",
    "FeedForward",
    "FleetQuestion",
    "Layer",
    "MachineProfile",
    "Measured",
    "Measurement",
    "OfferedLoad",
    "PastTrainings",
    "Phase",
    "RunRecord",
    "RunSpec",
    "SearchSpace",
    "Workload",
    "agent_loop",
    "bill",
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
    "import_measurements",
    "kit",
    "learn",
    "load_run",
    "lower",
    "measure",
    "measure_compiled",
    "measure_pages",
    "measure_phone",
    "models",
    "models_on",
    "owned",
    "plan",
    "quality",
    "quantize",
    "report",
    "resolve",
    "runtimes",
    "search",
    "search_module",
    "sensitivity",
    "serve",
    "shrink",
    "simulate",
    "teach",
    "train",
    "uniform",
]

__getattr__, __dir__ = on_first_use(__name__, __file__)
