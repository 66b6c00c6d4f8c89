"""Fitting of the experts' model: which of the tables' kernels count."""

from __future__ import annotations

from typing import Any

import pytest

from chipwise_fitting import experts

pandas = pytest.importorskip("pandas", reason="needs the extra: fit")


def row(latency: float, dtype: str, kernel: str, *, tokens: int = 8, order: str = "0.24.0") -> dict[str, Any]:
    """One call of Mixtral's experts, in milliseconds."""
    sizes = (tokens, 4096, 14336, 2, 8, 1, 1, "balanced")
    return {
        "system": "h100_sxm",
        "stack": "vllm",
        "order": order,
        "moe_dtype": dtype,
        "kernel_source": kernel,
        "latency": latency,
        **dict(zip(experts.KEY, sizes, strict=True)),
    }


def kept(rows: list[dict[str, Any]]) -> list[tuple[str, str, float]]:
    """Formats, kernels and milliseconds of the calls that count."""
    found = experts.served(pandas.DataFrame(rows))
    return list(zip(found.moe_dtype, found.kernel_source, found.latency, strict=True))


def test_a_narrow_kernel_that_takes_twice_as_long_as_16_bits_is_left_out_whole() -> None:
    wide = [row(1.0, "bfloat16", "triton", tokens=n) for n in (8, 16, 32)]
    # Twice in the median; the call that is no slower than 16 bits goes with the others.
    slow = [row(t, "fp8", "default tactic", tokens=n) for n, t in ((8, 2.0), (16, 2.5), (32, 1.0))]
    assert kept([*wide, *slow]) == [("bfloat16", "triton", 1.0)] * 3


def test_a_kernel_with_a_few_slow_calls_or_without_a_wide_one_beside_it_stays() -> None:
    wide = [row(1.0, "bfloat16", "triton", tokens=n) for n in (8, 16, 32)]
    good = [row(t, "fp8", "tuned", tokens=n) for n, t in ((8, 0.6), (16, 3.0), (32, 0.7))]
    alone = [row(9.0, "int4_wo", "marlin", tokens=64)]
    assert len(kept([*wide, *good, *alone])) == 7


def test_a_version_is_held_against_its_own_wide_kernel_and_the_fastest_of_these() -> None:
    old = [row(4.0, "bfloat16", "old", order="0.19.0"), row(3.0, "fp8", "old", order="0.19.0")]
    new = [row(1.0, "bfloat16", "new"), row(5.0, "bfloat16", "another"), row(1.4, "fp8", "new")]
    assert len(kept([*old, *new])) == 5
    assert len(kept([*old, *new, row(1.6, "nvfp4", "new")])) == 5
