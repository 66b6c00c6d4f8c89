from pathlib import Path

import pytest
import torch

from chipwise.model.nn import precision
from chipwise.model.nn.precision import fastest_precision, kept_precision


def test_a_run_decides_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for measured in ("bf16", "fp32"):
        monkeypatch.setattr(precision, "fastest_precision", lambda measured=measured: measured)
        assert kept_precision(tmp_path / "precision.json") == "bf16"
    (tmp_path / "precision.json").write_text('"fp8"')
    assert kept_precision(tmp_path / "precision.json") == "fp32"


def test_the_measurement_leaves_the_number_of_threads_as_it_was() -> None:
    before = torch.get_num_threads()
    fastest_precision.cache_clear()
    assert fastest_precision() in ("bf16", "fp32")
    assert torch.get_num_threads() == before
