"""int8 exports answer alike on processors with and without VNNI.

x86 processors without it multiply uint8 activations by int8 weights and add two neighbouring products in 16 signed
bits (vpmaddubsw), where a sum above 32,767 saturates. Weights of full range give wrong answers there.
"""

from __future__ import annotations

import base64
import random
import shutil
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import Phase, find, settings
from onnx import ModelProto, numpy_helper

from chipwise.api.testing.specs import toy_arch
from chipwise.deploy.export.onnx import build, export, random_weights
from chipwise.deploy.export.saturation import saturates
from chipwise.deploy.measure.measurement import Measurement
from chipwise.design.models.measuring import timed
from chipwise.model.arch.arch import ArchSpec
from chipwise.model.arch.design import Design
from chipwise.model.arch.feed_forward import FeedForward
from chipwise.model.arch.layer import Layer
from chipwise.model.arch.mixers import Attention
from chipwise.model.blocks import quantize
from chipwise.model.kinds.table import KINDS as FORMS
from chipwise.model.kinds.table import form_of
from chipwise.model.ops.workload import Workload
from chipwise.model.published.read import from_config
from support.archs import (
    crossing_archs,
    denoiser_archs,
    image_archs,
    question_archs,
    ranking_archs,
    sentence_archs,
    sound_archs,
)

LAST_16_BIT = 2**15 - 1
LAST_UINT8 = 255
SMALL = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 24}
CONFIGS: dict[str, dict[str, Any]] = {
    "BERT": {"model_type": "bert", "vocab_size": 50, "max_position_embeddings": 24},
}
DRAWN = {
    "image classifier": image_archs(),
    "questions about images": question_archs(),
    "questions by cross-attention": crossing_archs(),
    "denoiser": denoiser_archs(),
    "ranker": ranking_archs(),
    "classifier of texts": sentence_archs(),
    "transcriber": sound_archs(),
}


@cache
def arch_of(kind: str) -> ArchSpec:
    """A small model of the kind."""
    if kind in CONFIGS:
        return from_config(SMALL | CONFIGS[kind])
    if kind in DRAWN:
        first = settings(phases=[Phase.generate], database=None, deadline=None)
        return find(DRAWN[kind], lambda _: True, settings=first, random=random.Random(0))
    return toy_arch()


KINDS = ("decoder", *CONFIGS, *DRAWN)


def graphs(model: ModelProto) -> Iterator[Any]:
    """The graph, and a denoiser's second one that is kept in the metadata."""
    yield model.graph
    for item in model.metadata_props:
        if item.key == "decoder":
            yield ModelProto.FromString(base64.b64decode(item.value)).graph


def int8_products(model: ModelProto) -> list[np.ndarray[Any, Any]]:
    """The stored weights that meet eight-bit activations."""
    found = []
    for graph in graphs(model):
        stored = {tensor.name: tensor for tensor in graph.initializer}
        for node in graph.node:
            if "Integer" in node.op_type or "Quantize" in node.op_type or node.op_type.startswith("QLinear"):
                assert node.op_type == "DynamicQuantizeMatMul", f"{node.op_type} is not known to be right everywhere"
                found.append(numpy_helper.to_array(stored[node.input[1]]))
    return found


def test_64_is_the_largest_weight_of_which_two_products_fit_16_bits() -> None:
    assert 2 * LAST_UINT8 * quantize.MOST_INT8 <= LAST_16_BIT < 2 * LAST_UINT8 * (quantize.MOST_INT8 + 1)


def test_every_form_of_model_that_is_exported_is_among_the_kinds() -> None:
    assert {form_of(arch_of(kind)) for kind in KINDS} == {form for form in FORMS if form.package}


@pytest.mark.parametrize("kind", KINDS)
def test_no_product_of_any_export_can_saturate(kind: str) -> None:
    """Of random weights, whose largest in each row becomes the largest that int8 exports write."""
    arch = arch_of(kind)
    products = int8_products(build(Design(arch=arch, weights="int8"), random_weights(arch, seed=0)))
    assert products
    for values in products:
        assert values.dtype == np.int8
        assert 2 * LAST_UINT8 * int(np.abs(values.astype(np.int64)).max()) <= LAST_16_BIT


