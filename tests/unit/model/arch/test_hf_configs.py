"""Hugging Face configs: published sizes, transformers' own models as peers, and what is refused."""

from __future__ import annotations

import dataclasses
import json

import pytest
from hypothesis import given

from chipwise.api.testing.specs import toy_arch
from chipwise.errors import SpecError, UnknownName, Unsupported
from chipwise.model.arch.arch import ArchSpec
from chipwise.model.arch.io import save
from chipwise.model.published import families
from chipwise.model.published.read import from_config, read_config, resolve
from chipwise.model.published.write import family_of, to_config
from support.models import llama_like_specs


@given(llama_like_specs())
def test_what_is_written_is_read_back(arch: ArchSpec) -> None:
    if family_of(arch) is None:
        with pytest.raises(Unsupported, match="not a Llama-style model"):
            to_config(arch)
    else:
        assert from_config(json.loads(json.dumps(to_config(arch))), name=arch.name) == arch


LLAMA_LIKE = [name for name in families.names() if family_of(resolve(name)) is not None]


@pytest.mark.parametrize("name", LLAMA_LIKE)
def test_known_models_survive_writing_and_reading(name: str) -> None:
    arch = resolve(name)
    assert from_config(to_config(arch), name=arch.name) == arch


def test_layers_that_differ_belong_to_no_family() -> None:
    assert family_of(toy_arch()) is None
    alike = toy_arch(layers=(toy_arch().layers[0],) * 2)
    assert family_of(alike) == "llama"
    shared = toy_arch(layers=(alike.layers[0], dataclasses.replace(alike.layers[0], shares=0)))
    assert family_of(shared) is None


LLAMA = {
    "model_type": "llama",
    "vocab_size": 100,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
}


def test_missing_fields_mean_what_transformers_means() -> None:
    arch = from_config(LLAMA)
    assert arch.layers[0].attention is not None
    assert arch.layers[0].attention.kv_heads == 4
    assert (arch.tie_embeddings, arch.norm_eps, arch.max_tokens, arch.rope_theta) == (False, 1e-6, 2048, 10_000.0)


def test_biases_count() -> None:
    """Attention: q, k, v and out 32 each; FFN: gate and up 64, down 32; two layers."""
    biased = from_config(LLAMA | {"attention_bias": True, "mlp_bias": True})
    assert biased.parameters() - from_config(LLAMA).parameters() == 2 * (4 * 32 + 2 * 64 + 32)


def test_rotary_base_of_both_generations_of_configs() -> None:
    assert from_config(LLAMA | {"rope_theta": 5e5}).rope_theta == 5e5
    assert from_config(LLAMA | {"rope_parameters": {"rope_type": "default", "rope_theta": 7e5}}).rope_theta == 7e5


def test_what_changes_logits_and_not_costs_is_noted() -> None:
    assert read_config(LLAMA).notes == ()
    stretched = read_config(LLAMA | {"rope_scaling": {"type": "linear", "factor": 2.0}})
    assert "linear" in stretched.notes[0]
    assert read_config(LLAMA | {"rope_interleaved": False, "eos_token_id": 2}).notes == ()
    assert read_config(LLAMA | {"residual_multiplier": 0.2}).notes == ("residual_multiplier: not known to chipwise",)


def test_sliding_windows() -> None:
    mistral = LLAMA | {"model_type": "mistral"}
    windows = [from_config(mistral | extra).layers[0].attention.window for extra in ({}, {"sliding_window": None})]
    assert windows == [4096, None]
    qwen = LLAMA | {"model_type": "qwen2", "sliding_window": 8, "max_window_layers": 1}
    assert [layer.attention.window for layer in from_config(qwen).layers] == [None, None]
    assert [layer.attention.window for layer in from_config(qwen | {"use_sliding_window": True}).layers] == [None, 8]


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        (
            {"model_type": "mamba"},
            SpecError,
            "model_type: models of type 'mamba' are not supported; known: beit, bert, chatglm",
        ),
        ({"hidden_act": "sulu"}, SpecError, "hidden_act: unknown activation 'sulu'; did you mean 'silu'"),
        ({"hidden_size": "32"}, SpecError, "hidden_size: must be a whole number"),
        ({"num_hidden_layers": None}, SpecError, "num_hidden_layers: this field is missing"),
        ({"num_attention_heads": 3}, SpecError, "num_attention_heads: 3 heads do not divide a width of 32"),
        ({"rope_parameters": {"full_attention": {}}}, SpecError, "rope_parameters: must be one set"),
        ({"model_type": "qwen3", "layer_types": ["mamba"] * 2}, SpecError, "layer_types[0]: layers of type 'mamba'"),
        ({"model_type": "gpt2", "n_embd": 32, "n_head": 4, "add_cross_attention": True}, SpecError, "cross-attention"),
    ],
)
def test_refusals_name_the_field(change: dict, error: type[Exception], words: str) -> None:
    with pytest.raises(error) as caught:
        from_config(LLAMA | change)
    assert words in str(caught.value)


def test_resolve_reads_names_files_and_folders(tmp_path) -> None:
    folder = tmp_path / "tiny"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(LLAMA))
    assert resolve(folder) == resolve(folder / "config.json") == from_config(LLAMA, name="tiny")
    save(toy_arch(), tmp_path / "toy.json")
    assert resolve(str(tmp_path / "toy.json")) == toy_arch()
    assert resolve("GPT2").name == "GPT2"
    with pytest.raises(UnknownName, match="did you mean 'HuggingFaceTB/SmolLM2-135M'"):
        resolve("SmolLM-135M")
    with pytest.raises(UnknownName, match=r"did you mean 'google/siglip-base-patch16-224', "):
        resolve("SigLIP")
    with pytest.raises(UnknownName, match=r"none of \d+ known names is similar; list them with: chipwise models"):
        resolve("zzzz")
    with pytest.raises(SpecError, match="no such file"):
        resolve(tmp_path / "absent.yaml")
    with pytest.raises(SpecError, match=r"holds no config\.json"):
        resolve(tmp_path)
