"""LiteRT in an environment of its own: everything but its two programs with a stand-in, and the real ones if there.

What it shares with ExecuTorch is tested there.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import chipwise
from chipwise.api.testing.backend_suite import ExportedSuite, torch_logits
from chipwise.core.environments import install_command
from chipwise.deploy.export.exporters import export_for, reference_model
from chipwise.deploy.export.hf import save_pretrained
from chipwise.deploy.export.onnx import random_weights
from chipwise.deploy.runtimes import RUNTIMES, missing, table_name
from chipwise.errors import Unreachable, Unsupported
from chipwise.hardware.runtime import runtime_named
from chipwise.model.arch.arch import uniform
from chipwise.model.arch.design import Design
from chipwise.model.blocks.quantize import Grid, Packing
from chipwise.model.walk.calibration import restored
from support.stand_in_program import write_program

ARCH = uniform(vocab_size=40, d_model=32, depth=2, heads=4, kv_heads=2, ffn_width=64, max_tokens=64)
LAYER = ARCH.layers[0]
DIFFERENT = replace(ARCH, layers=(LAYER, replace(LAYER, attention=None), replace(LAYER, shares=0)))
PLAIN = replace(
    ARCH,
    layers=(
        replace(
            LAYER,
            attention=replace(LAYER.attention, rope=False, qkv_bias=True, out_bias=True),
            ffn=replace(LAYER.ffn, width=96, activation="gelu", gated=False, bias=True),
        ),
    ),
    positions="learned",
    norm="layernorm",
    norm_bias=True,
)
FORMATS = "int4/int8 head:int8"
real = [pytest.mark.slow, pytest.mark.timeout(1200)]
real += [pytest.mark.skipif(missing("litert") is not None, reason=f"{missing('litert')}")]


@pytest.fixture
def stand_in(tmp_path, monkeypatch):
    """A program in the place of the environment's Python."""
    monkeypatch.setenv("CHIPWISE_LITERT", str(write_program(tmp_path / "python")))
    monkeypatch.setenv("CHIPWISE_HOME", str(tmp_path / "home"))  # of the reference model
    reference_model.cache_clear()
    yield
    reference_model.cache_clear()


@pytest.mark.usefixtures("stand_in")
class TestStandIn(ExportedSuite):
    runtime = "litert"
    design = Design(arch=DIFFERENT)


@pytest.mark.usefixtures("stand_in")
def test_an_export_is_compared_with_torch(tmp_path) -> None:
    folder = save_pretrained(ARCH, random_weights(ARCH, seed=0), None, tmp_path / "model")
    found = chipwise.export(folder, to="tflite", out=tmp_path / "out")
    assert set(found.files) == {"model.tflite"}
    assert found.verified[0].runtime == "LiteRT"
    assert found.verified[0].decode_steps == 32
    assert found.run == f"chipwise measure {tmp_path}/out/model.tflite --runtime litert"
    assert "on a phone" in found.unverified[0]


def test_a_missing_environment_is_one_line_that_says_how_to_make_it(tmp_path, monkeypatch) -> None:
    monkeypatch.delenv("CHIPWISE_LITERT", raising=False)
    monkeypatch.setenv("CHIPWISE_CACHE", str(tmp_path / "cache"))
    with pytest.raises(Unreachable) as refused:
        export_for("litert", Design(arch=ARCH), tmp_path)
    assert install_command("litert") in str(refused.value)
    assert str(refused.value).count("\n") == 0
    assert f"{tmp_path}/cache/litert/bin/pip install litert-torch==" in missing("litert")


@pytest.mark.parametrize(
    ("design", "why"),
    [
        (Design(arch=replace(ARCH, layers=(replace(LAYER, attention_conv=4),))), "convolution; LiteRT files"),
        (Design(arch=replace(ARCH, layers=(replace(LAYER, attention=replace(LAYER.attention, window=4)),))), "window"),
        (Design(arch=ARCH, weights="bf16"), "LiteRT files store weights in fp32, int8, int4, not in bf16"),
        (Design(arch=uniform(vocab_size=2**20, d_model=1024, depth=1, heads=2, ffn_width=8)), "2 GiB"),
    ],
)
def test_what_its_files_lack_is_refused(tmp_path, design, why) -> None:
    with pytest.raises(Unsupported, match=why):
        export_for("litert", design, tmp_path, weights={})


