"""docs/notes/claims.md against a pencil, published facts, and the script that prints its figures."""

from __future__ import annotations

import importlib.util
import math
import re
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

import chipwise
from chipwise.hardware import datasheet
from chipwise.model.arch.feed_forward import FeedForward
from chipwise.model.ops.attention import standard_attention_io
from chipwise.model.ops.matmul import Matmul
from chipwise.model.published import families
from chipwise.predict.cost.model import Bound, OpCost

ROOT = Path(__file__).parents[2]
CLAIMS = (ROOT / "docs" / "notes" / "claims.md").read_text(encoding="utf-8")
A100 = datasheet.load("a100-sxm-80gb")
UNITS, CLOCK = 108, 1.41e9


@pytest.fixture(scope="module")
def script() -> ModuleType:
    sys.path.insert(0, str(ROOT / "benchmarks"))
    try:
        found = importlib.util.spec_from_file_location("claims", ROOT / "benchmarks" / "claims.py")
        assert found is not None
        assert found.loader is not None
        module = importlib.util.module_from_spec(found)
        found.loader.exec_module(module)
    finally:
        sys.path.pop(0)
    return module


def says(text: str) -> bool:
    return text in CLAIMS


def test_every_section_names_a_topic_of_the_script_and_every_topic_has_its_section(script: ModuleType) -> None:
    heads = [line for line in CLAIMS.splitlines() if line.startswith("`")]
    named = [name for line in heads for name in re.findall(r"`([a-z0-9-]+)`", line)]
    assert [name for name in named if name in script.TOPICS] == list(script.TOPICS)


def test_every_claim_has_one_verdict_and_the_head_counts_them() -> None:
    rows = [line for line in CLAIMS.splitlines() if line.startswith("| ") and not line.startswith("| often said")]
    found: Counter[str] = Counter()
    for row in rows:
        cells = [cell.strip() for cell in row.split("|")[1:-1]]
        assert len(cells) == 3, row
        verdict = re.match(r"\*\*(holds|conditions|wrong|open)\*\*", cells[2])
        assert verdict, row
        found[verdict[1]] += 1
    counted = "Of {} claims {holds} hold, {conditions} hold under conditions, {wrong} are wrong, {open} are open."
    assert says(counted.format(len(rows), **found))


def test_weights_of_70_billion() -> None:
    assert 70e9 * 2 == 140e9
    assert pytest.approx(0.070) == 140e9 / 2e12
    assert says("70e9 × 2 B = 140 GB; / 2 TB/s = 70 ms")


def test_the_product_of_two_squares_is_compute_bound_on_an_a100() -> None:
    work = Matmul(m=4096, k=4096, n=4096, weights="fp16", activations="fp16").work()
    assert work.flops / work.bytes == pytest.approx(4096 / 3, rel=1e-9)
    ridge = A100.peak("fp16") / A100.mem_bandwidth_bytes_per_s
    assert ridge == pytest.approx(312e12 / 2039e9)
    assert work.flops / work.bytes > 8 * ridge
    assert says("n/3 = 1,365 FLOP/byte, nine times the ridge")
    assert says("312e12 / 2039e9 = 153 FLOP/byte")


@pytest.mark.parametrize(
    ("dtype", "fma", "published"),
    [
        ("fp32", 64, 19.5),
        ("tf32", 512, 156),
        ("bf16", 1024, 312),
        ("fp16", 1024, 312),
        ("int8", 2048, 624),
        ("int4", 4096, 1248),
    ],
)
def test_rates_of_an_a100_from_units_and_clock(dtype: str, fma: int, published: float) -> None:
    assert UNITS * fma * 2 * CLOCK / 1e12 == pytest.approx(published, rel=2e-3)
    assert A100.peak(dtype) / 1e12 == pytest.approx(published, rel=2e-3)
    assert says("64, 512, 1024, 1024, 2048, 4096 FMA × 2 × 1.41 GHz = 19.5, 156, 312, 312, 624, 1,247")


def test_four_cores_of_64_are_a_quarter_of_the_peak() -> None:
    assert pytest.approx(78, rel=1e-3) == UNITS * 4 * 64 * 2 * CLOCK / 1e12
    assert pytest.approx(A100.peak("bf16"), rel=1e-3) == 4 * UNITS * 4 * 64 * 2 * CLOCK


def test_levels_of_memory() -> None:
    l1, l2 = UNITS * 128 * CLOCK, 5120 * CLOCK
    assert l1 / 1e12 == pytest.approx(19.5, rel=1e-3)
    ratios = [l1 / l2, l2 / A100.mem_bandwidth_bytes_per_s, A100.mem_bandwidth_bytes_per_s / 32e9]
    assert [f"{ratio:.2g}" for ratio in ratios] == ["2.7", "3.5", "64"]
    assert says("2.7, 3.5 and 64 times")
    assert pytest.approx(0.71, abs=0.005) == 1e9 / CLOCK


