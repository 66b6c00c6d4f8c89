"""Audio encoders: Whisper, Moonshine, wav2vec 2.0, HuBERT, and Conformers.

References:
    Whisper arXiv:2212.04356, Moonshine arXiv:2410.15608, wav2vec 2.0 arXiv:2006.11477, HuBERT arXiv:2106.07447,
    Conformer arXiv:2005.08100, Fast Conformer (Parakeet) arXiv:2305.05084. Names of config fields: from
    transformers' configs; for Conformer-CTC, from NeMo's config.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from chipwise.errors import SpecError, short
from chipwise.model.arch.arch import check_heads
from chipwise.model.arch.feed_forward import FeedForward
from chipwise.model.arch.layer import Layer
from chipwise.model.arch.mixers import Attention, ConvModule
from chipwise.model.arch.rates import FRAMES_PER_S, SAMPLES_PER_S
from chipwise.model.kinds.sound.stem import SoundConv, SoundStem
from chipwise.model.published.common import equal_heads, of_signals
from chipwise.model.published.fields import Fields

SECONDS = 10.0
"""Default length of the sound in a request, in seconds, for models that read sounds of any length."""
NEUTRAL = (
    "activation_dropout", "adapter_attn_dim", "adapter_kernel_size", "adapter_stride", "add_adapter",
    "apply_spec_augment", "begin_suppress_tokens", "blank_token_id", "classifier_proj_size", "codevector_dim",
    "conformer_conv_dropout", "contrastive_logits_temperature", "conv_pos_batch_norm", "ctc_loss_reduction",
    "ctc_zero_infinity", "decoder_layerdrop", "decoder_start_token_id", "diversity_loss_weight", "dropout",
    "dropout_positions", "encoder_layerdrop", "feat_extract_activation", "feat_extract_dropout", "feat_proj_dropout",
    "feat_quantizer_dropout", "final_dropout", "forced_decoder_ids", "hidden_dropout", "hidden_dropout_prob",
    "init_std", "is_encoder_decoder", "layerdrop", "mask_channel_length", "mask_channel_min_space",
    "mask_channel_other", "mask_channel_prob", "mask_channel_selection", "mask_feature_length",
    "mask_feature_min_masks", "mask_feature_prob", "mask_time_length", "mask_time_min_masks", "mask_time_min_space",
    "mask_time_other", "mask_time_prob", "mask_time_selection", "max_source_positions", "median_filter_width",
    "num_adapter_layers", "num_codevector_groups", "num_codevectors_per_group", "num_ctc_classes",
    "num_feat_extract_layers", "num_hidden_layers", "num_negatives", "output_hidden_size", "partial_rotary_factor",
    "proj_codevector_dim", "rope_scaling", "rotary_embedding_base", "scale_embedding", "scale_input",
    "suppress_tokens", "tdnn_dilation", "tdnn_dim", "tdnn_kernel", "tokenizer_class", "use_weighted_layer_sum",
    "xvector_output_dim", "return_dict", "tie_word_embeddings", "vocab_size", "ignore_value", "_name_or_path",
    "num_frames", "is_decoder", "hidden_act", "pad_head_dim_to_multiple_of", "rope_parameters", "convolution_bias",
    "id2label", "label2id", "max_position_embeddings",
)  # fmt: skip
"""Config fields that do not affect the computation for a sound, or that follow from other fields."""


def _attention(heads: int, width: int, **more: object) -> Attention:
    check_heads(width, heads)
    return equal_heads(heads, width, **more)


def _done(fields: Fields, found: dict[str, object]) -> dict[str, object]:
    fields.skip(*NEUTRAL)
    return found


def whisper_stem(d_model: int, rows: int, bands: int) -> SoundStem:
    """Whisper's stem: two convolutions, the second of which halves the frames, and a table of ``rows`` positions."""
    first, second = (SoundConv(channels=d_model, kernel=3, stride=stride, pad=1) for stride in (1, 2))
    seconds = 2 * rows / FRAMES_PER_S
    return SoundStem(seconds=seconds, rate=FRAMES_PER_S, channels=bands, convs=(first, second), position_rows=rows)


