"""The exported graph against the torch module: the same logits, in prefill and step by step."""

from __future__ import annotations

import json
import random
from dataclasses import replace

import numpy as np
import onnx
import pytest
import torch

from chipwise.deploy.export.exporters import export_for
from chipwise.deploy.export.onnx import build, export, random_weights, stored_bytes
from chipwise.deploy.runtimes.onnxruntime import OnnxRuntimeSession
from chipwise.errors import ChipwiseError, SpecError, Unsupported
from chipwise.model.arch.arch import ArchSpec, uniform
from chipwise.model.arch.design import Design
from chipwise.model.arch.ends import LmHead, Tokens
from chipwise.model.arch.feed_forward import FeedForward
from chipwise.model.arch.formats import formats_word
from chipwise.model.arch.layer import Layer
from chipwise.model.arch.mixers import Attention
from chipwise.model.kinds.text.module import Transformer
from chipwise.model.ops.elementwise import Elementwise
from chipwise.model.ops.matmul import Matmul
from chipwise.model.ops.workload import Phase, Workload
from chipwise.model.published.read import resolve
from chipwise.model.walk.lower import lower
from chipwise.training.loop.evaluate import quantised

PROMPT, STEPS = 11, 32


def random_arch(seed: int) -> ArchSpec:
    """Layers that all differ: any heads, norms, biases, missing blocks, shared layers."""
    r = random.Random(seed)
    rope = r.choice([True, True, False])
    layers: list[Layer] = []
    for i in range(r.randint(1, 5)):
        owners = [j for j, layer in enumerate(layers) if layer.shares is None]
        if i and r.random() < 0.25:
            source = r.choice(owners)
            layers.append(Layer(attention=layers[source].attention, ffn=layers[source].ffn, shares=source))
            continue
        kv_heads = r.choice([1, 2, 3])
        attention = Attention(
            heads=kv_heads * r.choice([1, 2]),
            kv_heads=kv_heads,
            head_size=r.choice([16, 32, 48] if rope else [8, 16, 24]),
            qkv_bias=r.random() < 0.3,
            out_bias=r.random() < 0.3,
            qk_norm=r.random() < 0.3,
            rope=rope,
            window=r.choice([None, None, 5, 16]),
        )
        ffn = FeedForward(
            width=r.choice([24, 40, 96]),
            activation=r.choice(["relu", "gelu", "gelu_tanh", "silu"]),
            gated=r.random() < 0.5,
            bias=r.random() < 0.3,
        )
        missing = r.choice(["none", "none", "none", "attention", "ffn"])
        layers.append(
            Layer(attention=None if missing == "attention" else attention, ffn=None if missing == "ffn" else ffn)
        )
    norm = r.choice(["rmsnorm", "layernorm"])
    return ArchSpec(
        name="random",
        stem=Tokens(vocab_size=r.choice([50, 97])),
        head=LmHead(tied=r.random() < 0.5),
        d_model=r.choice([24, 32, 48]),
        layers=tuple(layers),
        max_tokens=64,
        norm=norm,
        norm_bias=norm == "layernorm" and r.random() < 0.7,
        positions="rope" if rope else r.choice(["learned", "none"]),
    )


def shaken_weights(arch: ArchSpec, seed: int) -> dict[str, np.ndarray]:
    """Random weights in which norms and biases are not ones and zeros, so that forgetting one shows."""
    generator = np.random.default_rng(seed)
    weights = random_weights(arch, seed=seed)
    for name, value in weights.items():
        if value.ndim == 1:
            weights[name] = (value + 0.3 * generator.standard_normal(value.shape)).astype(np.float32)
    return weights


def torch_model(arch: ArchSpec, weights: dict[str, np.ndarray]) -> Transformer:
    model = Transformer(arch)
    model.load_state_dict({name: torch.from_numpy(value) for name, value in weights.items()})
    return model.eval()


