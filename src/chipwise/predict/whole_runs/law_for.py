"""Decides which models are estimated by laws fitted to whole runs: diffusion models, and models on phone chips."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from chipwise.errors import UnknownName
from chipwise.hardware import datasheet
from chipwise.model.published import families
from chipwise.predict.graphs.npu_chips import CHIPS
from chipwise.predict.whole_runs.diffusion import known_name
from chipwise.predict.whole_runs.phone_models import model_called

WholeRunLaw = Literal["pictures", "parts"]


def makes_pictures(model: str) -> bool:
    """Whether ``model`` is the name of a known diffusion model, rather than a file."""
    return not Path(model).exists() and known_name(model) is not None


def law_for(model: str, device: str | None, part: str | None) -> WholeRunLaw | None:
    """Name of the law, fitted to whole runs, that predicts a model on a device; None if it is predicted from kernels.

    Args:
        model: A model's name or file.
        device: A data sheet's name; None means this machine with its calibration.
        part: The requested part of the model; None means the whole model.

    Raises:
        UnknownName: The device is unknown.
    """
    if Path(model).exists():
        return None
    if known_name(model):
        return "pictures"
    if part is not None:
        return "parts"
    called = model_called(model)
    if called is None:
        return None
    if called == model.strip().lower() and not families.is_listed(model):
        return "parts"  # the catalogue's spelling: whisper_small
    try:
        families.id_of(model)
    except UnknownName:
        return "parts"
    if device is None:
        return None
    whole = device.partition(":")[0]
    on_phone = whole.strip().lower() in CHIPS or (whole != "all" and datasheet.load(whole).vendor == "Qualcomm")
    return "parts" if on_phone else None
