"""Cases that rules are asked about: small and well-known models on chips with data sheets."""

from __future__ import annotations

from typing import Any

from chipwise.model.arch.arch import ArchSpec
from chipwise.predict.explain.cases import data_sheet_case
from chipwise.predict.explain.question import Case


def case(model: str | ArchSpec, device: str = "a100-sxm-80gb", **asked: Any) -> Case:
    """A model on a chip; bf16 unless asked."""
    return data_sheet_case(model, device, **({"weights": "bf16"} | asked))
