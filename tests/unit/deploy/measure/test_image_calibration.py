"""Calibration for image classifiers: cases are graphs that run, amounts are those of lowering, sessions read images."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from chipwise.deploy.calibrate.calibrate import blank_profile, calibrate
from chipwise.deploy.calibrate.microbench import IMAGE_KINDS, Bench, cases, image_cases
from chipwise.deploy.calibrate.random_models import random_classifiers
from chipwise.deploy.export.exporters import export_for
from chipwise.deploy.kits.kit_script import _Onnx
from chipwise.deploy.measure.harness import measure
from chipwise.deploy.measure.store import kept_as, save_profile, saved_profile
from chipwise.design.models.this_machine import profile_here
from chipwise.errors import InputError, Unsupported
from chipwise.hardware.device import CheckError, MachineProfile
from chipwise.model.kinds.image.form import CLASSIFIER
from chipwise.model.ops.attention import AttentionOp
from chipwise.model.ops.elementwise import Elementwise
from chipwise.model.ops.matmul import ConvOp
from chipwise.model.ops.pool import PoolOp
from chipwise.model.ops.workload import Phase, Workload
from chipwise.model.walk.lower import lower
from chipwise.predict.cost.estimate import estimate
from chipwise.predict.cost.terms import terms


@pytest.mark.parametrize("kind", IMAGE_KINDS)
def test_each_kind_of_node_is_a_graph_that_runs(kind: str) -> None:
    case = next(case for case in cases(image_cases()) if case.kind == kind)
    assert Bench(threads=1).time(case, seconds=0.0) > 0
    assert len(case.ops()) == case.count


def test_cross_attention_is_timed_as_full_attention_of_other_positions() -> None:
    case = next(case for case in cases(image_cases()) if case.kind == "attention.full" and case.past == 36)
    op = case.ops()[0]
    assert isinstance(op, AttentionOp)
    assert (op.cross, op.query_tokens, op.pairs()) == (True, case.rows, 36 * case.rows)
    assert terms(op)[0].model == "attention.full"
    assert Bench(threads=1).time(case, seconds=0.0) > 0


def test_a_calibration_of_text_models_has_no_image_cases() -> None:
    assert not {case.kind for case in cases()} & set(IMAGE_KINDS)
    assert set(IMAGE_KINDS) <= {case.kind for case in cases(image_cases())}


def test_every_operator_of_random_classifiers_has_a_case_of_its_kind() -> None:
    """The rates that whole models need are those that small graphs give."""
    known = {terms(op)[0].model for case in cases(image_cases()) for op in case.ops()[:1]}
    for design in random_classifiers(60, seed=3):
        assert CLASSIFIER.builds(design.arch)
        graph = lower(design, Workload(), Phase.PREFILL)
        needed = {term.model for placed in graph for term in terms(placed.op)}
        assert {name for name in needed if "vector" not in name} <= known | {"norm.rmsnorm", "norm.skip_rmsnorm"}


def test_amounts_of_a_convolution_and_of_full_attention_by_pencil() -> None:
    """14 x 14 outputs of 9 taps from 3 channels to 8; 50 positions of 2 heads of 16."""
    conv = terms(ConvOp(batch=1, positions=196, in_channels=3, out_channels=8, taps=9, bias=True))[0]
    assert conv.model == "conv.image"
    assert conv.amounts == {"node": 1, "in": 196 * 27, "out": 196 * 8, "products": 196 * 27 * 8}
    attend = AttentionOp(
        batch=1, query_tokens=50, past_tokens=0, heads=2, kv_heads=2, head_size=16, rope=False, causal=False
    )
    found = terms(attend)[0]
    assert found.model == "attention.full"
    assert found.amounts["score"] == 50 * 50 * 2
    assert found.amounts["product"] == 50 * 50 * 2 * 16
    assert terms(PoolOp(batch=2, positions=5, width=8))[0].amounts == {"node": 1, "value": 80}
    assert terms(Elementwise(function="split", elements=30))[0].model == "elementwise.split"


def test_only_runtimes_that_read_images_are_calibrated_for_them() -> None:
    with pytest.raises(Unsupported, match="not in llama"):
        calibrate(runtime="llama.cpp", kind="images")


def test_a_measured_classifier_is_told_as_images(tmp_path: Path) -> None:
    """A fresh process times passes over images and reports their shape."""
    design = random_classifiers(1, seed=1)[0]
    stem = design.arch.stem
    assert stem is not None
    path = export_for("onnxruntime", design, tmp_path)
    found = measure(
        path, Workload(prompt_tokens=1, new_tokens=1, batch=2), repeats=5, prefills=5, seconds=0.01, attempts=1
    )
    assert found.encodes
    assert found.environment["image"] == [stem.channels, stem.image_size, stem.image_size]
    assert len(found.ttft_s) >= 5


def test_a_kit_reads_images_too(tmp_path: Path) -> None:
    design = random_classifiers(1, seed=2)[0]
    path = export_for("onnxruntime", design, tmp_path)
    request = {"model": str(path), "threads": 1, "batch": 3, "prompt_tokens": 1, "new_tokens": 1, "options": {}}
    logits = _Onnx(request).prefill(None)
    assert logits.shape == (3, design.arch.outputs)
    assert np.isfinite(logits).all()


def test_an_estimate_of_images_has_no_time_per_token() -> None:
    """With rates of one microsecond a node: a pass is its nodes, and images a second follow from it."""
    design = random_classifiers(1, seed=4)[0]
    graph = lower(design, Workload(), Phase.PREFILL)
    names = {term.model for placed in graph for term in terms(placed.op)}
    check = CheckError(models=9, mape=0.1, spread=0.1, kendall_tau=0.9)
    blank = blank_profile("onnxruntime", 1)
    profile = MachineProfile(
        **{name: getattr(blank, name) for name in ("machine", "runtime", "runtime_version", "threads", "created")},
        terms={name: {"node": 1e-6} for name in names},
        curves={},
        passes=blank.passes,
        memory=type(blank.memory)(base_bytes=1e6, per_table_byte=1.0, per_matrix_byte={"fp32": 1.0}),
        tails=blank.tails,
        checks=dict.fromkeys(("prefill", "decode", "memory"), check),
    )
    found = estimate(design, graph, graph, Workload(batch=2), profile)
    assert found.tpot_s == 0
    assert found.decode == ()
    assert "tpot_p50" not in found.metrics
    assert found.metrics["image_s"].value == pytest.approx(found.ttft_s / 2)


def test_the_profile_for_images_is_kept_beside_that_for_tokens(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A model that reads images asks for it, and says how to make it; models of tokens do not see it."""
    monkeypatch.setattr("chipwise.deploy.measure.store.data_folder", lambda: tmp_path)
    profile = blank_profile("onnxruntime", 1)
    save_profile(profile, runtime=kept_as("onnxruntime", "images"), threads=1)
    assert saved_profile("onnxruntime", 1) is None
    assert saved_profile(kept_as("onnxruntime", "images"), 1) is not None
    with pytest.raises(InputError, match="--images"):
        profile_here("openvino", kind="images")
