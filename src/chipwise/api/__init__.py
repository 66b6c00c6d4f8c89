"""The façade: everything that the command line and a notebook need, one function each."""

from __future__ import annotations

from chipwise.api.explanations import explain, explain_measured, sensitivity
from chipwise.api.measuring import Measured, measure, predict
from chipwise.api.models import calibrate, fit, learn, validate
from chipwise.api.predictions import (
    DeviceAnswer,
    compare,
    estimate,
    estimate_devices,
    estimate_table,
    estimate_training,
    ops_table,
)
from chipwise.api.runs import data_folder, evaluate, quality, report, run_folder, search, train
from chipwise.profile.store import profile_path

__all__ = [
    "DeviceAnswer",
    "Measured",
    "calibrate",
    "compare",
    "data_folder",
    "estimate",
    "estimate_devices",
    "estimate_table",
    "estimate_training",
    "evaluate",
    "explain",
    "explain_measured",
    "fit",
    "learn",
    "measure",
    "ops_table",
    "predict",
    "profile_path",
    "quality",
    "report",
    "run_folder",
    "search",
    "sensitivity",
    "train",
    "validate",
]
