"""Decoders older than Llama, and later ones similar to them: GPT-2, GPT-NeoX (Pythia), OPT, Falcon, Phi and Phi-2."""

from __future__ import annotations

from chipwise.errors import SpecError
from chipwise.model.arch.arch import check_heads
from chipwise.model.arch.layer import Layer
from chipwise.model.arch.mixers import Attention
from chipwise.model.published.common import attention, biased, ungated, with_layernorm
from chipwise.model.published.fields import Fields


def read_gpt2(fields: Fields) -> dict[str, object]:
    """GPT-2."""
    d_model, heads = fields.size("n_embd", 768), fields.size("n_head", 12)
    check_heads(d_model, heads, field="n_head")
    if fields.take("add_cross_attention", bool, False):
        raise SpecError("cross-attention layers are not supported", field="add_cross_attention")
    if not fields.take("scale_attn_weights", bool, True):
        fields.notes.append("scale_attn_weights: attention without scaling is not implemented")
    if fields.take("scale_attn_by_inverse_layer_idx", bool, False):
        fields.notes.append("scale_attn_by_inverse_layer_idx: scaling attention by layer number is not implemented")
    block = Attention(heads=heads, kv_heads=heads, head_size=d_model // heads, qkv_bias=True, out_bias=True, rope=False)
    width = fields.size("n_inner", 4 * d_model)
    ffn = ungated(fields, width, activation="activation_function", default="gelu_new")
    return {
        "vocab_size": fields.size("vocab_size", 50257),
        "d_model": d_model,
        "layers": (Layer(attention=block, ffn=ffn),) * fields.depth("n_layer", 12),
        "max_tokens": fields.size("n_positions", 1024),
        "tie_embeddings": fields.take("tie_word_embeddings", bool, True),
        "norm": "layernorm",
        "norm_eps": fields.take("layer_norm_epsilon", float, 1e-5),
        "norm_bias": True,
        "positions": "learned",
    }


def read_gpt_neox(fields: Fields) -> dict[str, object]:
    """GPT-NeoX and Pythia: parallel blocks; rotary positions on a quarter of each head."""
    share = fields.take("rotary_pct", float, 0.25)
    if share != 1.0:
        fields.notes.append(f"rotary_pct: rotating only {share} of each head is not implemented")
    ffn = ungated(fields, fields.size("intermediate_size"))
    block = biased(fields, default=True)
    layer = Layer(attention=block, ffn=ffn, parallel=fields.take("use_parallel_residual", bool, True))
    eps, theta = fields.take("layer_norm_eps", float, 1e-5), fields.take("rotary_emb_base", float, 10_000.0)
    stack = (layer,) * fields.depth()
    return with_layernorm(fields, stack, vocabulary=50432, tied=False, norm_eps=eps, rope_theta=theta)


def read_opt(fields: Fields) -> dict[str, object]:
    """OPT: learned positions, whose table has two extra rows."""
    d_model = fields.size("hidden_size")
    if fields.size("word_embed_proj_dim", d_model) != d_model:
        raise SpecError("a token table narrower than the model is not supported", field="word_embed_proj_dim")
    if not fields.take("do_layer_norm_before", bool, True):
        raise SpecError("norms after the blocks are not supported for this family", field="do_layer_norm_before")
    bias = fields.take("enable_bias", bool, True)
    ffn = ungated(fields, fields.size("ffn_dim"), activation="activation_function", default="relu", bias=bias)
    block = attention(fields, qkv_bias=bias, out_bias=bias, rope=False)
    affine = fields.take("layer_norm_elementwise_affine", bool, True)
    return with_layernorm(
        fields,
        (Layer(attention=block, ffn=ffn),) * fields.depth(),
        vocabulary=50272,
        tied=True,
        extra_positions=2,
        norm_bias=affine,
        norm_weight=affine,
        positions="learned",
    )


def read_falcon(fields: Fields) -> dict[str, object]:
    """Falcon: parallel blocks with one norm (7B) or two norms (40B and 180B)."""
    if fields.take("alibi", bool, False):
        raise SpecError("ALiBi positions are not supported", field="alibi")
    d_model, heads = fields.size("hidden_size"), fields.size("num_attention_heads")
    check_heads(d_model, heads, field="num_attention_heads")
    newer = fields.take("new_decoder_architecture", bool, False)
    one = fields.take("multi_query", bool, True)
    kv_heads = fields.size("num_kv_heads", heads) if newer or not one else 1
    bias = fields.take("bias", bool, False)
    two_norms = fields.size("num_ln_in_parallel_attn", 2 if newer else 1) == 2
    parallel = newer or fields.take("parallel_attn", bool, True)
    layer = Layer(
        attention=Attention(heads=heads, kv_heads=kv_heads, head_size=d_model // heads, qkv_bias=bias, out_bias=bias),
        ffn=ungated(fields, fields.size("ffn_hidden_size", 4 * d_model), activation="activation", bias=bias),
        parallel=parallel,
        ffn_norm=two_norms or not parallel,
    )
    eps, stack = fields.take("layer_norm_epsilon", float, 1e-5), (layer,) * fields.depth()
    return with_layernorm(fields, stack, vocabulary=65024, tied=True, norm_eps=eps, rope_theta=fields.theta())


def read_phi(fields: Fields) -> dict[str, object]:
    """Phi-1.5 and Phi-2: parallel blocks with one norm; biases everywhere, including the head."""
    share = fields.take("partial_rotary_factor", float, 0.5)
    if share != 1.0:
        fields.notes.append(f"partial_rotary_factor: rotating only {share} of each head is not implemented")
    if fields.take("qk_layernorm", bool, False):
        raise SpecError("LayerNorm on queries and keys is not supported", field="qk_layernorm")
    layer = Layer(
        attention=attention(fields, qkv_bias=True, out_bias=True),
        ffn=ungated(fields, fields.size("intermediate_size"), default="gelu_new"),
        parallel=True,
        ffn_norm=False,
    )
    eps, theta = fields.take("layer_norm_eps", float, 1e-5), fields.take("rope_theta", float, 10_000.0)
    stack = (layer,) * fields.depth()
    return with_layernorm(fields, stack, tied=False, head_bias=True, norm_eps=eps, rope_theta=theta)