@pytest.mark.parametrize("dtype", ["fp16", "int8", "int4"])
def test_narrow_weights_of_a_matrix(dtype: str) -> None:
    bits = {"fp16": 16, "int8": 8, "int4": 4}[dtype]
    held = Matmul(m=1, k=4096, n=4096, weights=dtype, activations="fp16").work().weight_bytes
    assert held == pytest.approx(4096 * 4096 * bits / 8, rel=0.3 if dtype == "int4" else 0.01)  # scales are beside them


def bound(costs: tuple[OpCost, ...], limit: Bound) -> float:
    return sum(cost.latency_s for cost in costs if cost.bound is limit) / sum(cost.latency_s for cost in costs)


def test_decode_is_memory_bound_and_prefill_compute_bound() -> None:
    pair = chipwise.estimate("llama-2-70b", device="a100-sxm-80gb", tp=2)
    assert bound(pair.decode, Bound.MEMORY) > 0.8
    assert bound(pair.prefill, Bound.COMPUTE) > 0.8
    assert pair.tpot_s > 140e9 / 2 / A100.mem_bandwidth_bytes_per_s  # no card is faster than its bandwidth


def test_attention_whose_scores_go_through_memory() -> None:
    tokens, size = 1024, 128
    reads_and_writes = (2 * tokens * size + tokens**2) + 2 * tokens**2 + (tokens**2 + 2 * tokens * size)
    assert standard_attention_io(tokens=tokens, head_size=size) == reads_and_writes
    assert says("4Nd + 4N² values a head")


def test_scores_of_256_by_256_do_not_fit_a_unit() -> None:
    assert 256 * 256 * 4 == 262_144
    l1 = next(level for level in A100.memory if level.name == "l1")
    assert l1.capacity is not None
    assert 3 * 256 * 128 * 2 == 192 * 1024 == l1.capacity.number
    assert says("Scores of 256 × 256 in fp32 are 262 kB; a unit has 197 kB")


def test_training_70_billion_does_not_fit_one_card() -> None:
    assert 70e9 * 16 / 80e9 == 14
    assert says("16 B × 70e9 = 1,120 GB (a), 14 cards' worth")
    layer = 34 * 4096 * 8192
    kept, again = 80 * layer, 80 * 2 * 4096 * 8192 + layer
    assert (round(kept / 1e9), round(again / 1e9, 1), round(kept / again)) == (91, 6.5, 14)


def test_a_gate_costs_half_as_much_again_and_nothing_at_two_thirds_of_the_width() -> None:
    plain, gated, usual = (
        FeedForward(width=width, gated=gate).parameters(4096)
        for width, gate in ((16_384, False), (16_384, True), (10_923, True))
    )
    assert gated / plain == 1.5
    assert usual / plain == pytest.approx(1, abs=1e-4)


def test_where_norms_stand_moves_no_byte_more_or_less() -> None:
    arch = chipwise.resolve("smollm2-135m")
    moved = {
        place: sum(
            cost.work.bytes * cost.count
            for cost in chipwise.estimate(replace(arch, norm_place=place), device="a100-sxm-80gb").prefill
        )
        for place in ("pre", "post")
    }
    assert moved["pre"] == moved["post"]


def test_twelve_thousand_sockets() -> None:
    month_kwh = 0.150 * 24 * 30
    assert month_kwh == pytest.approx(108)
    assert math.floor(200_000 / (month_kwh * 0.15) / 100) * 100 == 12_300
    assert says("12,300 devices")


def test_the_vocabulary_of_gpt2_is_not_aligned() -> None:
    assert (50_257 * 2 % 16, 50_304 * 2 % 16, 50_304 % 128) == (2, 0, 0)


def test_widths_of_bundled_models() -> None:
    widths = {name: chipwise.resolve(name).d_model for name in families.names()}
    whole = sum(width % 128 == 0 for width in widths.values())
    half = sum(width % 128 == 64 for width in widths.values())
    others = {name: width for name, width in widths.items() if width % 64}
    assert sorted(others.values()) == [176, 288, 416]
    assert all("moonshine" in name or "conformer" in name for name in others)
    assert says(f"Of the {len(widths)} bundled models {whole} have a width that is a multiple of 128, {half} of 64")


def test_nothing_points_outside_the_project() -> None:
    assert "shared/" not in CLAIMS
    assert "seeds" not in CLAIMS
