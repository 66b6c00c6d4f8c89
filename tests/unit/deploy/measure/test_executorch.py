"""ExecuTorch in an environment of its own: everything but its two programs with a stand-in, and the real ones if they
are there.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import chipwise
from chipwise.api.testing.backend_suite import ExportedSuite, torch_logits
from chipwise.core.environments import install_command, lacking, python_of
from chipwise.deploy.export.exporters import export_for, reference_model
from chipwise.deploy.export.onnx import random_weights
from chipwise.deploy.runtimes import RUNTIMES, missing
from chipwise.deploy.runtimes.torch_serving import load
from chipwise.errors import MeasurementError, Unreachable, Unsupported
from chipwise.model.arch.arch import uniform
from chipwise.model.arch.design import Design
from chipwise.model.blocks.quantize import Grid, Packing
from chipwise.model.walk.calibration import restored
from support.stand_in_program import write_program

ARCH = uniform(vocab_size=40, d_model=32, depth=2, heads=2, kv_heads=1, ffn_width=64, max_tokens=16)
LAYER = ARCH.layers[0]
DIFFERENT = replace(ARCH, layers=(LAYER, replace(LAYER, attention=None), replace(LAYER, shares=0)))


@pytest.fixture
def stand_in(tmp_path, monkeypatch):
    """A program in the place of the environment's Python."""
    program = write_program(tmp_path / "python")
    monkeypatch.setenv("CHIPWISE_EXECUTORCH", str(program))
    monkeypatch.setenv("CHIPWISE_HOME", str(tmp_path / "home"))  # of the reference model
    reference_model.cache_clear()
    yield program
    reference_model.cache_clear()


@pytest.mark.usefixtures("stand_in")
class TestStandIn(ExportedSuite):
    runtime = "executorch"
    design = Design(arch=DIFFERENT)


@pytest.fixture
def nothing(tmp_path, monkeypatch):
    """No environment, and an empty cache."""
    monkeypatch.delenv("CHIPWISE_EXECUTORCH", raising=False)
    monkeypatch.setenv("CHIPWISE_CACHE", str(tmp_path / "a cache"))


def test_a_missing_environment_is_one_line_that_says_how_to_make_it(nothing, tmp_path) -> None:
    with pytest.raises(Unreachable) as refused:
        export_for("executorch", Design(arch=ARCH), tmp_path)
    assert install_command("executorch") in str(refused.value)
    assert str(refused.value).count("\n") == 0
    assert f"'{tmp_path}/a cache/executorch'/bin/pip install executorch==" in install_command("executorch")
    assert install_command("executorch") in missing("executorch")
    with pytest.raises(Unreachable, match="python3 -m venv"):
        chipwise.calibrate(runtime="executorch", seconds=1)


def test_an_environment_is_found_in_the_cache_and_by_its_variable(nothing, tmp_path, monkeypatch) -> None:
    place = tmp_path / "a cache" / "executorch" / "bin"
    place.mkdir(parents=True)
    (place / "python").touch(mode=0o755)
    assert python_of("executorch") == place / "python"
    assert lacking("executorch") is None
    monkeypatch.setenv("CHIPWISE_EXECUTORCH", str(tmp_path / "none"))
    assert "CHIPWISE_EXECUTORCH names" in lacking("executorch")
    monkeypatch.setenv("CHIPWISE_EXECUTORCH", str(place.parent))  # the folder stands for its Python
    assert python_of("executorch") == place / "python"


def test_a_program_that_cannot_start_is_an_error_with_its_last_words(stand_in, tmp_path) -> None:
    stand_in.write_text(f"#!{sys.executable}\nraise SystemExit('No module named executorch')\n")
    with pytest.raises(MeasurementError, match=r"executorch process.*No module named executorch"):
        RUNTIMES.load("executorch")().open(tmp_path, capacity=2, batch=1, threads=1, options={})


@pytest.mark.parametrize(
    ("design", "why"),
    [
        (Design(arch=replace(ARCH, layers=(replace(LAYER, attention_conv=4),))), "convolution"),
        (Design(arch=replace(ARCH, layers=(replace(LAYER, attention=replace(LAYER.attention, window=4)),))), "window"),
        (Design(arch=ARCH, weights="bf16"), "ExecuTorch files store weights in fp32, int8, int4, not in bf16"),
        (Design(arch=replace(ARCH, d_model=48), weights="int4"), "multiple of 32, not 48"),
    ],
)
def test_what_its_files_lack_is_refused(stand_in, tmp_path, design, why) -> None:
    with pytest.raises(Unsupported, match=why):
        export_for("executorch", design, tmp_path)


def test_a_second_sequence_is_refused() -> None:
    with pytest.raises(Unsupported, match="one sequence"):
        RUNTIMES.load("executorch")().open(Path("m.pte"), capacity=2, batch=2, threads=1, options={})


real = [pytest.mark.slow, pytest.mark.timeout(1200)]
real += [pytest.mark.skipif(missing("executorch") is not None, reason=f"{missing('executorch')}")]


class TestExecuTorch(ExportedSuite):
    pytestmark = real
    runtime = "executorch"
    design = Design(arch=DIFFERENT)


class TestLearnedPositions(ExportedSuite):
    pytestmark = real
    runtime = "executorch"
    attention = replace(LAYER.attention, rope=False, qkv_bias=True, out_bias=True)
    ffn = replace(LAYER.ffn, width=48, activation="gelu", gated=False, bias=True)
    design = Design(
        arch=replace(
            ARCH,
            layers=(replace(LAYER, attention=attention, ffn=ffn),),
            positions="learned",
            norm="layernorm",
            norm_bias=True,
        )
    )


FORMATS = "int4/int8 head:int8"


def as_stored(held):
    """The weights that chipwise rounds for ExecuTorch, whose scales are positive."""
    return restored(Design(arch=ARCH, weights=FORMATS), held, Packing(grid=Grid(positive=True)))


def test_matrices_are_rounded_by_chipwise(stand_in, tmp_path) -> None:
    """The converter gets the rounded matrices; the table, of which the head was a copy, stays as it is."""
    held = random_weights(ARCH, seed=0)
    path = export_for("executorch", Design(arch=ARCH, weights=FORMATS), tmp_path, weights=held)
    found = {name: value.numpy() for name, value in load(path)[0].state_dict().items()}
    for name, value in as_stored(held)[1].items():
        np.testing.assert_array_equal(found[name], value)
    np.testing.assert_array_equal(found["embedding.weight"], held["embedding.weight"])


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.skipif(missing("executorch") is not None, reason=f"{missing('executorch')}")
def test_narrow_weights_are_those_of_chipwise(tmp_path) -> None:
    """What is left are activations in int8: one in 255 of a position's range, in seven products in turn."""
    held = random_weights(ARCH, seed=0)
    path = export_for("executorch", Design(arch=ARCH, weights=FORMATS), tmp_path, weights=held)
    session = RUNTIMES.load("executorch")().open(path, capacity=12, batch=1, threads=1, options={})
    tokens = np.random.default_rng(0).integers(0, 40, (1, 12))
    wanted = torch_logits(*as_stored(held), tokens)[:, -1]
    error = np.abs(session.prefill(tokens) - wanted).max() / wanted.std()
    assert 1e-4 < error < 0.1
