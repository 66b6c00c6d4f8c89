"""Encoders: transformers' BertModel, our torch module and the exported graph give the same embeddings."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file
from transformers import AutoModel, BertConfig, BertModel

from chipwise.deploy.export.hf import load_pretrained, save_pretrained
from chipwise.deploy.export.onnx import export, random_weights
from chipwise.deploy.measure.harness import measure
from chipwise.deploy.runtimes.onnxruntime import OnnxEncoder, OnnxRuntimeSession
from chipwise.errors import MeasurementError, SpecError, Unsupported
from chipwise.model.arch import io
from chipwise.model.arch.arch import ArchSpec
from chipwise.model.arch.design import Design
from chipwise.model.arch.ends import States
from chipwise.model.arch.feed_forward import FeedForward
from chipwise.model.arch.layer import Layer
from chipwise.model.arch.mixers import Attention
from chipwise.model.kinds.encoder.form import ENCODER
from chipwise.model.kinds.encoder.module import Encoder, mean_pooled
from chipwise.model.kinds.text.module import Transformer
from chipwise.model.ops.workload import Workload
from chipwise.model.walk.module import load
from chipwise.model.walk.weights import weight_shapes

TOLERANCE = 1e-4  # of the parity that is promised; what is found is near 1e-6


def bert(folder, *, pooler: bool = True, **changes) -> BertModel:
    """A tiny random BertModel, saved to ``folder``; its norms and biases are shaken so that none is 1 or 0."""
    torch.manual_seed(0)
    fields = {"vocab_size": 50, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
    fields |= {"intermediate_size": 48, "max_position_embeddings": 24}
    model = BertModel(BertConfig(**fields | changes), add_pooling_layer=pooler).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    model.save_pretrained(folder)
    return model


def texts() -> tuple[torch.Tensor, torch.Tensor]:
    """Three texts of 9, 4 and 7 tokens, padded, and where they are text."""
    tokens = torch.from_numpy(np.random.default_rng(0).integers(1, 50, (3, 9)))
    mask = torch.arange(9)[None] < torch.tensor([9, 4, 7])[:, None]
    return tokens * mask, mask


def uneven(**changes) -> ArchSpec:
    """An encoder that no BERT is: layers that differ, one without attention, one without a feed-forward, one empty."""
    attention = Attention(heads=3, kv_heads=3, head_size=8, qkv_bias=True, out_bias=True, rope=False, causal=False)
    ffn = FeedForward(width=24, activation="gelu", gated=False, bias=True)
    layers = (
        Layer(attention=attention, ffn=ffn),
        Layer(attention=None, ffn=dataclasses.replace(ffn, width=40, activation="silu", gated=True)),
        Layer(attention=None, ffn=None),
        Layer(attention=dataclasses.replace(attention, heads=1, kv_heads=1, out_bias=False), ffn=None),
    )
    fields = {"name": "uneven", "vocab_size": 50, "d_model": 16, "layers": layers, "max_tokens": 24}
    fields |= {"norm": "layernorm", "norm_bias": True, "norm_place": "post", "positions": "learned"}
    fields |= {"final_norm": False, "embedding_norm": True, "head": "none", "token_types": 2}
    return io.from_data(fields | changes)


def shaken(arch: ArchSpec) -> dict[str, np.ndarray]:
    generator = np.random.default_rng(1)
    kept = random_weights(arch, seed=0)
    return {name: value + 0.1 * generator.standard_normal(value.shape, np.float32) for name, value in kept.items()}


@pytest.mark.parametrize("changes", [{}, {"hidden_act": "relu", "type_vocab_size": 1, "layer_norm_eps": 1e-3}])
def test_states_and_pooler_are_those_of_transformers(changes: dict, tmp_path) -> None:
    theirs = bert(tmp_path, **changes)
    arch, weights = load_pretrained(tmp_path)
    ours = load(arch, weights)
    assert sum(p.numel() for p in theirs.parameters()) == arch.parameters() == sum(v.size for v in weights.values())
    tokens, mask = texts()
    types = (torch.arange(9) > 3).long().expand(3, 9) if arch.stem.token_types > 1 else None
    with torch.no_grad():
        expected = theirs(tokens, attention_mask=mask, token_type_ids=types)
        states = ours(tokens, mask, types)
    assert (states - expected.last_hidden_state)[mask].abs().max() < TOLERANCE / 10
    assert (ours.pooled(states) - expected.pooler_output).abs().max() < TOLERANCE / 10


def test_long_texts_take_the_fused_kernel_and_agree(tmp_path) -> None:
    theirs = bert(tmp_path, max_position_embeddings=300)
    ours = load(*load_pretrained(tmp_path))
    tokens = torch.from_numpy(np.random.default_rng(0).integers(1, 50, (2, 290)))
    mask = torch.arange(290)[None] < torch.tensor([290, 270])[:, None]
    with torch.no_grad():
        expected = theirs(tokens, attention_mask=mask).last_hidden_state
        assert (ours(tokens, mask) - expected)[mask].abs().max() < TOLERANCE


def test_padding_changes_no_embedding() -> None:
    model = load(uneven(), shaken(uneven()))
    tokens, mask = texts()
    with torch.no_grad():
        together = mean_pooled(model(tokens, mask), mask)
        alone = torch.cat([mean_pooled(model(row[keep][None]), None) for row, keep in zip(tokens, mask, strict=True)])
    assert (together - alone).abs().max() < 1e-5


@pytest.mark.parametrize("arch", [uneven(), uneven(token_types=0, embedding_norm=False, norm_bias=False)])
def test_the_exported_graph_gives_the_same_embeddings(arch: ArchSpec, tmp_path) -> None:
    weights = shaken(arch)
    tokens, mask = texts()
    with torch.no_grad():
        states = load(arch, weights)(tokens, mask)
    for output, expected in (("mean", mean_pooled(states, mask)), ("states", states)):
        path = export(Design(arch=arch), weights, tmp_path / f"{output}.onnx", output=output, padded=True)
        found = OnnxEncoder(path).encode(tokens.numpy(), mask.numpy())
        kept = mask.numpy() if output == "states" else slice(None)
        assert np.abs(found - expected.numpy())[kept].max() < TOLERANCE / 10
    path = export(Design(arch=arch), weights, tmp_path / "alone.onnx")
    one = OnnxEncoder(path).encode(tokens[:1].numpy())  # the first text has no padding
    assert np.abs(one - mean_pooled(states, mask)[:1].numpy()).max() < TOLERANCE / 10


def test_the_exported_pooler_is_that_of_transformers(tmp_path) -> None:
    theirs = bert(tmp_path)
    arch, weights = load_pretrained(tmp_path)
    path = export(Design(arch=arch), weights, tmp_path / "model.onnx", output="pooler", padded=True)
    tokens, mask = texts()
    with torch.no_grad():
        expected = theirs(tokens, attention_mask=mask).pooler_output.numpy()
    assert np.abs(OnnxEncoder(path).encode(tokens.numpy(), mask.numpy()) - expected).max() < TOLERANCE


@pytest.mark.parametrize(("form", "least"), [("int8", 0.999), ("int4", 0.97)])
def test_quantised_encoders_point_the_same_way(form: str, least: float, tmp_path) -> None:
    arch = uneven()
    weights = shaken(arch)
    tokens, mask = texts()
    found = [
        OnnxEncoder(export(Design(arch=arch, weights=kind), weights, tmp_path / f"{kind}.onnx", padded=True)).encode(
            tokens.numpy(), mask.numpy()
        )
        for kind in ("fp32", form)
    ]
    whole, rounded = (value / np.linalg.norm(value, axis=1, keepdims=True) for value in found)
    cosine = (whole * rounded).sum(1)
    assert (cosine > least).all()
    assert (cosine < 1 - 1e-7).all()  # it was rounded


def test_a_uniform_encoder_is_saved_as_bert_and_comes_back(tmp_path) -> None:
    theirs = bert(tmp_path / "theirs", pooler=False)
    arch, weights = load_pretrained(tmp_path / "theirs")
    assert isinstance(arch.head, States)
    save_pretrained(arch, weights, None, tmp_path / "ours")
    again = BertModel.from_pretrained(tmp_path / "ours", add_pooling_layer=False).eval()
    tokens, mask = texts()
    with torch.no_grad():
        expected, found = (model(tokens, attention_mask=mask).last_hidden_state for model in (theirs, again))
    assert torch.equal(found, expected)


def test_old_files_with_buffers_heads_and_prefixes_are_read(tmp_path) -> None:
    """As the first BERT checkpoints were saved: names of old, a task's head, the positions' numbers as a tensor."""
    bert(tmp_path)
    arch, weights = load_pretrained(tmp_path)
    kept = load_file(tmp_path / "model.safetensors")
    old = {f"bert.{n.replace('LayerNorm.weight', 'LayerNorm.gamma')}": value for n, value in kept.items()}
    old |= {"bert.embeddings.position_ids": np.arange(24)[None], "cls.predictions.bias": np.zeros(50, np.float32)}
    save_file(old, tmp_path / "model.safetensors")
    again, found = load_pretrained(tmp_path)
    assert again == arch
    for name, value in weights.items():
        np.testing.assert_array_equal(found[name], value)


def test_any_other_encoder_brings_its_code_and_comes_back(tmp_path) -> None:
    arch = uneven(head="pooler")
    weights = shaken(arch)
    save_pretrained(arch, weights, None, tmp_path)
    theirs = AutoModel.from_pretrained(tmp_path, trust_remote_code=True).eval()
    tokens, mask = texts()
    ours = load(arch, weights)
    with torch.no_grad():
        found, expected = theirs(tokens, attention_mask=mask), ours(tokens, mask)
        assert (found.last_hidden_state - expected)[mask].abs().max() < 1e-5
        assert (found.pooler_output - ours.pooled(expected)).abs().max() < 1e-5
    back, kept = load_pretrained(tmp_path)
    assert back.digest == arch.digest
    for name, value in weights.items():
        np.testing.assert_array_equal(kept[name], value)


def test_names_and_shapes_are_those_of_the_module() -> None:
    for arch in (uneven(), uneven(head="pooler", token_types=0, embedding_norm=False)):
        state = {name: tuple(value.shape) for name, value in Encoder(arch).state_dict().items()}
        assert dict(weight_shapes(arch)) == state
        assert sum(np.prod(shape) for shape in state.values()) == arch.parameters()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"causal": True}, r"layers\[0\]\.attention\.causal = True"),
        ({"kv_heads": 1}, "kv_heads must equal heads"),
        ({"window": 4}, "window is not supported in encoders"),
    ],
)
def test_encoders_that_are_not_built_are_refused_by_name(changes: dict, words: str) -> None:
    layers = uneven().layers
    block = dataclasses.replace(layers[0].attention, **changes)
    arch = uneven(layers=(dataclasses.replace(layers[0], attention=block), *layers[1:]))
    assert not ENCODER.builds(arch)
    with pytest.raises(Unsupported, match=words):
        Encoder(arch)


def test_a_decoder_is_no_encoder_nor_the_other_way_round(tmp_path) -> None:
    with pytest.raises(Unsupported, match="embedding_norm"):
        Transformer(uneven())
    path = export(Design(arch=uneven()), shaken(uneven()), tmp_path / "model.onnx")
    with pytest.raises(MeasurementError, match="is an encoder"):
        OnnxRuntimeSession(path, capacity=8)
    with pytest.raises(Unsupported, match="has no pooler"):
        export(Design(arch=uneven()), shaken(uneven()), tmp_path / "model.onnx", output="pooler")
    with pytest.raises(MeasurementError, match="padded=True"):
        OnnxEncoder(path).encode(np.ones((1, 3), int), np.array([[1, 1, 0]]))
    with pytest.raises(MeasurementError, match="25 tokens, but the model has 24 positions"):
        OnnxEncoder(path).encode(np.ones((1, 25), int))


def test_a_missing_weight_is_named(tmp_path) -> None:
    weights = shaken(uneven())
    del weights["layers.3.attention.k.bias"]
    with pytest.raises(SpecError, match=r"layers\.3\.attention\.k\.bias"):
        export(Design(arch=uneven()), weights, tmp_path / "model.onnx")


def test_the_harness_times_a_pass_over_a_text(tmp_path) -> None:
    path = export(Design(arch=uneven()), shaken(uneven()), tmp_path / "model.onnx")
    found = measure(path, Workload(prompt_tokens=12, new_tokens=1), repeats=40, seconds=0.1, attempts=1)
    assert found.encodes
    assert len(found.ttft_s) >= 40
    assert 0 < found.metric("ttft_p50") <= found.metric("ttft_p99")
    with pytest.raises(MeasurementError, match="generates no tokens"):
        found.metric("tpot_p50")
