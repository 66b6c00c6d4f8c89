"""Ranking models under load: tables dealt out over devices, a request's history computed once, plans that need both."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import chipwise
from chipwise.design.fleet.answer import planned
from chipwise.design.fleet.question import FleetQuestion
from chipwise.errors import DoesNotFit
from chipwise.model.arch import io
from chipwise.model.arch.arch import ArchSpec
from chipwise.model.arch.feed_forward import FeedForward
from chipwise.model.arch.layer import Layer
from chipwise.model.arch.mixers import Attention
from chipwise.model.kinds.ranking.stem import RankingStem, Scores
from chipwise.model.ops.collective import CollectiveOp
from chipwise.model.ops.embedding import EmbeddingOp
from chipwise.predict.served.deployment import deployed
from chipwise.predict.served.estimate import cost_of, estimate
from chipwise.predict.served.lowering import lower_pass
from chipwise.predict.served.request import Request, resolved
from chipwise.predict.served.setting import Step

WIDTH, HISTORY, CANDIDATES = 64, 30, 10


def ranker(items: int = 10**6, candidates: int = CANDIDATES, depth: int = 2) -> ArchSpec:
    attention = Attention(heads=2, kv_heads=2, head_size=32, rope=False, relative_buckets=HISTORY + 1)
    layer = Layer(attention=attention, ffn=FeedForward(width=256, activation="gelu", gated=False))
    stem = RankingStem(items=items, history=HISTORY, candidates=candidates)
    return ArchSpec(
        name="ranker",
        stem=stem,
        head=Scores(),
        d_model=WIDTH,
        layers=(layer,) * depth,
        max_tokens=HISTORY + 1,
        positions="none",
    )


def asked(arch: ArchSpec | None = None, **fields: object) -> Request:
    settings: dict[str, object] = {"device": "h100-sxm", "weights": "bf16", "batch": 8}
    return Request(model=arch or ranker(), **deployed(settings | fields))


def parts(request: Request, batch: int) -> dict[str, object]:
    step = Step(batch=batch, query_tokens=HISTORY + CANDIDATES, past_tokens=0)
    return {part.place: part.op for part in lower_pass(resolved(request).setting, step)}


def test_rows_cross_between_the_devices_that_share_the_tables() -> None:
    """Eight requests of 40 positions: 320 numbers of 4 bytes go out, 320 rows of 64 values in 16 bits come back."""
    ops = parts(asked(dp=4, batch=32), 8)
    numbers, rows, table = (ops[f"stem.{name}"] for name in ("ids", "rows", "items"))
    assert isinstance(numbers, CollectiveOp)
    assert isinstance(rows, CollectiveOp)
    assert isinstance(table, EmbeddingOp)
    assert (numbers.collective, numbers.payload_bytes, numbers.devices) == ("all_to_all", 320 * 4, 4)
    assert (rows.collective, rows.payload_bytes, rows.devices) == ("all_to_all", 320 * 64 * 2, 4)
    assert table.rows == -(-(10**6 + 1) // 4)
    alone = parts(asked(), 8)
    assert not any(isinstance(op, CollectiveOp) for op in alone.values())


def test_a_table_larger_than_a_device_fits_on_several() -> None:
    """A billion rows of 64 values in 16 bits are 128 GB: 32 GB on each of four."""
    huge = ranker(items=10**9)
    with pytest.raises(DoesNotFit):
        estimate(asked(huge))
    held = [float(cost_of(asked(huge, dp=dp, batch=8 * dp)).memory.weights[0]) for dp in (4, 8)]
    assert held[0] == pytest.approx(32e9, rel=0.01)
    assert held[1] == pytest.approx(16e9, rel=0.01)


def test_a_history_is_computed_once_for_all_candidates() -> None:
    """Fifty candidates in one request cost far less than fifty requests of one, and more than one of them."""
    many, one = (
        float(cost_of(asked(ranker(candidates=count, depth=4), batch=64)).step_s[0]) for count in (50, 1)
    )  # fmt: skip
    assert one < many < 0.2 * 50 * one


def test_one_client_meets_what_the_estimate_says(tmp_path: Path) -> None:
    path = tmp_path / "ranker.yaml"
    io.save(ranker(), path)
    found = chipwise.simulate(path, device="h100-sxm", clients=1, requests=5, seeds=1, weights="bf16")
    alone = chipwise.estimate(path, device="h100-sxm", weights="bf16")
    assert found.times["e2e_mean"].value == pytest.approx(alone.ttft_s, rel=0.01)
    image = chipwise.simulate("google/vit-base-patch16-224", device="l4", clients=1, requests=5, seeds=1)
    alone = chipwise.estimate("google/vit-base-patch16-224", device="l4")
    assert image.times["e2e_mean"].value == pytest.approx(alone.ttft_s, rel=0.01)


def test_requests_that_share_a_step_raise_what_is_served(tmp_path: Path) -> None:
    path = tmp_path / "ranker.yaml"
    io.save(ranker(), path)
    settings = {"device": "h100-sxm", "weights": "bf16", "rate": 3000, "requests": 2000, "seeds": 1}
    together, apart = (chipwise.simulate(path, max_sequences=n, max_tokens=n, **settings) for n in (256, 1))
    assert together.saturation_per_s > 3 * apart.saturation_per_s
    assert together.times["e2e_p99"].value < apart.times["e2e_p99"].value


def test_a_plan_deals_the_tables_out_where_one_device_cannot_hold_them(tmp_path: Path) -> None:
    path = tmp_path / "ranker.yaml"
    io.save(ranker(items=5 * 10**8), path)
    question = FleetQuestion(
        model=str(path), rate_per_s=2000.0, devices=("h100-sxm", "l40s"), tp=(1,), dp=(1, 2, 4),
        weights=("bf16",), limits={"ttft_p99": 0.02}, requests=60,
    )  # fmt: skip
    found = planned(question)
    assert {option.device for option in found.options} == {"h100-sxm", "l40s"}
    # 64 GB of rows: most of an H100, more than an L40S
    assert {option.device: option.dp for option in found.options} == {"h100-sxm": 1, "l40s": 2}
    assert not found.best.commands
    small = planned(replace(question, model=str(_saved(tmp_path, ranker()))))
    assert small.best.dp == 1


def _saved(folder: Path, arch: ArchSpec) -> Path:
    path = folder / "small.yaml"
    io.save(arch, path)
    return path