@pytest.mark.parametrize("seed", range(24))
def test_fp32_logits_are_those_of_torch_in_prefill_and_32_steps(seed: int, tmp_path) -> None:
    arch = random_arch(seed)
    weights = shaken_weights(arch, seed)
    path = export(Design(arch=arch), weights, tmp_path / "model.onnx")
    session = OnnxRuntimeSession(path, capacity=PROMPT + STEPS)
    tokens = np.random.default_rng(seed).integers(0, arch.vocab_size, (1, PROMPT + STEPS))
    with torch.no_grad():
        expected = torch_model(arch, weights)(torch.from_numpy(tokens))[0].numpy()
    np.testing.assert_allclose(session.prefill(tokens[:, :PROMPT]), expected[:, PROMPT - 1], atol=1e-4, rtol=1e-4)
    for step in range(PROMPT, PROMPT + STEPS):
        logits = session.decode(tokens[:, step : step + 1])
        np.testing.assert_allclose(logits, expected[:, step], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("seed", [0, 3, 7])
def test_all_positions_and_a_batch(seed: int, tmp_path) -> None:
    arch = random_arch(seed)
    weights = shaken_weights(arch, seed)
    path = export(Design(arch=arch), weights, tmp_path / "model.onnx", logits="all")
    tokens = np.random.default_rng(seed).integers(0, arch.vocab_size, (2, PROMPT))
    session = OnnxRuntimeSession(path, capacity=PROMPT, batch=2)
    with torch.no_grad():
        expected = torch_model(arch, weights)(torch.from_numpy(tokens))[0].numpy()
    np.testing.assert_allclose(session.all_logits(tokens), expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(("weights_format", "worst"), [("int8", 0.05), ("int4", 0.3)])
@pytest.mark.parametrize("seed", [2, 3, 5, 6])
def test_quantised_logits_stay_close(weights_format: str, worst: float, seed: int, tmp_path) -> None:
    """Root mean square of the change, as a share of the logits' own."""
    arch = random_arch(seed)
    weights = shaken_weights(arch, seed)
    tokens = np.random.default_rng(seed).integers(0, arch.vocab_size, (1, 32))
    path = export(Design(arch=arch, weights=weights_format), weights, tmp_path / "model.onnx", logits="all")
    with torch.no_grad():
        expected = torch_model(arch, weights)(torch.from_numpy(tokens))[0].numpy()
    change = OnnxRuntimeSession(path, capacity=32).all_logits(tokens) - expected
    assert np.sqrt(np.mean(change**2) / np.mean(expected**2)) < worst


def drawn_formats(arch: ArchSpec, seed: int, names: tuple[str, ...]) -> str:
    """A word for a format of each layer, drawn from ``names``; layers that share weights have their owner's."""
    r = random.Random(seed)
    own = [r.choice(names) for _ in arch.layers]
    return formats_word(
        (own[i if layer.shares is None else layer.shares] for i, layer in enumerate(arch.layers)), r.choice(names)
    )


@pytest.mark.parametrize("seed", range(10))
def test_logits_of_mixed_formats_are_those_of_torch_with_these_matrices_rounded(seed: int, tmp_path) -> None:
    """What is left is the runtime's rounding of activations to eight bits."""
    arch = random_arch(seed)
    weights = shaken_weights(arch, seed)
    word = drawn_formats(arch, seed, ("fp32", "int8", "int4"))
    tokens = np.random.default_rng(seed).integers(0, arch.vocab_size, (1, 32))
    path = export(Design(arch=arch, weights=word), weights, tmp_path / "model.onnx", logits="all")
    found = OnnxRuntimeSession(path, capacity=32).all_logits(tokens)
    with torch.no_grad():
        rounded, exact = (
            model(torch.from_numpy(tokens))[0].numpy()
            for model in (quantised(torch_model(arch, weights), word), torch_model(arch, weights))
        )
    size = np.sqrt(np.mean(exact**2))
    left, change = (np.sqrt(np.mean((found - other) ** 2)) / size for other in (rounded, exact))
    assert left < 0.05
    assert left < 0.5 * change or change < 0.05


def test_each_matrix_is_stored_in_its_layers_format() -> None:
    """Layers of int4, int8 and fp32 matrices, one sharing the first's, and an int8 head beside the FP32 table."""
    layer = Layer(attention=Attention(heads=1, kv_heads=1, head_size=32), ffn=FeedForward(width=64))
    layers = (layer, replace(layer, shares=0), layer, layer)
    arch = replace(uniform(vocab_size=64, d_model=32, depth=1, heads=1, ffn_width=64), layers=layers)
    design = Design(arch=arch, weights="int4/int4/int8/fp32 head:int8")
    stored = {t.name: len(t.raw_data) for t in build(design, random_weights(arch, seed=0)).graph.initializer}
    values, columns = 4 * 32 * 32 + 3 * 32 * 64, 96 + 32 + 64 + 64 + 32
    # of int4 half a byte a value, and a scale for every 32 along k: down has 64, all else 32
    assert sum(size for name, size in stored.items() if name.startswith("layers.0.") and "norm" not in name) == (
        values // 2 + 4 * (columns + 32)
    )
    assert not any(name.startswith("layers.1.") for name in stored)
    assert sum(size for name, size in stored.items() if name.startswith("layers.2.") and "norm" not in name) == (
        values + 4 * columns
    )
    assert sum(size for name, size in stored.items() if name.startswith("layers.3.") and "norm" not in name) == (
        4 * values
    )
    assert (stored["embedding.weight"], stored["head.int8"], stored["head.scale"]) == (4 * 64 * 32, 64 * 32, 4 * 64)


def test_the_file_describes_itself() -> None:
    arch = uniform(vocab_size=50, d_model=32, depth=2, heads=2, kv_heads=1, ffn_width=48)
    model = build(Design(arch=arch, weights="int4"), random_weights(arch, seed=0))
    facts = json.loads(next(item.value for item in model.metadata_props if item.key == "chipwise"))
    assert facts["kv"] == [[0, 1, 16], [1, 1, 16]]
    assert (facts["vocab_size"], facts["weights"], facts["logits"]) == (50, "int4", "last")


def test_stored_bytes_of_each_format() -> None:
    """A tied fp32 model stores each parameter once; int8 adds the head again as bytes, int4 as half bytes."""
    arch = uniform(vocab_size=64, d_model=32, depth=1, heads=1, ffn_width=64, max_tokens=8)
    # 64·32 table; q, k, v, out 4·32·32; gate, up, down 3·32·64
    matrices = 4 * 32 * 32 + 3 * 32 * 64
    columns = 96 + 32 + 64 + 64 + 32 + 64
    rotary = 2 * 8 * 16 * 4
    expected = {
        "fp32": 4 * (arch.parameters()) + rotary,
        "int8": 4 * (64 * 32 + 3 * 32) + matrices + 64 * 32 + 4 * columns + rotary,
        "int4": 4 * (64 * 32 + 3 * 32) + (matrices + 64 * 32) * (0.5 + 4 / 32) + rotary,
    }
    for name, size in expected.items():
        model = build(Design(arch=arch, weights=name), random_weights(arch, seed=0))
        stored = sum(len(t.raw_data) for t in model.graph.initializer if t.data_type != onnx.TensorProto.INT64)
        assert stored == size, name


def test_shared_layers_are_stored_once() -> None:
    one = Layer(attention=Attention(heads=1, kv_heads=1, head_size=16), ffn=FeedForward(width=32))
    again = Layer(attention=one.attention, ffn=one.ffn, shares=0)
    sizes = [
        build(Design(arch=arch), random_weights(arch, seed=0)).ByteSize()
        for arch in (
            ArchSpec(name="m", stem=Tokens(vocab_size=64), d_model=64, layers=layers, max_tokens=8)
            for layers in ((one,), (one, again), (one, one))
        )
    ]
    matrices = 4 * (64 * 48 + 16 * 64 + 3 * 64 * 32)
    assert sizes[1] - sizes[0] < 4000  # nodes and names alone
    assert sizes[2] - sizes[1] > matrices


def test_wrong_weights_are_named() -> None:
    arch = uniform(vocab_size=8, d_model=16, depth=1, heads=1, ffn_width=8)
    weights = random_weights(arch, seed=0)
    del weights["layers.0.ffn.up.weight"]
    with pytest.raises(SpecError, match=r"layers\.0\.ffn\.up\.weight"):
        build(Design(arch=arch), weights)
    weights["layers.0.ffn.up.weight"] = np.zeros((3, 16), np.float32)
    with pytest.raises(SpecError, match=r"\(3, 16\)"):
        build(Design(arch=arch), weights)
    odd = uniform(vocab_size=8, d_model=16, depth=1, heads=1, head_size=24, ffn_width=8)
    with pytest.raises(Unsupported, match="multiple of 16, not 24"):
        build(Design(arch=odd), random_weights(odd, seed=0))
    with pytest.raises(Unsupported, match="bf16"):
        build(Design(arch=arch, weights="bf16"), random_weights(arch, seed=0))


KINDS = {
    **dict.fromkeys(("MatMul", "FusedMatMul", "DynamicQuantizeMatMul", "MatMulNBits"), "matmul"),
    "GroupQueryAttention": "attention",
    **dict.fromkeys(("SimplifiedLayerNormalization", "SkipSimplifiedLayerNormalization", "LayerNormalization"), "norm"),
    **dict.fromkeys(("Relu", "Gelu", "FastGelu", "QuickGelu", "Mul"), "elementwise"),
    "Gather": "embedding",
}


@pytest.mark.parametrize("logits", ["last", "all"])
@pytest.mark.parametrize("seed", range(12))
def test_lowering_mirrors_the_graph_node_by_node(seed: int, logits) -> None:
    """Additions of residuals and biases, which lowering counts inside norms and products, and reshapes aside."""
    arch = random_arch(seed)
    design = Design(arch=arch, weights=("fp32", "int8", "int4")[seed % 3])
    nodes = build(design, random_weights(arch, seed=0), logits=logits).graph.node
    ops = [placed.op for placed in lower(design, Workload(), Phase.PREFILL, logits=logits)]
    lowered = [op.kind for op in ops if not (isinstance(op, Elementwise) and op.function == "add")]
    assert [KINDS[node.op_type] for node in nodes if node.op_type not in ("Add", "Reshape")] == lowered


def test_after_the_last_attention_only_the_last_position_is_computed() -> None:
    arch = uniform(vocab_size=50, d_model=32, depth=2, heads=2, ffn_width=48)
    graph = lower(Design(arch=arch), Workload(prompt_tokens=7), Phase.PREFILL)
    rows = {placed.place: placed.op.m for placed in graph if isinstance(placed.op, Matmul)}
    assert {place: m for place, m in rows.items() if m == 1} == dict.fromkeys(
        ("layers.1.attention.out", "layers.1.ffn.gate", "layers.1.ffn.up", "layers.1.ffn.down", "head"), 1
    )
    assert rows["layers.1.attention.qkv"] == rows["layers.0.ffn.down"] == 7


@pytest.mark.parametrize("tied", [True, False])
def test_the_size_of_a_file_is_known_before_it_is_written(tied: bool, tmp_path) -> None:
    arch = uniform(vocab_size=256, d_model=128, depth=1, heads=4, ffn_width=256, max_tokens=32, tie_embeddings=tied)
    assert stored_bytes(Design(arch=arch)) == 4 * arch.parameters()
    table, matrices = 256 * 128, 4 * 128 * 128 + 3 * 128 * 256
    assert stored_bytes(Design(arch=arch, weights="int8")) == 4 * (table + 3 * 128) + matrices + table
    for form in ("fp32", "int8"):
        design = Design(arch=arch, weights=form)
        path = export(design, random_weights(arch, seed=0), tmp_path / f"{form}.onnx")
        assert stored_bytes(design) == pytest.approx(path.stat().st_size, rel=0.06)


def test_a_model_that_exceeds_one_file_is_refused_before_its_weights_are_made(tmp_path, monkeypatch) -> None:
    arch = uniform(name="large", vocab_size=256, d_model=64, depth=1, heads=4, ffn_width=128, max_tokens=32)
    monkeypatch.setattr("chipwise.deploy.export.onnx.LARGEST_BYTES", 4 * arch.parameters())
    export_for("onnxruntime", Design(arch=arch), tmp_path)
    monkeypatch.setattr("chipwise.deploy.export.onnx.LARGEST_BYTES", 4 * arch.parameters() - 1)
    monkeypatch.setattr("chipwise.deploy.export.onnx.random_weights", lambda *_, **__: pytest.fail("weights were made"))
    for refused in (
        lambda: export(Design(arch=arch), {}, tmp_path / "m.onnx"),
        lambda: export_for("onnxruntime", Design(arch=arch), tmp_path),
    ):
        with pytest.raises(Unsupported, match=r"large takes .*kB in fp32, and an ONNX file holds at most .*int8"):
            refused()


@pytest.mark.parametrize("form", ["fp32", "int8", "int4"])
def test_weights_in_a_second_file_give_the_same_logits(form: str, tmp_path, monkeypatch) -> None:
    from chipwise.deploy.runtimes.onnxruntime import OnnxRuntimeSession

    design = Design(
        arch=uniform(vocab_size=256, d_model=64, depth=2, heads=4, ffn_width=128, max_tokens=32), weights=form
    )
    weights = random_weights(design.arch, seed=0)
    whole = export(design, weights, tmp_path / "whole.onnx", external_data=True)
    assert [path.name for path in tmp_path.iterdir()] == ["whole.onnx"]
    monkeypatch.setattr("chipwise.deploy.export.onnx.LARGEST_BYTES", 10_000)
    parts = export(design, weights, tmp_path / "parts.onnx", external_data=True)
    beside = tmp_path / "parts.onnx.data"
    assert parts.stat().st_size < 0.3 * whole.stat().st_size
    assert beside.stat().st_size > 0.7 * stored_bytes(design)
    tokens = np.array([[3, 1, 4, 1, 5]])
    answers = [OnnxRuntimeSession(path, capacity=8).prefill(tokens) for path in (whole, parts)]
    np.testing.assert_array_equal(*answers)


def test_a_model_of_hundreds_of_gigabytes_is_refused_at_once(tmp_path) -> None:
    with pytest.raises(ChipwiseError, match=r"Llama-3\.1-405B(: measuring it needs at least| takes) \d\.\d+ TB"):
        export_for("onnxruntime", Design(arch=resolve("meta-llama/Llama-3.1-405B")), tmp_path)
