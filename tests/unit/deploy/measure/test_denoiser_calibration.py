"""Calibration and costs of denoisers: their nodes have cases, and an image is its steps times a pass."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest

from chipwise.deploy.calibrate.calibrate import blank_profile
from chipwise.deploy.calibrate.learning import Sample
from chipwise.deploy.calibrate.microbench import Bench, cases, image_cases
from chipwise.deploy.calibrate.random_models import random_classifiers
from chipwise.deploy.export.exporters import export_for
from chipwise.deploy.measure.harness import measure
from chipwise.design.targets.cost_model import NotedMeasurement
from chipwise.hardware.device import CheckError, MachineProfile
from chipwise.model.arch.design import Design
from chipwise.model.kinds.denoiser.denoiser import Denoiser
from chipwise.model.kinds.denoiser.form import DENOISER
from chipwise.model.kinds.image.stem import ImageStem
from chipwise.model.ops.workload import Phase, Workload
from chipwise.model.walk.lower import lower
from chipwise.predict.cost.estimate import estimate
from chipwise.predict.cost.terms import terms

REQUEST = Workload(prompt_tokens=1, new_tokens=1)


def random_denoisers(count: int, *, seed: int) -> list[Design]:
    """``count`` different denoisers made of the layers of :func:`random_classifiers`, in 1 to 8 steps."""
    generator = random.Random(seed)
    return [_denoiser(generator, design) for design in random_classifiers(count, seed=seed)]


def _denoiser(generator: random.Random, design: Design) -> Design:
    patch = generator.choice((4, 4, 7, 7, 14))
    stem = ImageStem(image_size=28, patch=patch, channels=generator.choice((1, 3)), prefix_tokens=0)
    layers = tuple(
        replace(layer, attention=layer.attention and replace(layer.attention, relative_buckets=0))
        for layer in design.arch.layers
    )
    arch = replace(
        design.arch,
        name=design.arch.name.replace("classifier", "denoiser"),
        layers=layers,
        stem=stem,
        head=Denoiser(labels=10, frequencies=64, steps=generator.choice((1, 2, 4, 8))),
        max_tokens=stem.tokens,
        norm="layernorm",
        norm_bias=False,
        norm_weight=False,
        positions="learned",
    )
    return replace(design, arch=arch)


def in_steps(design: Design, steps: int) -> Design:
    assert isinstance(design.arch.head, Denoiser)
    denoiser = replace(design.arch.head, steps=steps)
    return replace(design, arch=replace(design.arch, head=denoiser))


def test_every_operator_of_random_denoisers_has_a_case_of_its_kind() -> None:
    known = {term.model for case in cases(image_cases()) for op in case.ops()[:1] for term in terms(op)}
    for design in random_denoisers(40, seed=3):
        assert DENOISER.builds(design.arch)
        needed = {term.model for placed in lower(design, REQUEST, Phase.PREFILL) for term in terms(placed.op)}
        assert needed <= known


def test_waves_are_a_graph_that_runs() -> None:
    case = next(case for case in cases(image_cases()) if case.kind == "sin")
    assert Bench(threads=1).time(case, seconds=0.0) > 0


def test_an_image_is_its_steps_times_a_pass() -> None:
    """With rates of one microsecond a node and four a pass: 5 steps take five times what one takes, node by node."""
    design = in_steps(random_denoisers(1, seed=4)[0], 1)
    graph = lower(design, REQUEST, Phase.PREFILL)
    names = {term.model for placed in graph for term in terms(placed.op)}
    check = CheckError(models=9, mape=0.1, spread=0.1, kendall_tau=0.9)
    blank = blank_profile("onnxruntime", 1)
    profile = MachineProfile(
        **{name: getattr(blank, name) for name in ("machine", "runtime", "runtime_version", "threads", "created")},
        terms={name: {"node": 1e-6} for name in names},
        curves={},
        passes={name: replace(cost, call_s=4e-6) for name, cost in blank.passes.items()},
        memory=type(blank.memory)(base_bytes=1e6, per_table_byte=1.0, per_matrix_byte={design.weights: 1.0}),
        tails={name: replace(tail, extra_s=1e-6) for name, tail in blank.tails.items()},
        checks=dict.fromkeys(("prefill", "prefill_p99", "decode", "memory"), check),
    )
    one, five = (estimate(in_steps(design, steps), graph, graph, REQUEST, profile) for steps in (1, 5))
    nodes = sum(len(terms(placed.op)) for placed in graph)
    assert one.ttft_s == pytest.approx(nodes * 1e-6 + 4e-6)
    for metric in ("ttft_p50", "ttft_p99", "image_s"):
        assert five.metrics[metric].value == pytest.approx(5 * one.metrics[metric].value)
    assert sum(op.latency_s for op in five.prefill) == pytest.approx(5 * nodes * 1e-6)
    assert five.peak_memory_bytes == one.peak_memory_bytes


def test_what_is_learnt_from_an_image_is_a_pass(tmp_path: Path) -> None:
    """The harness times whole images; the cost model's rates are of passes."""
    design = in_steps(random_denoisers(1, seed=5)[0], 4)
    noted = NotedMeasurement(design, REQUEST, {"ttft_p50": 8e-3, "ttft_p99": 12e-3})
    for phase in Phase:
        assert noted.seconds(phase, 0.5) == 2e-3
        assert noted.seconds(phase, 0.99) == 3e-3
    path = export_for("onnxruntime", design, tmp_path)
    found = measure(path, REQUEST, repeats=5, prefills=5, seconds=0.01, attempts=1)
    assert found.encodes
    sample = Sample(design=design, measured=found)
    assert sample.seconds(Phase.PREFILL, 0.5) == found.settled("ttft_p50") / 4