def _conformer_stem(bands: int, convs: Sequence[SoundConv]) -> SoundStem:
    return SoundStem(seconds=SECONDS, rate=FRAMES_PER_S, channels=bands, axes=2, convs=tuple(convs), matrix=True)


def read_whisper(fields: Fields) -> dict[str, object]:
    """Whisper: 30 s of log-mel frames, two convolutions, sinusoidal positions, an encoder, and a decoder."""
    d = fields.size("d_model")
    stem = whisper_stem(d, fields.size("max_source_positions", 1500), fields.size("num_mel_bins", 80))
    activation = fields.activation("activation_function", "gelu")

    def ffn(name: str) -> FeedForward:
        return FeedForward(width=fields.size(name, 4 * d), activation=activation, gated=False, bias=True)

    biases = {"qkv_bias": True, "key_bias": False, "out_bias": True}
    heads, readers = fields.size("decoder_attention_heads"), fields.size("encoder_attention_heads")
    decode = Layer(
        attention=_attention(heads, d, causal=True, **biases),
        cross=_attention(heads, d, **biases),
        ffn=ffn("decoder_ffn_dim"),
    )
    encode = Layer(attention=_attention(readers, d, **biases), ffn=ffn("encoder_ffn_dim"))
    found = {
        "vocab_size": fields.size("vocab_size", 51865),
        "d_model": d,
        "layers": (decode,) * fields.depth("decoder_layers"),
        "encoder": (encode,) * fields.depth("encoder_layers"),
        "encoder_stem": stem,
        "max_tokens": fields.size("max_target_positions", 448),
        "norm": "layernorm",
        "norm_bias": True,
        "positions": "learned",
    }
    return _done(fields, found)


def read_moonshine(fields: Fields) -> dict[str, object]:
    """Moonshine: three convolutions over samples, rotary positions, a decoder with SwiGLU; sounds of any length."""
    d, width = fields.size("hidden_size"), fields.size("intermediate_size")
    stem = SoundStem(
        seconds=SECONDS,
        rate=SAMPLES_PER_S,
        channels=1,
        convs=(
            SoundConv(channels=d, kernel=127, stride=64, bias=False, norm="group", activation="tanh"),
            SoundConv(channels=2 * d, kernel=7, stride=3),
            SoundConv(channels=d, kernel=3, stride=2),
        ),
    )
    bias = fields.take("attention_bias", bool, False)
    both = {"qkv_bias": bias, "rope": True}

    def heads(part: str, **more: object) -> Attention:
        found = _attention(fields.size(f"{part}_num_attention_heads"), d, **{**both, **more})
        kv = fields.size(f"{part}_num_key_value_heads", found.heads)
        return replace(found, kv_heads=kv)

    encode = Layer(attention=heads("encoder"), ffn=_ffn(fields, "encoder_hidden_act", "gelu", width, gated=False))
    decode = Layer(
        attention=heads("decoder", causal=True),
        cross=heads("decoder", rope=False),
        ffn=_ffn(fields, "decoder_hidden_act", "silu", width, gated=True),
    )
    found = {
        "vocab_size": fields.size("vocab_size", 32768),
        "d_model": d,
        "layers": (decode,) * fields.depth("decoder_num_hidden_layers"),
        "encoder": (encode,) * fields.depth("encoder_num_hidden_layers"),
        "encoder_stem": stem,
        "max_tokens": fields.size("max_position_embeddings", 512),
        "norm": "layernorm",
        "rope_theta": fields.theta(),
    }
    return _done(fields, found)


