"""Encoders and encoder-decoders: BERT (and MiniLM, RoBERTa), ModernBERT, T5."""

from __future__ import annotations

from dataclasses import replace

from chipwise.model.arch.feed_forward import Activation, FeedForward
from chipwise.model.arch.layer import Layer
from chipwise.model.arch.mixers import Attention
from chipwise.model.published.common import attention, biased, ungated
from chipwise.model.published.fields import Fields


def read_bert(fields: Fields) -> dict[str, object]:
    """BERT as a text encoder: token, segment and position embeddings, a norm after each residual sum, a pooler."""
    layer = Layer(
        attention=attention(fields, qkv_bias=True, out_bias=True, rope=False, causal=False),
        ffn=ungated(fields, fields.size("intermediate_size")),
    )
    if fields.take("position_embedding_type", str, "absolute") != "absolute":
        fields.notes.append("position_embedding_type: relative position embeddings are not implemented")
    fields.skip("attention_probs_dropout_prob", "hidden_dropout_prob", "classifier_dropout", "tie_word_embeddings")
    return {
        "vocab_size": fields.size("vocab_size", 30522),
        "d_model": fields.size("hidden_size"),
        "layers": (layer,) * fields.depth(),
        "max_tokens": fields.size("max_position_embeddings", 512),
        "norm": "layernorm",
        "norm_eps": fields.take("layer_norm_eps", float, 1e-12),
        "norm_bias": True,
        "norm_place": "post",
        "positions": "learned",
        "final_norm": False,
        "embedding_norm": True,
        "head": "pooler",
        "token_types": fields.size("type_vocab_size", 2, least=0),
    }


def read_modernbert(fields: Fields) -> dict[str, object]:
    """ModernBERT as a text encoder: rotary positions; every third layer is global, all others have a window."""
    heads = biased(fields, causal=False)
    ffn = FeedForward(
        width=fields.size("intermediate_size"),
        activation=fields.activation("hidden_activation", "gelu"),
        bias=fields.take("mlp_bias", bool, False),
    )
    every, window = fields.size("global_attn_every_n_layers", 3), fields.size("local_attention", 128)
    stack = (
        Layer(attention=replace(heads, window=window if i % every else None), ffn=ffn, attention_norm=i > 0)
        for i in range(fields.depth())
    )
    return {
        "vocab_size": fields.size("vocab_size", 50368),
        "d_model": fields.size("hidden_size"),
        "layers": tuple(stack),
        "max_tokens": fields.size("max_position_embeddings", 8192),
        "norm": "layernorm",
        "norm_eps": fields.take("norm_eps", float, 1e-5),
        "norm_bias": fields.take("norm_bias", bool, False),
        "embedding_norm": True,
        "head": "none",
        "rope_theta": fields.take("global_rope_theta", float, 160_000.0),
    }


def read_t5(fields: Fields) -> dict[str, object]:
    """T5 and FLAN-T5: an encoder and a decoder; the first layer of each has the table of position biases."""
    heads, size = fields.size("num_heads"), fields.size("d_kv")
    kind, _, name = fields.take("feed_forward_proj", str, "relu").rpartition("-")
    known: dict[str, Activation] = {"relu": "relu", "gelu": "gelu_tanh", "silu": "silu"}
    if name not in known:
        fields.activation("feed_forward_proj")  # raises an error that lists the known activations
    ffn = FeedForward(width=fields.size("d_ff"), activation=known[name], gated=kind == "gated")
    buckets = fields.size("relative_attention_num_buckets", 32)
    count = fields.depth("num_layers")

    def block(first: bool, *, causal: bool) -> Attention:
        return Attention(
            heads=heads,
            kv_heads=heads,
            head_size=size,
            rope=False,
            causal=causal,
            relative_buckets=buckets if first else 0,
        )

    cross = block(False, causal=False)
    decoder_count = fields.depth("num_decoder_layers", count)
    return {
        "vocab_size": fields.size("vocab_size", 32128),
        "d_model": fields.size("d_model"),
        "layers": tuple(
            Layer(attention=block(i == 0, causal=True), cross=cross, ffn=ffn) for i in range(decoder_count)
        ),
        "encoder": tuple(Layer(attention=block(i == 0, causal=False), ffn=ffn) for i in range(count)),
        "max_tokens": fields.size("n_positions", 512),
        "tie_embeddings": fields.take("tie_word_embeddings", bool, True),
        "norm_eps": fields.take("layer_norm_epsilon", float, 1e-6),
        "positions": "none",
    }