def test_its_name_is_another_one_of_the_runtime_that_is_estimated() -> None:
    assert runtime_named("litert").name == "litert-lm"
    assert {table_name(name) for name in ("litert", "tflite", "litert-lm")} == {"litert"}


def test_a_second_sequence_is_refused() -> None:
    with pytest.raises(Unsupported, match="LiteRT holds one sequence"):
        RUNTIMES.load("litert")().open(Path("m.tflite"), capacity=2, batch=2, threads=1, options={})


class TestLiteRt(ExportedSuite):
    pytestmark = real
    runtime = "litert"
    design = Design(arch=DIFFERENT)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.skipif(missing("litert") is not None, reason=f"{missing('litert')}")
@pytest.mark.parametrize(
    "arch",
    [
        PLAIN,
        replace(ARCH, layers=(replace(LAYER, attention=replace(LAYER.attention, qk_norm=True)),)),
        replace(ARCH, max_tokens=16),
    ],
    ids=["LayerNorm, biases, no gate, learned positions", "norms of queries and keys", "few positions"],
)
def test_other_blocks(tmp_path, arch) -> None:
    held = {name: value + 0.1 if value.ndim == 1 else value for name, value in random_weights(arch, seed=0).items()}
    path = export_for("litert", Design(arch=arch), tmp_path, weights=held)
    session = RUNTIMES.load("litert")().open(path, capacity=12, batch=1, threads=1, options={})
    tokens = np.random.default_rng(0).integers(0, 40, (1, 12))
    wanted = torch_logits(arch, held, tokens)
    found = [session.prefill(tokens[:, :7])] + [session.decode(tokens[:, n : n + 1]) for n in range(7, 12)]
    assert np.abs(np.stack(found, 1) - wanted[:, 6:]).max() < 1e-4 * wanted.std()


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.skipif(missing("litert") is not None, reason=f"{missing('litert')}")
@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 2), (4, 1), (1, 1)])
def test_prompts_of_any_length(tmp_path, heads, kv_heads) -> None:
    """Whole passes, a part of one, single tokens, and the last position; also with a cache of fewer positions."""
    attention = replace(LAYER.attention, heads=heads, kv_heads=kv_heads)
    arch = replace(ARCH, layers=(replace(LAYER, attention=attention),))
    held = random_weights(arch, seed=0)
    path = export_for("litert", Design(arch=arch), tmp_path, weights=held)
    tokens = np.random.default_rng(0).integers(0, 40, (1, 64))
    wanted = torch_logits(arch, held, tokens)
    for capacity, lengths in ((64, (1, 4, 5, 31, 32, 33, 36, 37, 63, 64)), (40, (3, 37, 40))):
        session = RUNTIMES.load("litert")().open(path, capacity=capacity, batch=1, threads=2, options={})
        for length in lengths:
            found = session.prefill(tokens[:, :length])
            assert np.abs(found - wanted[:, length - 1]).max() < 1e-4 * wanted.std()


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.skipif(missing("litert") is not None, reason=f"{missing('litert')}")
@pytest.mark.parametrize("arch", [ARCH, PLAIN], ids=["rotary", "learned positions"])
def test_narrow_weights_are_those_of_chipwise(tmp_path, arch) -> None:
    """What is left are activations in int8, one in 255 of a position's range, and scales of int4 in 8 bits."""
    held, sizes = random_weights(arch, seed=0), {}
    for weights in ("fp32", FORMATS if len(arch.layers) > 1 else "int4 head:int8"):
        design = Design(arch=arch, weights=weights)
        path = export_for("litert", design, tmp_path / weights.replace("/", "-"), weights=held)
        sizes[weights] = path.stat().st_size
    session = RUNTIMES.load("litert")().open(path, capacity=12, batch=1, threads=1, options={})
    tokens = np.random.default_rng(0).integers(0, 40, (1, 12))
    wanted = torch_logits(*restored(design, held, Packing(grid=Grid(positive=True))), tokens)[:, -1]
    error = np.abs(session.prefill(tokens) - wanted).max() / wanted.std()
    assert 1e-4 < error < 0.15
    matrices = sum(value.size for name, value in held.items() if value.ndim == 2 and "embedding" not in name)
    assert sizes["fp32"] - sizes[weights] > 2 * matrices