def full_range(folder: Path) -> Path:
    """A file as earlier versions exported it, with weights in -127 … 127."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(quantize, "MOST_INT8", 127)
        arch = toy_arch()
        return export(Design(arch=arch, weights="int8"), random_weights(arch, seed=0), folder / "old.onnx")


def test_files_of_the_full_range_are_told_from_those_that_are_right_everywhere(tmp_path: Path) -> None:
    arch = toy_arch()
    for form in ("fp32", "int8", "int4"):
        design = Design(arch=arch, weights=form)
        assert not saturates(export(design, random_weights(arch, seed=0), tmp_path / f"{form}.onnx"))
    assert saturates(full_range(tmp_path))


@pytest.mark.parametrize(("known", "noted"), [("AVX2 without VNNI", True), ("AVX512-VNNI", False), (None, False)])
def test_measuring_an_old_file_where_its_products_saturate_says_so(
    known: str | None, noted: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = Measurement(
        design="", name="old", runtime="onnxruntime", runtime_version="1", threads=1, workload=Workload(), device="toy",
        ttft_s=(1e-3,), tpot_s=(1e-4,), cpu_s=1.0, peak_memory_bytes=None, clean=True,
        environment={"instructions": known},
    )  # fmt: skip
    monkeypatch.setenv("CHIPWISE_HOME", str(tmp_path))
    monkeypatch.setattr("chipwise.deploy.measure.harness.measure", lambda *_, **__: found)
    for path, warned in ((full_range(tmp_path), noted), (tmp_path / "model.gguf", False)):
        notes = timed(path, None, Workload(), runtime="onnxruntime", threads=1, keep=False).notes
        assert [f"({known}), so the outputs are wrong" in note for note in notes] == [True] * warned


ANSWERS = """
import sys
import numpy as np, onnxruntime
inputs = dict(np.load(sys.argv[1]))
options = onnxruntime.SessionOptions()
options.intra_op_num_threads = 1
found = {}
for path in sys.argv[3:]:
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    found[path] = session.run(["logits"], inputs)[0]
np.savez(sys.argv[2], *found.values())
"""


@pytest.mark.skipif(shutil.which("qemu-x86_64") is None, reason="needs qemu-x86_64 (Debian's package qemu-user)")
def test_a_processor_without_vnni_gives_the_same_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A processor of 2013 is imitated. A graph of full-range weights, the control, is wrong there.

    Sums of floats in another order may move an activation across the edge between two of its 255 steps, so logits agree
    to 1 % of the largest rather than exactly; saturation moves them by far more. The control is compared with fp32, not
    with this processor, which may lack the instructions, too: its finer weights would be nearer if nothing saturated.
    """
    layer = Layer(attention=Attention(heads=4, kv_heads=4, head_size=32), ffn=FeedForward(width=256))
    arch = toy_arch(d_model=128, layers=(layer, layer))
    design, weights = Design(arch=arch, weights="int8"), random_weights(arch, seed=0)
    graphs = {"exported": quantize.MOST_INT8, "full range": 127}
    files = []
    for name, largest in graphs.items():
        monkeypatch.setattr(quantize, "MOST_INT8", largest)
        files.append(str(export(design, weights, tmp_path / f"{name}.onnx", logits="all")))
    exact = export(Design(arch=arch, weights="fp32"), weights, tmp_path / "fp32.onnx", logits="all")
    files.append(str(exact))
    length = 8
    inputs = {"tokens": np.random.default_rng(0).integers(0, arch.vocab_size, (1, length))}
    inputs |= {"seqlens_k": np.array([length - 1], np.int32), "total_sequence_length": np.array(length, np.int32)}
    for i in range(len(arch.layers)):
        inputs |= {f"past.{i}.{name}": np.zeros((1, 4, 0, 32), np.float32) for name in ("key", "value")}
    np.savez(tmp_path / "inputs.npz", **inputs)
    answers = {}
    for place, emulator in (("native", []), ("imitated", ["qemu-x86_64", "-cpu", "Haswell"])):
        command = [*emulator, sys.executable, "-c", ANSWERS, tmp_path / "inputs.npz", tmp_path / f"{place}.npz", *files]
        done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False, timeout=300)
        assert done.returncode == 0, done.stderr[-2000:]
        answers[place] = list(np.load(tmp_path / f"{place}.npz").values())
    native, fp32 = answers["native"][0], answers["native"][2]
    imitated, control, _ = answers["imitated"]
    largest = float(np.abs(fp32).max())
    assert np.abs(imitated - native).max() < 0.01 * largest
    assert np.abs(imitated - fp32).max() < 0.67 * np.abs(control - fp32).max()