def read_wav2vec2(fields: Fields) -> dict[str, object]:
    """wav2vec 2.0 and HuBERT: seven convolutions over samples, a wide one for positions; optionally a CTC head."""
    before = fields.take("do_stable_layer_norm", bool, False)
    heads = _attention(fields.size("num_attention_heads"), fields.size("hidden_size"), qkv_bias=True, out_bias=True)
    ffn = _ffn(fields, "hidden_act", "gelu", fields.size("intermediate_size"), gated=False)
    norms = {"norm_place": "pre" if before else "post", "embedding_norm": not before, "final_norm": before}
    return _of_samples(fields, Layer(attention=heads, ffn=ffn), positions="none", **norms)


def read_wav2vec2_conformer(fields: Fields) -> dict[str, object]:
    """wav2vec 2.0 with Conformer layers: relative position keys, or rotary positions."""
    kind = fields.take("position_embeddings_type", str, "relative")
    if kind not in ("relative", "rotary"):
        raise SpecError(f"positions of type {short(kind)} are not supported", field="position_embeddings_type")
    attention = _attention(
        fields.size("num_attention_heads"), fields.size("hidden_size"), qkv_bias=True, out_bias=True,
        relative_keys=kind == "relative", rope=kind == "rotary",
    )  # fmt: skip
    layer = _conformer_layer(
        attention,
        _ffn(fields, "hidden_act", "gelu", fields.size("intermediate_size"), gated=False),
        ConvModule(taps=fields.size("conv_depthwise_kernel_size", 31), bias=False),
    )
    return _of_samples(fields, layer, positions="rope" if kind == "rotary" else "none")


def _of_samples(fields: Fields, layer: Layer, **changes: object) -> dict[str, object]:
    stack, eps = (layer,) * fields.depth(), fields.take("layer_norm_eps", float, 1e-5)
    found = of_signals(_samples_stem(fields), fields.size("hidden_size"), stack, norm_eps=eps, **changes)
    return _done(fields, found | _head(fields))


def read_parakeet(fields: Fields) -> dict[str, object]:
    """Fast Conformer with CTC (Parakeet): depthwise separable convolutions reduce frames eightfold."""
    inner = fields.maybe("encoder_config")
    if not isinstance(inner, dict):
        raise SpecError("this field is missing; it holds the encoder's fields", field="encoder_config")
    encoder = Fields(inner)
    found = _fast_conformer(encoder)
    return _done(fields, found | {"head": "ctc", "classes": fields.size("vocab_size", 1025)})


