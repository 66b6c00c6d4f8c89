"""Configs that no model can have: refused at once, by the names that the config itself uses."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from chipwise.api.testing.specs import toy_arch
from chipwise.errors import SpecError
from chipwise.model.arch.arch import uniform
from chipwise.model.arch.design import Design
from chipwise.model.arch.ends import Tokens
from chipwise.model.arch.feed_forward import FeedForward, MixtureOfExperts
from chipwise.model.arch.layer import Layer
from chipwise.model.arch.mixers import Attention
from chipwise.model.ops.workload import Workload
from chipwise.model.published.read import from_config, resolve

LLAMA = {
    "model_type": "llama",
    "vocab_size": 100,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
}
MOE = LLAMA | {
    "model_type": "qwen3_moe",
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
}
WAVES = {
    "model_type": "wav2vec2",
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
}


@pytest.mark.parametrize(
    ("config", "change", "field", "words"),
    [
        (LLAMA, {"hidden_size": 0}, "hidden_size", "at least 1"),
        (LLAMA, {"hidden_size": -32}, "hidden_size", "at least 1"),
        (LLAMA, {"hidden_size": 10**40}, "hidden_size", "at most 1,000,000,000"),
        (LLAMA, {"hidden_size": "32"}, "hidden_size", "must be a whole number, not text ('32')"),
        (LLAMA, {"hidden_size": 32.5}, "hidden_size", "must be a whole number, not a number (32.5)"),
        (LLAMA, {"num_attention_heads": 0}, "num_attention_heads", "at least 1"),
        (LLAMA, {"num_attention_heads": 3}, "num_attention_heads", "3 heads do not divide a width of 32"),
        (LLAMA, {"num_key_value_heads": 3}, "num_key_value_heads", "3 KV heads do not divide 4 heads"),
        (LLAMA, {"intermediate_size": 0}, "intermediate_size", "at least 1"),
        (LLAMA, {"max_position_embeddings": 0}, "max_position_embeddings", "at least 1"),
        (LLAMA, {"head_dim": 0}, "head_dim", "at least 1"),
        (LLAMA, {"head_dim": 7}, "head_dim", "even head size, not 7"),
        (LLAMA, {"vocab_size": 0}, "vocab_size", "at least 1"),
        (LLAMA, {"num_hidden_layers": 10**12}, "num_hidden_layers", "at most 1,000,000,000"),
        (LLAMA, {"num_hidden_layers": 10_000_000}, "num_hidden_layers", "at most 10,000"),
        (LLAMA, {"rms_norm_eps": float("nan")}, "rms_norm_eps", "finite"),
        (LLAMA, {"rms_norm_eps": -1.0}, "rms_norm_eps", "at least 0"),
        (LLAMA, {"rope_theta": -1}, "rope_theta", "above 0"),
        (LLAMA, {"rope_theta": 10**400}, "rope_theta", "too large"),
        (LLAMA, {"rope_parameters": {"rope_theta": "x"}}, "rope_parameters.rope_theta", "must be a number"),
        (LLAMA, {"rope_scaling": {"rope_type": "magic"}}, "rope_scaling", "unknown type 'magic'"),
        (LLAMA, {"rope_scaling": "magic"}, "rope_scaling", "mapping"),
        (LLAMA, {"torch_dtype": "float7"}, "torch_dtype", "unknown number type 'float7'"),
        (LLAMA, {"layer_types": ["full_attention"] * 3}, "layer_types", "must have 4 entries, one per layer, not 3"),
        (LLAMA, {"sliding_window": -5}, "sliding_window", "must be a whole number of tokens, not -5"),
        (LLAMA, {"sliding_window": "wide"}, "sliding_window", "must be a whole number of tokens, not 'wide'"),
        (LLAMA, {"architectures": "x"}, "architectures", "must be a list of names, not 'x'"),
        (LLAMA, {"id2label": "x"}, "id2label", "must be a mapping of fields, not 'x'"),
        (LLAMA, {"num_labels": 10**15}, "num_labels", "1,000,000,000"),
        (WAVES, {"conv_dim": []}, "conv_dim", "at least one convolution"),
        (WAVES, {"num_conv_pos_embedding_groups": 7}, "num_conv_pos_embedding_groups", "7 groups do not divide"),
        (LLAMA, {"layer_types": "all"}, "layer_types", "must have 4 entries, one per layer, not 'all'"),
        (LLAMA, {"hidden_act": "mish"}, "hidden_act", "unknown activation 'mish'"),
        (LLAMA, {"model_type": ["llama"]}, "model_type", "are not supported"),
        (MOE, {"decoder_sparse_step": 0}, "decoder_sparse_step", "at least 1"),
        (MOE, {"mlp_only_layers": "all"}, "mlp_only_layers", "must be a list, not 'all'"),
        (MOE, {"mlp_only_layers": [99]}, "mlp_only_layers", "there is no layer 99; the model has 4 layers"),
        (MOE, {"intermediate_size": 0}, "intermediate_size", "at least 1"),
        (MOE, {"intermediate_size": "x"}, "intermediate_size", "must be a whole number"),
        (MOE, {"num_experts_per_tok": 9}, "num_experts_per_tok", "must be at most the number of experts, 8, not 9"),
        (MOE, {"num_experts_per_tok": 0}, "num_experts_per_tok", "at least 1"),
        (MOE, {"moe_intermediate_size": 0}, "moe_intermediate_size", "at least 1"),
        ({"model_type": "gpt2"}, {"n_head": 0}, "n_head", "at least 1"),
        ({"model_type": "gpt2"}, {"n_layer": 10**9}, "n_layer", "at most 10,000"),
        ({"model_type": "gpt2"}, {"n_embd": 10}, "n_head", "12 heads do not divide a width of 10"),
        ({"model_type": "t5", "num_heads": 2, "d_kv": 8, "d_ff": 0, "num_layers": 2, "d_model": 16}, {}, "d_ff", "1"),
    ],
)
def test_refused_by_the_configs_own_name(config: dict, change: dict, field: str, words: str) -> None:
    with pytest.raises(SpecError) as caught:
        from_config(config | change, file="config.json")
    assert str(caught.value).startswith(f"config.json: {field}: "), caught.value
    assert words in str(caught.value)
    assert len(str(caught.value)) < 900


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[" * 100_000 + "]" * 100_000, "nested too deep"),
        ('{"a":' * 5000 + "1" + "}" * 5000, "nested too deep"),
        ('{"hidden_size": 1' + "0" * 5000 + "}", "not valid JSON"),
        ('{"hidden_size": 32, "num_hidden_layers": 2}', "model_type: this field is missing"),
        ("[1, 2]", "a model must be a mapping"),
        ("{", "not valid JSON"),
    ],
)
def test_config_files_that_hold_no_model(tmp_path, text: str, words: str) -> None:
    file = tmp_path / "config.json"
    file.write_text(text)
    with pytest.raises(SpecError) as caught:
        resolve(file)
    assert str(caught.value).startswith(f"{file}: ")
    assert words in str(caught.value)
    assert len(str(caught.value)) < 300 + len(str(file))


def test_a_config_with_a_known_layer_list_is_still_read(tmp_path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA | {"torch_dtype": "bfloat16", "head_dim": 8}))
    assert resolve(tmp_path).layers[0].attention.head_size == 8


ATTENTION, FFN = Attention(heads=4, kv_heads=2, head_size=8), FeedForward(width=8)


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda: Attention(heads=4.0, kv_heads=2, head_size=8), "heads"),  # type: ignore[arg-type]
        (lambda: Attention(heads=True, kv_heads=1, head_size=8), "heads"),
        (lambda: Attention(heads=4, kv_heads=2, head_size=8, window="8"), "window"),  # type: ignore[arg-type]
        (lambda: Attention(heads=4, kv_heads=2, head_size=8, softcap=-1.0), "softcap"),
        (lambda: Attention(heads=4, kv_heads=2, head_size=8, qkv_bias="yes"), "qkv_bias"),  # type: ignore[arg-type]
        (lambda: FeedForward(width=8, activation="mish"), "activation"),  # type: ignore[arg-type]
        (lambda: FeedForward(width=None), "width"),  # type: ignore[arg-type]
        (lambda: MixtureOfExperts(experts=4, active=2, expert=ATTENTION), "expert"),  # type: ignore[arg-type]
        (lambda: Layer(attention=3, ffn=FFN), "attention"),
        (lambda: Layer(attention=ATTENTION, ffn=4), "ffn"),
        (lambda: toy_arch(layers=(3,)), "layers[0]"),
        (lambda: toy_arch(layers=3), "layers"),
        (lambda: toy_arch(norm="batchnorm"), "norm"),
        (lambda: toy_arch(norm_eps=float("nan")), "norm_eps"),
        (lambda: toy_arch(rope_theta=-1.0), "rope_theta"),
        (lambda: toy_arch(stem=Tokens(vocab_size=2**40)), "vocab_size"),
        (lambda: toy_arch(layers=toy_arch().layers * 5001), "layers"),
        (lambda: Design(arch="gpt2"), "arch"),  # type: ignore[arg-type]
        (lambda: Design(arch=toy_arch(), weights=8), "weights"),  # type: ignore[arg-type]
        (lambda: Workload(prompt_tokens=float("nan")), "prompt_tokens"),  # type: ignore[arg-type]
        (lambda: Workload(batch="2"), "batch"),  # type: ignore[arg-type]
        (lambda: Workload(new_tokens=0), "new_tokens"),
        (lambda: uniform(vocab_size=9, d_model=8, depth=1, heads=0, ffn_width=8), "heads"),
        (lambda: uniform(vocab_size=9, d_model=8, depth=1, heads=3, ffn_width=8), "heads"),
        (lambda: uniform(vocab_size=9, d_model=-1, depth=1, heads=2, ffn_width=8), "d_model"),
        (lambda: uniform(vocab_size=9, d_model="8", depth=1, heads=2, ffn_width=8), "d_model"),  # type: ignore[arg-type]
        (lambda: uniform(vocab_size=9, d_model=8, depth="1", heads=2, ffn_width=8), "depth"),  # type: ignore[arg-type]
        (lambda: uniform(vocab_size=9, d_model=8, depth=10**12, heads=2, ffn_width=8), "depth"),
        (lambda: uniform(vocab_size=9, d_model=8, depth=0, heads=2, ffn_width=8), "layers"),
    ],
)
def test_wrong_types_are_refused_on_construction(make: Any, field: str) -> None:
    with pytest.raises(SpecError) as caught:
        make()
    assert caught.value.field == field


def test_numpy_numbers_become_pythons() -> None:
    made = Attention(heads=np.int64(4), kv_heads=np.int32(2), head_size=8)  # type: ignore[arg-type]
    assert made == ATTENTION
    assert type(made.heads) is int
    assert type(toy_arch(norm_eps=1).norm_eps) is float
