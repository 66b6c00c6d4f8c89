"""Sizes and counts that prices and intervals rest on, by pencil."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from chipwise.core.dtypes import weight_format
from chipwise.core.statistics import Z90
from chipwise.hardware.device import EXTRAPOLATION
from chipwise.model.arch.arch import uniform
from chipwise.model.arch.design import Design
from chipwise.model.ops.workload import Phase, Workload
from chipwise.model.walk.lower import lower
from chipwise.predict.cost.estimate import estimate
from chipwise.predict.cost.memory import memory_parts
from chipwise.predict.cost.request import price_shares
from support.machines import round_machine

WORKLOAD = Workload(prompt_tokens=8, new_tokens=8)


def test_a_table_of_positions_is_held_in_fp32() -> None:
    """32 positions of width 16, 4 bytes a value: 2,048 bytes beside the token table."""
    arch = uniform(vocab_size=20, d_model=16, depth=1, heads=2, kv_heads=1, ffn_width=24, max_tokens=32)
    layers = tuple(replace(layer, attention=replace(layer.attention, rope=False)) for layer in arch.layers)
    learned = replace(arch, positions="learned", layers=layers)
    tables = [memory_parts(Design(arch=each), WORKLOAD).table_bytes for each in (arch, learned)]
    assert tables[1] - tables[0] == 4 * 32 * 16


def test_the_prompt_pays_all_but_the_steps_after_the_first_token() -> None:
    """16 s in all, 4 tokens, 2 s a step: three steps are the answer's, 10 s the prompt's."""
    assert price_shares(16.0, 2.0, 4) == (10.0, 6.0)
    assert price_shares(10.0, 2.0, 1) == (10.0, 0.0)


def test_an_interval_widens_with_all_that_is_stored() -> None:
    """Checked up to half of tables and matrices together: ln 2 quarters more, in quadrature with the check's 0.1."""
    arch = uniform(vocab_size=200, d_model=16, depth=1, heads=2, kv_heads=1, ffn_width=24, max_tokens=32)
    parts = memory_parts(Design(arch=arch), WORKLOAD)
    assert parts.table_bytes > parts.matrix_bytes / 4
    stored = parts.table_bytes + parts.matrix_bytes
    plain = round_machine()
    checks = {name: replace(check, spread=0.1, most_bytes=stored / 2) for name, check in plain.checks.items()}
    graphs = [lower(Design(arch=arch), WORKLOAD, phase) for phase in (Phase.PREFILL, Phase.DECODE)]
    found = estimate(Design(arch=arch), *graphs, WORKLOAD, replace(plain, checks=checks))
    spread = math.hypot(0.1, EXTRAPOLATION * math.log(2))
    for name in ("ttft_p50", "tpot_p50", "peak_memory"):
        metric = found.metric(name)
        assert math.log(metric.high / metric.value) == pytest.approx(Z90 * spread, rel=1e-6)


@pytest.mark.parametrize(("tied", "more"), [(True, 0), (False, 1)])
def test_llama_cpp_keeps_the_token_table_in_the_heads_format(tied: bool, more: int) -> None:
    """Its table of 20 x 32 is no 2,560 bytes of FP32 but 8-bit as the head is; a tied head is that table itself."""
    arch = uniform(vocab_size=20, d_model=32, depth=1, heads=2, kv_heads=1, ffn_width=32, max_tokens=32)
    design = Design(arch=arch.with_tied(tied), weights="int8")
    other, file = memory_parts(design, WORKLOAD), memory_parts(design, WORKLOAD, runtime="llama.cpp")
    assert other.table_bytes - file.table_bytes == 4 * 20 * 32
    assert file.matrix_bytes - other.matrix_bytes == more * int(weight_format("int8").matrix_bytes(32, 20))
