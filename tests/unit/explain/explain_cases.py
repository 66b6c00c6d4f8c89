"""Cases that rules are asked about: small and well-known models on chips with data sheets."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

from chipwise.explain.asking import data_sheet_case
from chipwise.explain.question import Case
from chipwise.hardware.device import MachineProfile
from chipwise.spec import ArchSpec


def case(model: str | ArchSpec, device: str = "a100-sxm-80gb", **asked: Any) -> Case:
    """A model on a chip; bf16 unless asked."""
    return data_sheet_case(model, device, **({"weights": "bf16"} | asked))


def toy_machine() -> MachineProfile:
    """The machine with round numbers that the tests of costs are about."""
    file = Path(__file__).parents[1] / "cost" / "toy_profile.py"
    spec = importlib.util.spec_from_file_location("toy_profile_of_costs", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    found: MachineProfile = module.toy_profile()
    return found
