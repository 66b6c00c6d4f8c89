"""Calibration for models of sound: its cases are graphs that run, and cover every node of random models."""

from __future__ import annotations

import numpy as np
import pytest

import chipwise
from chipwise.deploy.calibrate.calibrate import calibrate
from chipwise.deploy.calibrate.kinds import CALIBRATED
from chipwise.deploy.calibrate.microbench import SOUND_KINDS, Bench, cases
from chipwise.deploy.calibrate.random_models import random_transcribers
from chipwise.errors import InputError, Unsupported
from chipwise.model.kinds.sound.form import TRANSCRIBER
from chipwise.model.ops.matmul import ConvOp
from chipwise.model.ops.workload import Phase, Workload
from chipwise.model.walk.lower import lower
from chipwise.predict.cost.terms import terms


@pytest.mark.parametrize("kind", SOUND_KINDS)
def test_cases_are_graphs_that_run(kind: str) -> None:
    case = next(case for case in cases(CALIBRATED["sounds"].cases()) if case.kind == kind)
    seconds = Bench(threads=1).time(case, seconds=0.0)
    assert 0 < seconds < 1
    assert [terms(op)[0].model for op in case.ops()] == [kind if "." in kind else f"elementwise.{kind}"] * case.count


def test_cases_cover_the_nodes_of_random_models() -> None:
    """Every rate that prices a random model is timed by some case; the models can be built and differ."""
    known = {term.model for case in cases(CALIBRATED["sounds"].cases()) for op in case.ops() for term in terms(op)}
    designs = random_transcribers(40, seed=3)
    assert len({design.digest for design in designs}) == 40
    for design in designs:
        assert TRANSCRIBER.builds(design.arch)
        graph = lower(design, Workload(prompt_tokens=1, new_tokens=1), Phase.PREFILL)
        assert {term.model for placed in graph for term in terms(placed.op)} <= known


def test_centred_filters_are_not_priced_as_causal_ones() -> None:
    """Their kernels differ; the work is the same."""
    sizes = {"batch": 1, "positions": 10, "in_channels": 8, "out_channels": 8, "taps": 5, "groups": 8}
    causal, centred = ConvOp(**sizes), ConvOp(**sizes, centred=True)
    assert causal.work() == centred.work()
    assert [terms(op)[0].model for op in (causal, centred)] == ["conv", "conv.centred"]


def test_one_calibration_is_for_one_kind() -> None:
    with pytest.raises(Unsupported, match="sound models are measured in onnxruntime"):
        calibrate(runtime="llama.cpp", kind="sounds")
    with pytest.raises(InputError, match="each has a separate profile"):
        chipwise.calibrate(sounds=True, ranking=True)


def test_random_models_are_of_each_kind() -> None:
    designs = random_transcribers(30, seed=0)
    modules = [design.arch.layers[0].conv for design in designs]
    assert any(module is None for module in modules)
    assert any(module is not None for module in modules)
    assert {design.weights for design in designs} == {"fp32", "int8", "int4"}
    assert len(np.unique([design.arch.max_tokens for design in designs])) >= 4
