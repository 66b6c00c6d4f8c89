"""Formats matrix by matrix: chosen by time and loss on a made-up clock, exported as chosen."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest

from chipwise.deploy.export.onnx import export, random_weights
from chipwise.deploy.runtimes.onnxruntime import OnnxRanker
from chipwise.model.arch.arch import ArchSpec
from chipwise.model.arch.design import Design
from chipwise.model.arch.feed_forward import FeedForward
from chipwise.model.arch.formats import WeightFormats
from chipwise.model.arch.layer import Layer
from chipwise.model.arch.mixers import Attention
from chipwise.model.kinds.ranking.stem import RankingStem, Similarity
from chipwise.model.walk.weights import matrices_of
from chipwise.training.tasks.selective_precision import ALL, Selection, faster, select

QKV, OUT, UP, DOWN = "0.qkv", "0.out", "0.up", "0.down"


def design() -> Design:
    """One layer of width 32 over six items and four candidates."""
    attention = Attention(heads=2, kv_heads=2, head_size=16, rope=False, relative_buckets=7)
    layer = Layer(attention=attention, ffn=FeedForward(width=48, gated=False, activation="relu"))
    stem = RankingStem(items=30, history=6, candidates=4)
    arch = ArchSpec(stem=stem, head=Similarity(), d_model=32, layers=(layer,), max_tokens=7, positions="none")
    return Design(arch=arch)


def narrow_in(formats: WeightFormats) -> dict[str, str]:
    """The matrices that are not FP32."""
    found = {name: formats.of(name) for name in matrices_of(design().arch)}
    return {name: form for name, form in found.items() if form != "fp32"}


def formats_of(path: Path) -> dict[str, str]:
    """The narrow matrices in a file."""
    facts = json.loads({item.key: item.value for item in onnx.load(path).metadata_props}["chipwise"])
    return narrow_in(Design(arch=design().arch, weights=facts["weights"]).formats)


class Machine:
    """A pass takes 100 s and what each narrow matrix adds; a file loses 0.5 and what each adds."""

    def __init__(self, seconds: dict[str, float], losses: dict[str, float]) -> None:
        self.now, self.seconds, self.losses = 0.0, seconds, losses

    def opened(self, path: Path) -> Callable[[], None]:
        taken = 100.0 + sum(self.seconds.get(name, 0.0) for name in formats_of(path))

        def run() -> None:
            self.now += taken

        return run

    def judged(self, tried: Design, path: Path) -> float:
        assert narrow_in(tried.formats) == formats_of(path)
        return 0.5 + sum(self.losses.get(name, 0.0) for name in formats_of(path))

    def select(self, folder: Path) -> Selection:
        return select(
            design(),
            random_weights(design().arch, seed=0),
            folder,
            opened=self.opened,
            judged=self.judged,
            clock=lambda: self.now,
        )


def test_what_is_faster_and_loses_little_is_kept(tmp_path: Path) -> None:
    """A gain of 0.5 allows a loss of 0.0005: of three faster matrices one loses too much, the fourth is slower."""
    machine = Machine({QKV: -20, UP: -10, DOWN: -5, OUT: +3}, {UP: 0.0003, DOWN: 0.0003})
    found = machine.select(tmp_path)
    assert found.weights == "fp32 0.qkv:int8 0.up:int8"
    assert (found.fp32_seconds, found.seconds) == (100.0, 70.0)
    assert found.loss == pytest.approx(0.5003)
    tried = {row.name: row for row in found.tried}
    assert tried[OUT].loss is None, "what is slower need not be judged"
    assert tried[DOWN].loss == pytest.approx(0.5006)
    assert not tried[DOWN].kept
    assert not list(tmp_path.iterdir()), "files are removed"


def test_a_uniform_format_is_the_start_where_it_is_faster_and_what_slows_it_is_widened(tmp_path: Path) -> None:
    """All together save 7 s and lose 0.0004; then the output matrix, which costs 3 s, is FP32 again: 10 s are saved."""
    machine = Machine({QKV: -5, UP: -3, DOWN: -2, OUT: +3}, {UP: 0.0004})
    found = machine.select(tmp_path)
    assert found.tried[0].name == ALL
    assert found.tried[0].kept
    assert found.tried[0].seconds_ratio == pytest.approx(0.93)
    assert narrow_in(Design(arch=design().arch, weights=found.weights).formats) == dict.fromkeys(
        (QKV, UP, DOWN), "int8"
    )
    assert found.seconds == 90.0
    widened = [row for row in found.tried if row.weight_format == "fp32"]
    assert [row.name for row in widened if row.kept] == [OUT]


def test_where_nothing_is_faster_all_stays_as_it_was(tmp_path: Path) -> None:
    found = Machine(dict.fromkeys((QKV, UP, DOWN, OUT), 0.0), {}).select(tmp_path)
    assert found.weights == "fp32"
    assert found.seconds == found.fp32_seconds
    assert found.loss == found.fp32_loss


def test_one_lucky_pass_makes_nothing_faster() -> None:
    """Half of the pairs are no majority; a tenth of a per cent is noise even if it is always there."""
    ones = np.ones(100)
    assert not faster(ones, np.where(np.arange(100) < 50, 0.1, 1.1))
    assert not faster(ones, ones * 0.999)
    assert faster(ones, ones * 0.9)


def test_single_matrices_are_exported_in_their_formats(tmp_path: Path) -> None:
    """The narrow one is stored as integers with scales, all others as they were; the scores stay near."""
    chosen, weights = design(), random_weights(design().arch, seed=0)
    ids = np.random.default_rng(0).integers(0, 31, (1, 10, 1))
    plain = OnnxRanker(export(chosen, weights, tmp_path / "plain.onnx")).prefill(ids).copy()
    path = export(Design(arch=chosen.arch, weights="fp32 0.up:int8"), weights, tmp_path / "mixed.onnx")
    stored = {tensor.name for tensor in onnx.load(path).graph.initializer}
    places = {f"layers.0.{name}.weight" for name in ("attention.qkv", "attention.out", "ffn.down")}
    assert {"layers.0.ffn.up.int8", "layers.0.ffn.up.scale", *places} <= stored
    assert "layers.0.ffn.up.weight" not in stored
    change = np.abs(OnnxRanker(path).prefill(ids) - plain).max()
    assert 0 < change < 0.1 * np.abs(plain).max()
