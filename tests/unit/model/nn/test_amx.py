"""A bf16 product must not end the process, whatever the processor claims about AMX."""

import subprocess
import sys

import pytest
import torch

from chipwise.model.nn import amx


def test_a_bf16_product_survives_once_the_package_is_loaded() -> None:
    code = "import chipwise.model.nn, torch; a = torch.ones(64, 64, dtype=torch.bfloat16); assert (a @ a)[0, 0] == 64"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=300).returncode == 0


@pytest.mark.parametrize(
    ("announced", "survives", "before", "after"),
    [
        (True, False, {}, {amx.LIMIT: amx.WITHOUT_AMX}),
        (True, True, {}, {}),
        (False, False, {}, {}),  # not announced, so never tried
        (True, False, {amx.LIMIT: "AVX2"}, {amx.LIMIT: "AVX2"}),  # the user's own limit stays
    ],
)
def test_onednn_is_limited_only_where_announced_amx_fails(monkeypatch, announced, survives, before, after) -> None:
    monkeypatch.setattr(amx, "bf16_product_survives", lambda: survives)
    assert amx.avoid_broken_amx(dict(before), announced=announced) == after


def test_a_precision_is_found_where_torch_was_at_work_before() -> None:
    """oneDNN reads its limit at its first product; a process in which that came earlier lives on, in fp32."""
    code = (
        "import torch; torch.nn.functional.conv2d(torch.ones(1, 1, 8, 8), torch.ones(1, 1, 2, 2))\n"
        "from chipwise.model.nn.precision import fastest_precision; assert fastest_precision() in ('bf16', 'fp32')"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=300).returncode == 0


def test_where_bf16_would_end_the_process_matrices_are_orthogonalised_in_fp32(monkeypatch) -> None:
    """Five rounds move the singular values of a well-conditioned matrix to within a third of 1, in either precision."""
    from chipwise.training.loop import optimiser

    monkeypatch.setattr(optimiser, "bf16_is_safe", lambda: False)
    drawn = torch.randn(2, 16, 32, generator=torch.Generator().manual_seed(0))
    values = torch.linalg.svdvals(optimiser.orthogonalise(drawn))
    assert float(values.min()) > 0.6
    assert float(values.max()) < 1.34
