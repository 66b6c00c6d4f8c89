"""Packages for Core ML: all but the converter with a stand-in, and the real one, if there, run in numpy."""

from __future__ import annotations

import json
import subprocess
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import chipwise
from chipwise.api.testing.backend_suite import torch_logits
from chipwise.core.environments import install_command, lacking, python_of
from chipwise.deploy.export.converted import PACKAGE, UNVERIFIED, convert
from chipwise.deploy.export.hf import save_pretrained
from chipwise.deploy.export.onnx import random_weights
from chipwise.errors import InputError, Unreachable, Unsupported
from chipwise.model.arch.arch import uniform
from chipwise.model.arch.design import Design
from chipwise.model.blocks.quantize import NEAREST
from chipwise.model.walk.calibration import restored
from chipwise.training.data.tokenizer import train_tokenizer
from support.stand_in_program import write_program

ARCH = uniform(vocab_size=270, d_model=32, depth=2, heads=4, kv_heads=2, ffn_width=64, max_tokens=24)
LAYER = ARCH.layers[0]
DIFFERENT = replace(ARCH, layers=(LAYER, replace(LAYER, attention=None), replace(LAYER, shares=0)), norm="layernorm")
IN_NUMPY = Path(__file__).parents[3] / "support" / "mil_in_numpy.py"
STAND_IN = """#!{python}
import sys
from pathlib import Path
sys.path[:0] = {path!r}
from chipwise.core.workers import serve

def write(job, report):
    data = Path(job["out"]) / "Data" / "com.apple.CoreML"
    (data / "weights").mkdir(parents=True)
    for name in ("../../Manifest.json", "model.mlmodel", "weights/weight.bin"):
        (data / name).write_text(str(job["formats"]))
    return {{}}

serve(write)
"""
WITHOUT = lacking("coreml")
real = [pytest.mark.slow, pytest.mark.skipif(WITHOUT is not None, reason=f"coreml: {WITHOUT}")]


@pytest.fixture
def model(tmp_path):
    train_tokenizer(["a b"], 257).save(str(tmp_path / "tokens.json"))
    return save_pretrained(ARCH, random_weights(ARCH, seed=0), tmp_path / "tokens.json", tmp_path / "model")


@pytest.fixture
def stand_in(tmp_path, monkeypatch):
    """A program in the place of the environment's Python."""
    monkeypatch.setenv("CHIPWISE_COREML", str(write_program(tmp_path / "python", STAND_IN)))


@pytest.mark.usefixtures("stand_in")
def test_an_export_is_a_package_and_says_that_it_was_not_run(model, tmp_path) -> None:
    found = chipwise.export(model, to="coreml", out=tmp_path / "out")
    inside = f"{PACKAGE}/Data/com.apple.CoreML"
    assert set(found.files) >= {f"{PACKAGE}/Manifest.json", f"{inside}/model.mlmodel", f"{inside}/weights/weight.bin"}
    assert (found.weights, found.verified, found.unverified) == ("fp16", (), (UNVERIFIED,))
    assert {part.format for part in found.groups} == {"fp16"}  # what computes in FP16 is stored so
    told = json.loads((tmp_path / "out" / "manifest.json").read_text())
    assert told["unverified"] == [UNVERIFIED]
    assert "tokenizer.json" in told["files"]
    (tmp_path / "out" / inside / "old").touch()
    assert chipwise.export(model, to="mlpackage", out=tmp_path / "out", weights="int8").weights == "int8"
    assert not (tmp_path / "out" / inside / "old").exists()  # the package is replaced as a whole
    chipwise.export(model, to="gguf", out=tmp_path / "out", verify=False)
    assert not (tmp_path / "out" / PACKAGE).exists()


@pytest.mark.usefixtures("stand_in")
def test_what_a_package_cannot_hold_is_refused(tmp_path) -> None:
    conv = replace(ARCH, layers=(replace(LAYER, attention_conv=3), LAYER))
    with pytest.raises(Unsupported, match="layer 0 has a convolution; Core ML files cannot store it"):
        convert(Design(arch=conv), random_weights(conv, seed=0), tmp_path / PACKAGE, kind="coreml")
    with pytest.raises(Unsupported, match="Core ML files store weights in fp32, fp16, int8, int4, not in bf16"):
        convert(Design(arch=ARCH, weights="bf16"), random_weights(ARCH, seed=0), tmp_path / PACKAGE, kind="coreml")


def test_a_missing_environment_is_one_line_that_says_how_to_make_it(model, tmp_path, monkeypatch) -> None:
    monkeypatch.delenv("CHIPWISE_COREML", raising=False)
    monkeypatch.setenv("CHIPWISE_CACHE", str(tmp_path / "cache"))
    with pytest.raises(Unreachable) as refused:
        chipwise.export(model, to="coreml", out=tmp_path / "out")
    assert install_command("coreml") in str(refused.value)
    assert str(refused.value).count("\n") == 0
    assert not (tmp_path / "out").exists()
    with pytest.raises(InputError, match=r"coreml cannot store .bf16"):
        chipwise.export(model, to="coreml", out=tmp_path / "out", weights="bf16")


@pytest.mark.parametrize(
    ("arch", "weights", "share"),
    [
        pytest.param(ARCH, "fp32", 2e-3, marks=real),  # the cache is in FP16
        pytest.param(ARCH, "fp16", 1e-2, marks=real),
        pytest.param(ARCH, "int8", 1e-2, marks=real),
        pytest.param(ARCH, "int4 head:int8", 1e-2, marks=real),
        pytest.param(DIFFERENT, "fp32", 2e-3, marks=real),
    ],
)
def test_the_file_computes_logits_of_the_stored_weights_in_any_cut_of_the_text(arch, weights, share, tmp_path) -> None:
    design, held = Design(arch=arch, weights=weights), random_weights(arch, seed=0)
    path = convert(design, held, tmp_path / PACKAGE, kind="coreml")
    narrow = replace(NEAREST, grid=replace(NEAREST.grid, positive=True))
    stored = design if {"int8", "int4"} & set(design.formats.all) else replace(design, weights="fp32")
    wide, rounded = restored(stored, held, narrow)
    ids = np.random.default_rng(0).integers(0, arch.vocab_size, (1, arch.max_tokens))
    wanted = torch_logits(wide, rounded, ids)[0]
    cuts = [(0, 9), *((place, place + 1) for place in range(9, 14)), (14, 24), (0, 24), (0, 1), (1, 24)]
    asked = "\n".join(json.dumps([ids[0, begin:end].tolist(), begin]) for begin, end in cuts)
    done = subprocess.run(
        [str(python_of("coreml")), "-I", str(IN_NUMPY), str(path)],
        input=asked, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    found = np.array([json.loads(line)[0] for line in done.stdout.splitlines()])
    difference = np.abs(found - wanted[[end - 1 for _, end in cuts]]).max()
    assert difference <= share * np.abs(wanted).max()
