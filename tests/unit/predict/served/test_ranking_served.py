"""Ranking models on chips that are not here: candidates together and apart, tables dealt out over devices."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

import chipwise
from chipwise.cli.app import app
from chipwise.errors import SpecError, Unsupported
from chipwise.model.arch.arch import ArchSpec
from chipwise.model.arch.feed_forward import FeedForward
from chipwise.model.arch.io import save
from chipwise.model.arch.layer import Layer
from chipwise.model.arch.mixers import Attention
from chipwise.model.kinds.ranking.stem import RankingStem, Similarity
from chipwise.model.ops.attention import AttentionOp
from chipwise.model.ops.collective import CollectiveOp
from chipwise.model.ops.embedding import EmbeddingOp
from chipwise.model.ops.matmul import Matmul
from chipwise.model.ops.pool import PoolOp
from chipwise.predict.served.deployment import Deployment
from chipwise.predict.served.lowering import lower_pass
from chipwise.predict.served.request import Request, resolved
from chipwise.predict.served.setting import PlacedOp, Step


def ranker(
    *, pointwise: bool = True, shards: int = 1, items: int = 1_000_000, width: int = 0, bag: int = 0
) -> ArchSpec:
    """Eight layers of width 256 after a history of 200; 64 candidates."""
    stem = RankingStem(items=items, history=200, candidates=64, width=width, shards=shards, bag=bag, tags=100 * bag)
    attention = Attention(heads=4, kv_heads=4, head_size=64, rope=False, relative_buckets=201, pointwise=pointwise)
    ffn = None if pointwise else FeedForward(width=1024)
    return ArchSpec(
        name="ranker",
        stem=stem,
        head=Similarity(),
        d_model=256,
        layers=(Layer(attention=attention, ffn=ffn),) * 8,
        max_tokens=201,
        positions="none",
    )


def parts(arch: ArchSpec) -> list[PlacedOp]:
    """The kernels of a pass over one request on an H100, in 16 bits."""
    setting = resolved(Request(model=arch, deployment=Deployment(device="h100-sxm", runtime="torch-compile"))).setting
    return list(lower_pass(setting, Step(batch=1, query_tokens=264, past_tokens=0)))


def test_a_request_reads_its_history_once() -> None:
    """200 items see 1 + … + 200, 64 candidates 201 each; the products have 264 rows; nothing is kept."""
    found = parts(ranker(pointwise=False))
    attention = [part.op for part in found if isinstance(part.op, AttentionOp)]
    assert [op.pairs() for op in attention] == [200 * 201 // 2, 64 * 201]
    assert {part.op.m for part in found if isinstance(part.op, Matmul)} == {264}
    assert not any("kv_write" in str(getattr(part.op, "function", "")) for part in found)


def test_tables_that_are_dealt_out_take_a_share_of_the_memory_and_two_exchanges() -> None:
    """Rows of 512 bytes: an eighth of them lies here; 4 bytes an item go out, its row of 512 comes back."""
    whole, dealt = parts(ranker()), parts(ranker(shards=8))
    assert not any(isinstance(part.op, CollectiveOp) for part in whole)
    sent = [part.op for part in dealt if isinstance(part.op, CollectiveOp)]
    assert [(op.collective, op.devices, op.payload_bytes) for op in sent] == [
        ("all_to_all", 8, 264 * 4),
        ("all_to_all", 8, 264 * 512),
    ]
    rows = [next(part.op.rows for part in each if isinstance(part.op, EmbeddingOp)) for each in (whole, dealt)]
    assert rows == [1_000_001, 125_001]
    held = [chipwise.estimate(ranker(shards=count), device="h100-sxm").memory_bytes["weights"] for count in (1, 8)]
    assert held[0] - held[1] == pytest.approx(7 / 8 * 1_000_001 * 512, rel=1e-3)


def test_tags_are_summed_where_their_rows_lie() -> None:
    """Of an item with three tags four ids of 4 bytes go out, and two rows of 512 bytes come back."""
    ops = [part.op for part in parts(ranker(shards=8, bag=3))]
    assert [op.payload_bytes for op in ops if isinstance(op, CollectiveOp)] == [264 * 4 * 4, 2 * 264 * 512]
    assert [(op.tokens, op.rows) for op in ops if isinstance(op, EmbeddingOp)] == [(264, 125_001), (3 * 264, 38)]
    (bag,) = (op for op in ops if isinstance(op, PoolOp))
    assert (bag.batch, bag.positions, bag.width) == (264, 3, 256)


@pytest.mark.parametrize("device", ["h100-sxm", "l4", "mi300x", "xeon-8480-plus"])
def test_together_is_never_slower_than_apart_and_one_is_one(device: str) -> None:
    found = chipwise.candidates(ranker(), device=device, counts=[1, 32, 512])
    assert found[0].times_cheaper == pytest.approx(1.0)
    cheaper = [row.times_cheaper for row in found]
    assert cheaper == sorted(cheaper)
    assert cheaper[-1] > 3  # 512 histories of 200 items are 145 times the positions of one with 512 candidates


def test_an_exchange_costs_time_and_narrow_rows_less_of_it() -> None:
    alone, dealt, narrow = (
        chipwise.estimate(ranker(shards=shards, width=width), device="h100-sxm").ttft_s
        for shards, width in ((1, 0), (8, 0), (8, 32))
    )
    assert dealt > alone
    assert narrow < dealt + 2e-5  # less to send, one small product more


def test_estimates_are_in_requests() -> None:
    found = chipwise.estimate(ranker(), device="l4", batch=4)
    assert found.metrics["request_s"].value == pytest.approx(found.ttft_s / 4)
    assert "tpot_p50" not in found.metrics
    assert "usd_per_1k_requests" in found.metrics


def test_the_command_prints_a_row_for_each_count(tmp_path: Path) -> None:
    save(ranker(), tmp_path / "ranker.yaml")
    asked = ["candidates", str(tmp_path / "ranker.yaml"), "--device", "l4", "--counts", "1,128"]
    done = CliRunner().invoke(app, asked)
    assert done.exit_code == 0, done.output
    assert "128" in done.output
    assert "times cheaper" in done.output
    rows = json.loads(CliRunner().invoke(app, [*asked, "--shards", "4", "--json"]).output)
    assert [row["candidates"] for row in rows] == [1, 128]
    assert rows[1]["times_cheaper"] > 2


def test_mistakes_are_named() -> None:
    with pytest.raises(Unsupported, match="does not rank candidates"):
        chipwise.candidates("gpt2")
    with pytest.raises(SpecError, match="at least one number"):
        chipwise.candidates(ranker(), counts=[])
    with pytest.raises(SpecError, match="at least 1, not 0"):
        chipwise.candidates(ranker(), counts=[0])
