"""Fresh weights, size limits of files, ownership of models, and error messages, checked by hand."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from chipwise.deploy.export import gguf_read, onnx
from chipwise.deploy.export.gguf import Block, block_tensors
from chipwise.deploy.export.gguf import uniform as alike
from chipwise.deploy.export.hf import _few, load_pretrained, require_folder, save_pretrained
from chipwise.deploy.export.onnx import LARGEST_BYTES, metadata, random_weights, stored_bytes
from chipwise.deploy.export.tokenizer_files import _adds, _by_name, _chat_template, _text
from chipwise.errors import SpecError, Unsupported
from chipwise.model.arch.arch import uniform
from chipwise.model.arch.design import Design
from chipwise.model.arch.feed_forward import FeedForward
from chipwise.model.arch.layer import Layer
from chipwise.model.arch.mixers import Attention
from chipwise.model.kinds.encoder.hf import bert_config, from_bert, is_bert
from chipwise.model.kinds.text.module import Transformer
from chipwise.model.published.read import resolve
from chipwise.model.walk.module import build

ARCH = uniform(vocab_size=2000, d_model=256, depth=2, heads=4, ffn_width=512, max_tokens=32, tie_embeddings=False)


def test_fresh_weights_have_the_spread_of_their_fan_in_and_outputs_are_scaled_by_depth() -> None:
    """GPT-2: residual outputs by 1/√(2 · depth), here a half."""
    weights = {name: value.detach().numpy() for name, value in build(ARCH, seed=0).named_parameters()}
    spread = {name: float(value.std()) for name, value in weights.items()}
    assert spread["embedding.weight"] == pytest.approx(1 / 16, rel=0.02)
    assert spread["head.weight"] == pytest.approx(1 / 16, rel=0.02)
    assert spread["layers.0.attention.q.weight"] == pytest.approx(1 / 16, rel=0.02)
    assert spread["layers.0.attention.out.weight"] == pytest.approx(1 / 16 / 2, rel=0.02)
    assert spread["layers.1.ffn.up.weight"] == pytest.approx(1 / 16, rel=0.02)
    assert spread["layers.1.ffn.down.weight"] == pytest.approx(1 / math.sqrt(512) / 2, rel=0.02)
    assert (weights["norm.weight"] == 1).all()
    again, other = build(ARCH, seed=0), build(ARCH, seed=1)
    assert np.array_equal(weights["head.weight"], again.head.weight.detach().numpy())
    assert not np.array_equal(weights["head.weight"], other.head.weight.detach().numpy())


def test_random_weights_are_like_fresh_ones_with_neutral_vectors() -> None:
    layer = Layer(
        attention=Attention(heads=4, kv_heads=2, head_size=64, qkv_bias=True, out_bias=True, qk_norm=True),
        ffn=FeedForward(width=512, bias=True),
        attention_conv=4,
    )
    arch = replace(ARCH, layers=(layer, replace(layer, shares=0)), norm="layernorm", norm_bias=True)
    found = random_weights(arch, seed=0)
    assert found.keys() == Transformer(arch).state_dict().keys()
    assert {name: value.shape for name, value in found.items()} == {
        name: tuple(value.shape) for name, value in Transformer(arch).state_dict().items()
    }
    for name, value in found.items():
        if value.ndim == 2:
            assert value.std() == pytest.approx(1 / math.sqrt(value.shape[1]), rel=0.03), name
        elif value.ndim == 3:
            assert value.std() == pytest.approx(0.1, rel=0.1), name
        else:
            assert (value == float(name.endswith("weight"))).all(), name


def test_the_largest_file_and_what_is_in_it() -> None:
    """Protobuf counts in 31 bits; a mebibyte is left for the graph."""
    assert LARGEST_BYTES == 2_147_483_647 - 1_048_576
    table, blocks = 2000 * 256, 2 * (4 * 256 * 256 + 3 * 256 * 512)
    vectors = 4 * 5 * 256
    assert stored_bytes(Design(arch=ARCH, weights="int8")) == 4 * table + vectors + blocks + table
    assert stored_bytes(Design(arch=ARCH, weights="int4")) == 4 * table + vectors + (blocks + table) / 2
    assert stored_bytes(Design(arch=ARCH, weights="int8 head:fp32")) == 8 * table + vectors + blocks
    tied = ARCH.with_tied(True)
    assert stored_bytes(Design(arch=tied, weights="int8 head:fp32")) == 4 * table + vectors + blocks
    assert stored_bytes(Design(arch=tied, weights="int8 head:int4")) == 4 * table + vectors + blocks + table / 2
    assert stored_bytes(Design(arch=tied)) == 4 * (table + blocks) + vectors


def test_caches_and_states_that_a_file_tells_of() -> None:
    layers = (
        Layer(attention=Attention(heads=2, kv_heads=1, head_size=64), ffn=None, attention_conv=4),
        Layer(attention=None, ffn=FeedForward(width=8), ffn_conv=3),
    )
    facts = metadata(Design(arch=replace(ARCH, layers=layers)), "all")
    assert facts["kv"] == [[0, 1, 64]]
    assert facts["conv"] == [["0.attention_conv", 256, 3], ["1.ffn_conv", 256, 2]]
    assert (facts["schema"], facts["logits"], facts["max_tokens"]) == (onnx.SCHEMA, "all", 32)
    assert "conv" not in metadata(Design(arch=ARCH), "last")


def test_names_that_are_missing_are_told_up_to_three() -> None:
    assert _few(["a"]) == 'weights "a" are'
    assert _few(["a", "b", "c"]) == 'weights "a", "b", "c" are'
    assert _few(["a", "b", "c", "d", "e"]) == 'weights "a", "b", "c" and 2 more are'


def test_a_folder_that_can_be_cut_has_three_files_of_a_known_family(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="no such folder"):
        require_folder(tmp_path / "nowhere")
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama"}))
    with pytest.raises(SpecError, match=r"it lacks weights as safetensors, tokenizer\.json"):
        require_folder(tmp_path)
    (tmp_path / "model-00001.safetensors").touch()
    (tmp_path / "tokenizer.json").touch()
    require_folder(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "gptj"}))
    with pytest.raises(Unsupported, match="'gptj' cannot be cut; those of bert, gpt2, llama"):
        require_folder(tmp_path)


def test_values_that_are_no_numbers_and_weights_of_nobody_are_refused(tmp_path: Path) -> None:
    arch = uniform(vocab_size=8, d_model=16, depth=1, heads=1, ffn_width=8, max_tokens=8)
    weights = random_weights(arch, seed=0)
    save_pretrained(arch, weights, None, tmp_path / "good")
    found, back = load_pretrained(tmp_path / "good")
    assert replace(found, name=arch.name) == arch
    assert all(np.array_equal(back[name], value) for name, value in weights.items())
    assert list(back) == list(weights)
    for value in (np.nan, np.inf):
        bad = weights | {"norm.weight": np.full(16, value, np.float32)}
        with pytest.raises(SpecError, match=r"norm\.weight has values that are not finite"):
            save_pretrained(arch, bad, None, tmp_path / "bad")
    with pytest.raises(SpecError, match='"mine" are not part'):
        save_pretrained(arch, weights | {"mine": np.ones(1, np.float32)}, None, tmp_path / "bad")
    assert not (tmp_path / "bad" / "config.json").exists()


BERT = resolve("bert-base-uncased")


@pytest.mark.parametrize(
    "change",
    [
        {"embedding_norm": False},
        {"stem": replace(BERT.stem, token_types=0)},
        {"norm": "rmsnorm"},
        {"norm_bias": False},
        {"d_model": 512},
        {"layers": (replace(BERT.layers[0], attention=None), *BERT.layers[1:])},
        {"layers": (*BERT.layers[1:], replace(BERT.layers[0], ffn=FeedForward(width=64, gated=False, bias=True)))},
        {"layers": tuple(replace(x, ffn=replace(x.ffn, gated=True)) for x in BERT.layers)},
        {"layers": tuple(replace(x, ffn=replace(x.ffn, bias=False)) for x in BERT.layers)},
        {"layers": tuple(replace(x, ffn=replace(x.ffn, activation="relu2")) for x in BERT.layers)},
        {"layers": tuple(replace(x, attention=replace(x.attention, out_bias=False)) for x in BERT.layers)},
        {"layers": tuple(replace(x, attention=replace(x.attention, qkv_bias=False)) for x in BERT.layers)},
    ],
)
def test_only_a_bert_is_saved_as_one(change: dict) -> None:
    assert is_bert(BERT)
    config = bert_config(BERT)
    assert (config["hidden_size"], config["intermediate_size"], config["num_attention_heads"]) == (768, 3072, 12)
    assert (config["num_hidden_layers"], config["type_vocab_size"], config["hidden_act"]) == (12, 2, "gelu")
    try:
        other = replace(BERT, **change)
    except SpecError:
        return  # it is no model at all
    assert not is_bert(other)
    with pytest.raises(Unsupported, match="is not a BERT"):
        bert_config(other)


def test_old_names_of_bert_are_read_and_heads_for_tasks_left_out() -> None:
    shapes = {"embedding_norm.weight": (4,), "layers.3.ffn.up.bias": (4,), "pooler.weight": (4, 4)}
    one = np.ones(4, np.float32)
    found = from_bert(
        {
            "bert.embeddings.LayerNorm.gamma": one,
            "encoder.layer.3.intermediate.dense.bias": 2 * one,
            "bert.pooler.dense.weight": 3 * one,
            "cls.predictions.bias": one,
            "strange": 4 * one,
        },
        shapes,
    )
    assert {name: value[0] for name, value in found.items()} == {
        "embedding_norm.weight": 1,
        "layers.3.ffn.up.bias": 2,
        "pooler.weight": 3,
        "strange": 4,
    }


def test_tensors_of_a_gguf_layer_and_which_rows_are_interleaved() -> None:
    attention, ffn = Attention(heads=4, kv_heads=2, head_size=8), FeedForward(width=32)
    block = Block(attention=(attention, 3), ffn=(ffn, 5))
    found = {name: (own, heads) for name, own, heads in block_tensors(block, interleaves=True)}
    assert found["attn_q.weight"] == ("layers.3.attention.q.weight", 4)
    assert found["attn_k.bias"] == ("layers.3.attention.k.bias", 2)
    assert found["attn_v.weight"] == ("layers.3.attention.v.weight", 0)
    assert found["attn_output.weight"] == ("layers.3.attention.out.weight", 0)
    assert found["attn_norm.weight"] == ("layers.3.attention_norm.weight", 0)
    assert found["ffn_down.weight"] == ("layers.5.ffn.down.weight", 0)
    assert found["ffn_norm.weight"] == ("layers.5.ffn_norm.weight", 0)
    assert len(found) == 4 + 2 * 7
    bare = Block(attention=None, ffn=(ffn, 5))
    assert [name for name, _, _ in block_tensors(bare, interleaves=True)][:2] == ["ffn_norm.weight", "ffn_gate.weight"]
    wide = replace(block, ffn=(replace(ffn, width=64), 5))
    fewer = replace(block, attention=(replace(attention, kv_heads=1), 3))
    assert (alike((block, block)), alike((block, wide)), alike((block, fewer))) == (True, False, False)
    assert (alike((bare, bare)), alike((block, bare))) == (False, False)


def test_a_field_for_all_layers_or_one_for_each() -> None:
    assert gguf_read._each(3, 2) == [3, 3]
    assert gguf_read._each([3.0, 4.0], 2) == [3, 4]


def test_special_tokens_by_their_names() -> None:
    assert _by_name(["<|endoftext|>"]) == dict.fromkeys(("bos", "eos", "pad"), "<|endoftext|>")
    assert _by_name(["<s>", "</s>", "[PAD]", "[MASK]"]) == {"bos": "<s>", "eos": "</s>", "pad": "[PAD]"}
    assert _by_name(["<eos>", "<mine>"]) == {"eos": "<eos>"}
    assert _by_name([]) == {}
    assert (_text("<s>"), _text({"content": "<s>"}), _text({"content": 3}), _text(None)) == ("<s>", "<s>", None, None)


def test_whether_a_prompt_begins_with_bos() -> None:
    begins = {"single": [{"SpecialToken": {"id": "<s>"}}, {"Sequence": {"id": "A"}}]}
    plain = {"single": [{"Sequence": {"id": "A"}}, {"SpecialToken": {"id": "<s>"}}]}
    assert _adds({"post_processor": begins}, {}, "bos", "<s>")
    assert _adds({"post_processor": {"processors": [{"type": "ByteLevel"}, begins]}}, {}, "bos", "<s>")
    assert not _adds({"post_processor": plain}, {}, "bos", "<s>")
    assert not _adds({"post_processor": begins}, {}, "bos", "</s>")
    assert not _adds({"post_processor": None}, {}, "bos", "<s>")
    assert not _adds({"post_processor": begins}, {}, "bos", None)
    assert not _adds({"post_processor": begins}, {"add_bos_token": False}, "bos", "<s>")
    ends = {"single": [{"Sequence": {"id": "A"}}, {"SpecialToken": {"id": "</s>"}}]}
    assert _adds({"post_processor": ends}, {}, "eos", "</s>")
    assert not _adds({"post_processor": begins}, {}, "eos", "</s>")
    assert _adds({}, {"add_bos_token": True}, "bos", None)


def test_a_chat_template_is_a_file_a_text_or_the_default_of_several(tmp_path: Path) -> None:
    several = [{"name": "tools", "template": "b"}, {"name": "default", "template": "a"}]
    assert _chat_template({"chat_template": several}, None) == "a"
    assert _chat_template({"chat_template": several[:1]}, None) is None
    assert _chat_template({"chat_template": "c"}, tmp_path) == "c"
    assert _chat_template({"chat_template": 3}, None) is None
    (tmp_path / "chat_template.jinja").write_text("d")
    assert _chat_template({"chat_template": "c"}, tmp_path) == "d"


@pytest.mark.parametrize(
    ("tensors", "experts"), [({"rope_freqs.weight": None}, 0), ({}, 8), ({"rope_freqs.weight": None}, 8)]
)
def test_scaled_rotations_and_experts_of_others_are_each_refused(tensors: dict, experts: int) -> None:
    fields = {"general.architecture": "llama", "llama.expert_count": experts}
    with pytest.raises(Unsupported, match="experts or with scaled rotary positions cannot be predicted"):
        gguf_read._design(gguf_read.GgufFile(Path("other.gguf"), fields, tensors, {}))
    fields["general.architecture"] = "gptj"
    with pytest.raises(Unsupported, match="a GGUF file of architecture gptj"):
        gguf_read._design(gguf_read.GgufFile(Path("other.gguf"), fields, {}, {}))