def _fast_conformer(fields: Fields) -> dict[str, object]:
    d, channels = fields.size("hidden_size"), fields.size("subsampling_conv_channels", 256)
    kernel, stride = fields.size("subsampling_conv_kernel_size", 3), fields.size("subsampling_conv_stride", 2)
    pad, convs = (kernel - 1) // 2, []
    factor = fields.size("subsampling_factor", 8)
    convs.append(SoundConv(channels=channels, kernel=kernel, stride=stride, pad=pad, activation="relu"))
    while stride ** (1 + len(convs) // 2) < factor:
        apart = replace(convs[0], groups=channels, activation="none")  # depthwise
        convs.append(apart)
        convs.append(SoundConv(channels=channels, kernel=1, activation="relu"))
    bias = fields.take("attention_bias", bool, True)
    layer = _conformer_layer(
        _attention(fields.size("num_attention_heads"), d, qkv_bias=bias, out_bias=bias, relative_keys=True),
        _ffn(fields, "hidden_act", "silu", fields.size("intermediate_size"), gated=False, bias=bias),
        ConvModule(taps=fields.size("conv_kernel_size", 9), bias=bool(fields.take("convolution_bias", bool, True))),
    )
    stem = _conformer_stem(fields.size("num_mel_bins", 80), convs)
    return of_signals(stem, d, (layer,) * fields.depth(), final_norm=False, positions="none")


def read_conformer_ctc(fields: Fields) -> dict[str, object]:
    """NeMo's Conformer-CTC, with the field names of its encoder config. Convolutions reduce frames fourfold."""
    d, factor = fields.size("d_model"), fields.size("subsampling_factor", 4)
    width = d * fields.size("ff_expansion_factor", 4)
    if factor not in (2, 4, 8):
        raise SpecError(f"must be 2, 4 or 8, not {factor}", field="subsampling_factor")
    conv = SoundConv(channels=d, kernel=3, stride=2, pad=1, activation="relu")
    layer = _conformer_layer(
        _attention(fields.size("n_heads"), d, qkv_bias=True, out_bias=True, relative_keys=True),
        FeedForward(width=width, activation="silu", gated=False, bias=True),
        ConvModule(taps=fields.size("conv_kernel_size", 31)),
    )
    stem = _conformer_stem(fields.size("feat_in", 80), (conv,) * (factor.bit_length() - 1))
    found = of_signals(stem, d, (layer,) * fields.depth("n_layers"), final_norm=False, positions="none")
    found |= {"head": "ctc", "classes": fields.size("num_classes", 128) + 1}
    return _done(fields, found)


def _conformer_layer(attention: Attention, ffn: FeedForward, conv: ConvModule) -> Layer:
    return Layer(first_ffn=ffn, attention=attention, conv=conv, ffn=ffn, last_norm=True)


def _ffn(fields: Fields, name: str, default: str, width: int, *, gated: bool, bias: bool = True) -> FeedForward:
    return FeedForward(width=width, activation=fields.activation(name, default), gated=gated, bias=bias)


def _groups(fields: Fields) -> int:
    """Number of groups of the convolution that makes positions.

    Raises:
        SpecError: The groups do not divide the width.
    """
    groups, width = fields.size("num_conv_pos_embedding_groups", 16), fields.size("hidden_size")
    if width % groups:
        raise SpecError(f"{groups} groups do not divide a width of {width}", field="num_conv_pos_embedding_groups")
    return groups


def _samples_stem(fields: Fields) -> SoundStem:
    if fields.maybe("conv_dim") == []:
        raise SpecError("must list at least one convolution", field="conv_dim")
    channels = fields.items("conv_dim") or [512] * 7
    strides = fields.items("conv_stride") or [5, 2, 2, 2, 2, 2, 2]
    kernels = fields.items("conv_kernel") or [10, 3, 3, 3, 3, 2, 2]
    if not len(channels) == len(strides) == len(kernels):
        raise SpecError(
            f"lists {len(channels)} convolutions, but the config has {len(strides)} strides and {len(kernels)} kernels",
            field="conv_dim",
        )
    kind = fields.take("feat_extract_norm", str, "group")
    if kind not in ("group", "layer"):
        raise SpecError(f"norms of type {short(kind)} are not supported", field="feat_extract_norm")
    bias = fields.take("conv_bias", bool, False)
    convs = []
    for i, (out, kernel, stride) in enumerate(zip(channels, kernels, strides, strict=True)):
        norm: Literal["none", "group", "layer"] = "layer" if kind == "layer" else "none" if i else "group"
        convs.append(SoundConv(channels=out, kernel=kernel, stride=stride, bias=bias, norm=norm))
    masked = fields.take("mask_time_prob", float, 0.05) > 0 or fields.take("mask_feature_prob", float, 0.0) > 0
    return SoundStem(
        seconds=SECONDS,
        rate=SAMPLES_PER_S,
        channels=1,
        convs=tuple(convs),
        matrix=True,
        matrix_norm=bool(fields.take("feat_proj_layer_norm", bool, True)),
        position_taps=fields.size("num_conv_pos_embeddings", 128),
        position_groups=_groups(fields),
        mask_token=masked,
    )


def _head(fields: Fields) -> dict[str, object]:
    """A CTC head if the config describes one; else no head."""
    if any(name.endswith("ForCTC") for name in fields.architectures()):
        return {"head": "ctc", "classes": fields.size("vocab_size", 32)}
    return {"head": "none"}
