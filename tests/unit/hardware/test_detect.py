"""What this machine says of itself."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest

from chipwise.core.digest import digest, plain
from chipwise.hardware.detect import Machine, detect, instructions


def test_this_machine() -> None:
    machine = detect()
    assert machine.cores == os.cpu_count()
    assert machine.memory_bytes > 10**8
    assert machine.cpu in machine.name
    if machine.l2_bytes and machine.l3_bytes:
        assert machine.l2_bytes < machine.l3_bytes


@pytest.mark.parametrize(
    ("cpu_info", "known"),
    [
        ("model name\t: a Zen 3\nflags\t\t: fpu sse4_1 avx2 vaes\n", "AVX2 without VNNI"),
        ("flags\t\t: sse4_1 avx2 avx512f avx512bw\n", "AVX-512 without VNNI"),
        ("flags\t\t: sse4_1 avx2 avx_vnni\n", "AVX-VNNI"),
        ("flags\t\t: avx2 avx512bw avx512_vnni\n", "AVX512-VNNI"),
        ("flags\t\t: avx2 avx512bw avx512_vnni amx_int8\n", "AMX-INT8"),
        ("Features\t: fp asimd asimddp\n", "NEON with dot products"),
        ("model name\t: tells no flags\n", None),
        ("", None),
    ],
)
def test_the_best_instructions_for_integer_products(cpu_info: str, known: str | None) -> None:
    assert instructions(cpu_info) == known


def test_a_machine_whose_instructions_are_unknown_is_stored_as_before() -> None:
    old = Machine(name="a", cpu="b", cores=1, memory_bytes=10**9)
    assert "instructions" not in plain(old)
    assert digest(old) != digest(replace(old, instructions="AVX-VNNI"))
