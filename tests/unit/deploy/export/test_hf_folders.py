"""Hugging Face folders: transformers computes the same logits from what we write, and we from what it writes."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file
from tokenizers import Tokenizer
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from chipwise.api.testing.specs import toy_arch
from chipwise.deploy.export.hf import load_pretrained, save_pretrained
from chipwise.errors import SpecError, StorageError, Unsupported
from chipwise.model.arch.arch import ArchSpec, uniform
from chipwise.model.arch.ends import Tokens
from chipwise.model.arch.feed_forward import FeedForward
from chipwise.model.arch.layer import Layer
from chipwise.model.arch.mixers import Attention
from chipwise.model.kinds.text.module import Transformer
from chipwise.training.data.tokenizer import SEPARATOR, train_tokenizer
from support.block_suite import random_tokens, shaken
from support.models import arch_specs, llama_like_specs


def transformer(arch: ArchSpec, weights: dict[str, np.ndarray]) -> Transformer:
    model = Transformer(arch)
    model.load_state_dict({name: torch.from_numpy(value) for name, value in weights.items()})
    return model.eval()


def greedy(model: Transformer, prompt: torch.Tensor, count: int) -> torch.Tensor:
    """Greedy decoding without any cache."""
    for _ in range(count):
        prompt = torch.cat((prompt, model(prompt)[0][:, -1].argmax(-1, keepdim=True)), dim=1)
    return prompt


def agrees(arch: ArchSpec, folder) -> None:
    """Logits, greedy generation through the cache, and reading back."""
    ours = shaken(arch, seed=0)
    save_pretrained(arch, ours.state_dict(), None, folder)
    theirs = AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True).eval()
    assert sum(p.numel() for p in theirs.parameters()) == arch.parameters()
    prompt = random_tokens(arch, length=13, batch=2)
    with torch.no_grad():
        expected = ours(prompt)[0]
        torch.testing.assert_close(theirs(prompt).logits, expected, atol=1e-5, rtol=1e-5)
        seen = torch.ones_like(prompt)
        out = theirs.generate(prompt, attention_mask=seen, max_new_tokens=12, do_sample=False, pad_token_id=0)
        assert torch.equal(out, greedy(ours, prompt, 12))
    back, weights = load_pretrained(folder)
    assert back == arch or back.digest == arch.digest
    for name, value in ours.state_dict().items():
        np.testing.assert_array_equal(weights[name], value.numpy())


def test_learned_positions_go_on_where_no_layer_attends(tmp_path) -> None:
    """Nothing is kept of each token then, so the cache itself must know how many there were."""
    arch = toy_arch(layers=(Layer(attention=None, ffn=FeedForward(width=24)),), positions="learned")
    agrees(arch, tmp_path)
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path, trust_remote_code=True).eval()
    tokens = random_tokens(arch, length=9)
    with torch.no_grad():
        first = theirs(tokens[:, :5])
        rest = theirs(tokens[:, 5:], past_key_values=first.past_key_values)
        torch.testing.assert_close(rest.logits, theirs(tokens).logits[:, 5:], atol=1e-5, rtol=1e-5)


HYPOTHESIS = settings(
    max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], derandomize=True
)


@HYPOTHESIS
@given(arch=arch_specs())
def test_any_model_is_computed_by_transformers(arch: ArchSpec, tmp_path_factory) -> None:
    agrees(arch, tmp_path_factory.mktemp("folder"))


@HYPOTHESIS
@given(arch=llama_like_specs())
def test_llama_like_models_are_computed_by_transformers(arch: ArchSpec, tmp_path_factory) -> None:
    agrees(arch, tmp_path_factory.mktemp("folder"))


@pytest.mark.parametrize(
    ("attention", "model_type"),
    [
        ({}, "llama"),
        ({"kv_heads": 1, "qkv_bias": True, "out_bias": True}, "llama"),
        ({"heads": 5, "kv_heads": 5, "head_size": 8}, "mistral"),
        ({"window": 4}, "mistral"),
        ({"qkv_bias": True}, "qwen2"),
        ({"qk_norm": True, "head_size": 16}, "qwen3"),
    ],
)
def test_uniform_models_need_no_code_of_ours(attention: dict, model_type: str, tmp_path) -> None:
    fields = {"heads": 4, "kv_heads": 2, "head_size": 8} | attention
    layer = Layer(attention=Attention(**fields), ffn=FeedForward(width=48))
    arch = ArchSpec(name="m", stem=Tokens(vocab_size=40), d_model=32, layers=(layer,) * 2, max_tokens=64)
    agrees(arch, tmp_path)
    assert AutoConfig.from_pretrained(tmp_path).model_type == model_type
    assert not list(tmp_path.glob("*.py"))


def test_our_modelling_file_imports_nothing_of_ours(tmp_path) -> None:
    save_pretrained(toy_arch(), shaken(toy_arch(), seed=0).state_dict(), None, tmp_path)
    code = [(tmp_path / name).read_text() for name in ("modeling_chipwise.py", "chipwise_blocks.py")]
    lines = [line for file in code for line in file.splitlines()]
    imported = {line.split()[1].split(".")[0] for line in lines if line.startswith(("import ", "from "))}
    standard = {"__future__", "collections", "dataclasses", "itertools", "typing"}
    assert imported == standard | {"torch", "transformers", ""}
    assert [line for line in lines if line.startswith("from .")] == ["from .chipwise_blocks import ("]
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["auto_map"]["AutoModelForCausalLM"] == "modeling_chipwise.ChipwiseForCausalLM"


@pytest.mark.parametrize("positions", ["rope", "learned", "none"])
def test_padding_on_the_left_changes_nothing(positions: str, tmp_path) -> None:
    layer = Layer(
        attention=Attention(heads=2, kv_heads=1, head_size=8, rope=positions == "rope", window=6),
        ffn=FeedForward(width=24, gated=False),
    )
    arch = toy_arch(layers=(layer,) * 2, positions=positions)
    ours = shaken(arch, seed=0)
    theirs = AutoModelForCausalLM.from_pretrained(
        save_pretrained(arch, ours.state_dict(), None, tmp_path), trust_remote_code=True
    ).eval()
    prompt = random_tokens(arch, length=13)
    padded = torch.cat((torch.zeros((1, 5), dtype=torch.long), prompt), dim=1)
    mask = torch.tensor([[0] * 5 + [1] * 13])
    out = theirs.generate(padded, attention_mask=mask, max_new_tokens=8, do_sample=False, pad_token_id=0)
    with torch.no_grad():
        assert torch.equal(out[:, 5:], greedy(ours, prompt, 8))


def test_beam_search_loss_and_one_position_of_logits(tmp_path) -> None:
    ours = shaken(toy_arch(), seed=0)
    theirs = AutoModelForCausalLM.from_pretrained(
        save_pretrained(toy_arch(), ours.state_dict(), None, tmp_path), trust_remote_code=True
    ).eval()
    prompt = random_tokens(toy_arch(), length=13, batch=2)
    with torch.no_grad():
        logits = ours(prompt)[0]
        expected = torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), prompt[:, 1:].flatten())
        torch.testing.assert_close(theirs(prompt, labels=prompt).loss, expected)
        torch.testing.assert_close(theirs(prompt, logits_to_keep=1).logits, logits[:, -1:], atol=1e-5, rtol=1e-5)
        beams = theirs.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            num_beams=3,
            max_new_tokens=5,
            do_sample=False,
            pad_token_id=0,
        )
    assert beams.shape == (2, 18)


def test_what_transformers_saves_again_is_the_same_model(tmp_path) -> None:
    ours = shaken(toy_arch(), seed=0)
    first = save_pretrained(toy_arch(), ours.state_dict(), None, tmp_path / "first")
    AutoModelForCausalLM.from_pretrained(first, trust_remote_code=True).save_pretrained(tmp_path / "second")
    arch, weights = load_pretrained(tmp_path / "second")
    assert arch == toy_arch()
    for name, value in ours.state_dict().items():
        np.testing.assert_array_equal(weights[name], value.numpy())


def test_the_tokenizer_gives_the_same_tokens(tmp_path) -> None:
    text = [f"An abnormality of the {part}, number {i}." for i in range(40) for part in ("left ear", "naïve iris")]
    trained = train_tokenizer(text, 300)
    trained.save(str(tmp_path / "tokenizer.json"))
    for arch in (
        toy_arch().of_vocabulary(300),
        uniform(vocab_size=300, d_model=16, depth=1, heads=2, ffn_width=8),
    ):
        weights = shaken(arch, seed=0).state_dict()
        folder = save_pretrained(
            arch, weights, tmp_path / "tokenizer.json", tmp_path / arch.name, {"card.md": "# a card"}
        )
        tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=True)
        for sample in (*text[:4], " two  spaces\n\tand ünïcode 日本", f"a{SEPARATOR}b", ""):
            ids = Tokenizer.from_file(str(tmp_path / "tokenizer.json")).encode(sample).ids
            assert tokenizer(sample)["input_ids"] == ids
            assert tokenizer.decode(ids) == sample
        assert tokenizer.eos_token_id == 0
        config = AutoConfig.from_pretrained(folder, trust_remote_code=True)
        assert (config.eos_token_id, config.bos_token_id) == (0, 0)
        assert (folder / "card.md").read_text() == "# a card"


PEERS = {
    "gpt2": {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64, "activation_function": "gelu_new"},
    "llama": {"num_key_value_heads": 2, "rope_theta": 5e5},
    "llama-biased": {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True},
    "mistral": {"num_key_value_heads": 1, "sliding_window": 5, "head_dim": 16},
    "qwen2": {"num_key_value_heads": 2},
    "qwen2-windowed": {
        "num_key_value_heads": 4,
        "use_sliding_window": True,
        "sliding_window": 4,
        "max_window_layers": 1,
    },
    "qwen3": {"num_key_value_heads": 2, "head_dim": 16, "tie_word_embeddings": True},
}
COMMON = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
}


def peer(name: str):
    """A tiny random model of transformers, its norms and biases shaken."""
    fields = {"model_type": name.partition("-")[0], "vocab_size": 60} | PEERS[name]
    if name != "gpt2":
        fields = COMMON | fields
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**fields)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn(parameter.shape)
    return model


@pytest.mark.parametrize("name", PEERS)
def test_models_of_transformers_are_computed_by_us(name: str, tmp_path) -> None:
    theirs = peer(name)
    theirs.save_pretrained(tmp_path)
    arch, weights = load_pretrained(tmp_path)
    prompt = torch.randint(0, 60, (2, 17), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        logits = transformer(arch, weights)(prompt)[0]
        torch.testing.assert_close(logits, theirs(prompt).logits, atol=2e-5, rtol=1e-5)
    assert arch.parameters() == sum(p.numel() for p in theirs.parameters())


def test_shards_half_precision_and_old_gpt2_files(tmp_path) -> None:
    theirs = peer("llama").to(torch.bfloat16)
    theirs.save_pretrained(tmp_path / "shards", max_shard_size="20KB")
    assert len(list((tmp_path / "shards").glob("*.safetensors"))) > 1
    _, weights = load_pretrained(tmp_path / "shards")
    for name, value in {
        "embedding.weight": theirs.model.embed_tokens.weight,
        "norm.weight": theirs.model.norm.weight,
    }.items():
        np.testing.assert_array_equal(weights[name], value.detach().float().numpy())
    gpt2 = peer("gpt2")
    gpt2.save_pretrained(tmp_path / "gpt2")
    file = tmp_path / "gpt2" / "model.safetensors"
    old = {name.removeprefix("transformer."): value for name, value in load_file(file).items()}
    save_file(old | {"h.0.attn.bias": np.ones((1, 1, 64, 64), np.float32)}, file)
    _, weights = load_pretrained(tmp_path / "gpt2")
    np.testing.assert_array_equal(weights["embedding.weight"], gpt2.transformer.wte.weight.detach().numpy())


def test_what_would_compute_other_logits_is_refused(tmp_path) -> None:
    theirs = peer("llama")
    theirs.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    config["rope_parameters"] = {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(Unsupported, match="linear"):
        load_pretrained(tmp_path)


def test_wrong_weights_are_named(tmp_path) -> None:
    weights = dict(shaken(toy_arch(), seed=0).state_dict())
    missing = {name: value for name, value in weights.items() if "ffn.up" not in name}
    with pytest.raises(SpecError, match=r"layers\.0\.ffn\.up\.weight.*missing"):
        save_pretrained(toy_arch(), missing, None, tmp_path)
    with pytest.raises(SpecError, match=r"stray.*not part of toy"):
        save_pretrained(toy_arch(), weights | {"stray": torch.zeros(1)}, None, tmp_path)
    with pytest.raises(SpecError, match=r"norm\.weight has shape \(3,\), toy needs \(16,\)"):
        save_pretrained(toy_arch(), weights | {"norm.weight": torch.zeros(3)}, None, tmp_path)
    assert not (tmp_path / "config.json").exists()


def test_folders_that_hold_no_model(tmp_path) -> None:
    with pytest.raises(SpecError, match=r"config\.json: there is no such file"):
        load_pretrained(tmp_path)
    save_pretrained(toy_arch(), shaken(toy_arch(), seed=0).state_dict(), None, tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"not tensors at all")
    with pytest.raises(SpecError, match="not a complete safetensors file"):
        load_pretrained(tmp_path)
    integers = {name: value.numpy() for name, value in shaken(toy_arch(), seed=0).state_dict().items()}
    integers["norm.weight"] = integers["norm.weight"].astype(np.int64)
    save_file(integers, tmp_path / "model.safetensors")
    with pytest.raises(Unsupported, match=r"model\.safetensors: norm\.weight: stored as torch\.int64"):
        load_pretrained(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(SpecError, match="safetensors only"):
        load_pretrained(tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError):
        save_pretrained(toy_arch(), shaken(toy_arch(), seed=0).state_dict(), None, tmp_path / "file" / "folder")


@given(st.integers(0, 2**32 - 1))
@settings(max_examples=3, deadline=None, derandomize=True)
def test_saving_twice_writes_the_same_bytes(seed: int) -> None:
    from pathlib import Path
    from tempfile import TemporaryDirectory

    model = shaken(toy_arch(), seed=seed)
    with TemporaryDirectory() as one, TemporaryDirectory() as two:
        for folder in (one, two):
            save_pretrained(toy_arch(), model.state_dict(), None, folder)
        for file in Path(one).iterdir():
            assert file.read_bytes() == (Path(two) / file.name).read_bytes()


def test_models_that_are_priced_and_not_built_are_refused_with_their_weights(tmp_path) -> None:
    """By the block that is not built, or by the family whose weights have names of their own."""
    fields = {"vocab_size": 20, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    refused = {
        "mixtral": ({"intermediate_size": 24, "num_key_value_heads": 1}, "MixtureOfExperts block"),
        "phi3": ({"intermediate_size": 24}, "weights of phi3 models cannot be read"),
    }
    for kind, (more, words) in refused.items():
        (tmp_path / "config.json").write_text(json.dumps({"model_type": kind, **fields, **more}))
        with pytest.raises(Unsupported, match=words):
            load_pretrained(tmp_path)
