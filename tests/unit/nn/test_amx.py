"""A bf16 product must not end the process, whatever the processor claims about AMX."""

import subprocess
import sys

import pytest

from chipwise.nn import amx


def test_a_bf16_product_survives_once_the_package_is_loaded() -> None:
    code = "import chipwise.nn, torch; a = torch.ones(64, 64, dtype=torch.bfloat16); assert (a @ a)[0, 0] == 64"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=300).returncode == 0


@pytest.mark.parametrize(
    ("flags", "survives", "before", "after"),
    [
        ("avx512f amx_tile", False, {}, {amx.LIMIT: amx.WITHOUT_AMX}),
        ("avx512f amx_tile", True, {}, {}),
        ("avx512f", False, {}, {}),  # not announced, so never tried
        ("avx512f amx_tile", False, {amx.LIMIT: "AVX2"}, {amx.LIMIT: "AVX2"}),  # the user's own limit stays
    ],
)
def test_onednn_is_limited_only_where_announced_amx_fails(monkeypatch, flags, survives, before, after) -> None:
    monkeypatch.setattr(amx, "bf16_product_survives", lambda: survives)
    assert amx.avoid_broken_amx(dict(before), cpu_flags=flags) == after
