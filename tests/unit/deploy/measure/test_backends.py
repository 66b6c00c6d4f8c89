"""The built-in runtimes pass the suite for external runtimes."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from chipwise.api.testing.backend_suite import BackendSuite, ExportedSuite, torch_logits
from chipwise.deploy.export.exporters import EXPORTERS, export_for
from chipwise.deploy.runtimes import NEEDS, RUNTIMES, missing
from chipwise.errors import Unsupported
from chipwise.model.arch.arch import ArchSpec, uniform
from chipwise.model.arch.design import Design
from chipwise.model.arch.ends import LmHead, Tokens
from chipwise.model.arch.feed_forward import FeedForward
from chipwise.model.arch.layer import Layer
from chipwise.model.arch.mixers import Attention
from chipwise.model.blocks.quantize import dequantize_int4, quantize_int4

ARCH = uniform(vocab_size=40, d_model=32, depth=2, heads=2, kv_heads=1, ffn_width=64, max_tokens=16)


def _layer(heads: int, kv_heads: int, width: int, shares: int | None = None) -> Layer:
    attention = Attention(heads=heads, kv_heads=kv_heads, head_size=16) if heads else None
    return Layer(attention=attention, ffn=FeedForward(width=width), shares=shares)


UNEVEN = ArchSpec(
    name="uneven",
    stem=Tokens(vocab_size=40),
    head=LmHead(tied=False),
    d_model=32,
    layers=(_layer(2, 1, 32), _layer(0, 0, 64), _layer(4, 2, 96), _layer(2, 1, 32, 0)),
    max_tokens=16,
)
needs_gpu = [pytest.mark.gpu, pytest.mark.skipif(missing("torch-cuda") is not None, reason=f"{missing('torch-cuda')}")]


def needs(runtime: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(missing(runtime) is not None, reason=f"{runtime}: {missing(runtime)}")


class TestFake(BackendSuite):
    runtime = "fake"

    @pytest.fixture
    def model(self, tmp_path):
        path = tmp_path / "model.json"
        path.write_text(json.dumps({"vocab_size": 16, "prefill_s": 1e-4, "decode_s": 1e-5}))
        return path


class TestOnnxRuntime(ExportedSuite):
    runtime = "onnxruntime"
    design = Design(arch=UNEVEN)


class TestOnnxRuntimeInt4(ExportedSuite):
    """Against torch with the weights as the file holds them; what is left are activations rounded to 8 bits."""

    runtime = "onnxruntime"
    design = Design(arch=ARCH, weights="int4")
    parity = 0.2

    def expected(self, weights, tokens):
        rounded = {name: as_int4(name, value) for name, value in weights.items()}
        rounded["head.weight"] = as_int4("head.weight", weights["embedding.weight"])
        return torch_logits(self.design.arch.with_tied(False), rounded, tokens)


def as_int4(name: str, value):
    if value.ndim == 1 or name == "embedding.weight":
        return value
    packed, scales = quantize_int4(value)
    return dequantize_int4(packed, scales, value.shape[1])


@needs("openvino")
class TestOpenVino(ExportedSuite):
    runtime = "openvino"
    design = Design(arch=UNEVEN)

    def test_several_sequences_are_refused(self, model) -> None:
        made = RUNTIMES.load("openvino")()
        with pytest.raises(Unsupported, match="one sequence"):
            made.open(model, capacity=12, batch=2, threads=1, options={})


@needs("openvino")
class TestOpenVinoLearnedPositions(ExportedSuite):
    runtime = "openvino"
    attention = Attention(heads=2, kv_heads=2, head_size=16, rope=False, qkv_bias=True, out_bias=True)
    design = Design(
        arch=replace(
            ARCH,
            layers=(Layer(attention=attention, ffn=FeedForward(width=48, activation="gelu", gated=False, bias=True)),),
            positions="learned",
            norm="layernorm",
            norm_bias=True,
        )
    )


@needs("llama.cpp")
class TestLlamaCpp(ExportedSuite):
    runtime = "llama.cpp"
    design = Design(arch=UNEVEN)

    def test_a_full_cache_of_sixteen_bits_costs_precision_alone(self, model, weights) -> None:
        session = RUNTIMES.load("llama.cpp")().open(model, capacity=12, batch=1, threads=1, options={"cache": "f16"})
        tokens = self.tokens(session, 12)
        error = np.abs(session.prefill(tokens) - self.expected(weights, tokens)[:, -1]).max()
        assert 1e-6 < error < 0.02  # 11 bits of mantissa: logits of size 1 are off in the third digit


@needs("llama.cpp")
@pytest.mark.parametrize(("format_", "parity"), [("fp16", 5e-3), ("int8", 0.2), ("int4", 0.2)])
def test_llama_cpp_computes_what_the_quantised_file_holds(tmp_path, format_, parity) -> None:
    """What is left are activations, rounded to FP16 or to 8 bits in blocks of 32."""
    from chipwise.deploy.export.gguf_read import read

    path = export_for("llama.cpp", Design(arch=UNEVEN, weights=format_), tmp_path)
    session = RUNTIMES.load("llama.cpp")().open(path, capacity=12, batch=1, threads=1, options={})
    tokens = np.random.default_rng(0).integers(0, 40, (1, 12))
    wanted = torch_logits(UNEVEN, read(path)[1], tokens)[:, -1]
    assert np.abs(session.prefill(tokens) - wanted).max() <= parity * wanted.std()


@needs("llama.cpp")
class TestLlamaCppUniform(ExportedSuite):
    runtime = "llama.cpp"
    design = Design(arch=ARCH)


@needs("torch")
class TestTorch(ExportedSuite):
    runtime = "torch"
    design = Design(arch=replace(UNEVEN, layers=(*UNEVEN.layers, replace(UNEVEN.layers[0], attention=None))))


@pytest.mark.slow
@pytest.mark.timeout(900)
@needs("torch-compiled")
class TestTorchCompiled(ExportedSuite):
    runtime = "torch-compiled"
    design = Design(arch=replace(ARCH, layers=ARCH.layers[:1]))


class _OnGpu(ExportedSuite):
    design = Design(arch=UNEVEN)
    parity = 1e-3  # matrix products in TF32 are off; the order of sums is another
    pytestmark = needs_gpu


class TestTorchCuda(_OnGpu):
    runtime = "torch-cuda"


class TestTorchCudaCompiled(_OnGpu):
    runtime = "torch-cuda-compiled"


class TestTorchCudaGraphs(_OnGpu):
    runtime = "torch-cuda-graphs"


@pytest.mark.skipif(missing("torch-cuda") is None, reason="there is a GPU")
def test_without_a_gpu_cuda_is_refused_with_the_reason(tmp_path) -> None:
    path = export_for("torch-cuda", Design(arch=ARCH), tmp_path)
    with pytest.raises(Unsupported, match="GPU"):
        RUNTIMES.load("torch-cuda")().open(path, capacity=4, batch=1, threads=1, options={})


def test_every_built_in_runtime_says_what_it_needs_and_has_an_exporter() -> None:
    compiles = {"tvm"}  # it takes any ONNX graph of ONNX's own operators
    assert set(RUNTIMES.names()) == set(NEEDS) == set(EXPORTERS.names()) | compiles


def test_a_package_that_is_not_there_is_named_with_its_extra(monkeypatch) -> None:
    monkeypatch.setitem(NEEDS, "llama.cpp", replace(NEEDS["llama.cpp"], module="no_such_module"))
    assert missing("llama.cpp") == "no_such_module is not installed; it comes with: pip install 'chipwise[llama-cpp]'"
