"""Vision-language models (LLaVA, Qwen-VL, SmolVLM, Gemma 3, PaliGemma, Llama 4, InternVL) and audio-language models:
Qwen2-Audio, Voxtral.

A config holds the tower's fields in ``vision_config`` or ``audio_config``, and the decoder's in ``text_config`` (older
Qwen-VL: at the top level). Some numbers of tiles and pixels are stated only in ``preprocessor_config.json``. This
module sets them to their published values.

References:
    LLaVA arXiv:2310.03744, LLaVA-OneVision arXiv:2408.03326, Qwen2-VL arXiv:2409.12191, Qwen2.5-VL arXiv:2502.13923,
    Qwen3-VL arXiv:2511.21631, SmolVLM arXiv:2504.05299, Gemma 3 arXiv:2503.19786, PaliGemma arXiv:2407.07726,
    InternVL 3 arXiv:2504.10479, Qwen2-Audio arXiv:2407.10759, Voxtral arXiv:2507.13264. Names of config fields:
    from transformers' configs; for pixels, from ``preprocessor_config.json``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from chipwise.core.fields import build
from chipwise.errors import SpecError
from chipwise.model.arch.arch import ArchSpec
from chipwise.model.arch.feed_forward import FeedForward
from chipwise.model.arch.layer import Layer
from chipwise.model.kinds.image.stem import ImageStem
from chipwise.model.kinds.question.projector.spec import Projector
from chipwise.model.published import images
from chipwise.model.published.common import attention, equal_heads, of_signals, ungated
from chipwise.model.published.fields import Fields
from chipwise.model.published.sound import whisper_stem

Tower = tuple[dict[str, object], Projector]
CLASS_DEFAULTS: dict[str, dict[str, object]] = {  # defaults in transformers' classes for omitted fields
    "gemma": {"vocab_size": 257152, "head_dim": 256, "max_position_embeddings": 8192},
    "gemma2": {"vocab_size": 257216, "head_dim": 256, "max_position_embeddings": 8192, "sliding_window": 4096},
    "gemma3_text": {
        "vocab_size": 262208, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256,
        "max_position_embeddings": 131072, "sliding_window": 1024,
    },
    "llama": {"hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32, "num_attention_heads": 32,
              "vocab_size": 32000},
    "mistral": {
        "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32,
        "num_key_value_heads": 8, "vocab_size": 32000, "max_position_embeddings": 32768,
    },
}  # fmt: skip
_TEXT = {  # model_type of the decoder if its part of the config does not name a known one
    "gemma3": "gemma3_text",
    "idefics3": "llama",
    "internvl": "qwen2",
    "llama4": "llama4_text",
    "llava": "llama",
    "llava_next": "llama",
    "llava_onevision": "qwen2",
    "paligemma": "gemma",
    "qwen2_5_vl": "qwen2",
    "qwen2_audio": "qwen2",
    "qwen2_vl": "qwen2",
    "qwen3_vl": "qwen3_vl_text",
    "qwen3_vl_moe": "qwen3_vl_moe_text",
    "smolvlm": "llama",
    "voxtral": "llama",
}
_SAME_TEXT = {"qwen2_vl_text": "qwen2", "qwen2_5_vl_text": "qwen2"}
_OUTER = ("tie_word_embeddings", "torch_dtype", "dtype")  # top-level fields that apply if the decoder's part lacks them


def sees(config: Mapping[str, object]) -> bool:
    """Whether ``config`` describes a tower and belongs to a family that this module reads."""
    part = config.get(_part_of(config))
    deep = isinstance(part, Mapping) and any(name in part for name in ("num_hidden_layers", "depth", "encoder_layers"))
    return deep and config.get("model_type") in TOWERS


def _part_of(config: Mapping[str, object]) -> str:
    """The name of the config's field that describes the tower."""
    return "audio_config" if config.get("model_type") in ("qwen2_audio", "voxtral") else "vision_config"


def text_part(config: Mapping[str, object]) -> dict[str, object]:
    """The decoder's part of ``config``, as a separate config."""
    inner = config.get("text_config")
    kind = str(config["model_type"])
    if not isinstance(inner, Mapping):
        towers = ("vision_config", "audio_config", "model_type")
        inner = {name: value for name, value in config.items() if name not in towers}
    own = str(inner.get("model_type") or _TEXT[kind])
    own = _SAME_TEXT.get(own, own)
    outer = {name: config[name] for name in _OUTER if config.get(name) is not None}
    return {**CLASS_DEFAULTS.get(own, {}), **outer, **inner, "model_type": own}


def tower_of(config: Mapping[str, object], text: ArchSpec) -> ArchSpec:
    """The tower that ``config`` describes, for the decoder ``text``.

    Raises:
        SpecError: A field of the tower is missing or wrong; the error names it as ``vision_config.…``.
    """
    part = _part_of(config)
    described = config[part]
    if not isinstance(described, Mapping):
        raise SpecError("must be a mapping of fields", field=part)
    fields = Fields(described)
    try:
        values, projector = TOWERS[str(config["model_type"])](Fields(config), fields, text.d_model)
        named = {"name": f"{text.name}'s tower", "head": "none"}
        return build(ArchSpec, {**named, **values, "projector": projector})
    except SpecError as error:
        raise fields.in_config(error).inside(field=part) from None


def _clip_or_siglip(vision: Fields) -> dict[str, object]:
    """A CLIP or SigLIP image tower, without the text parts."""
    clip = vision.take("model_type", str, "clip_vision_model") == "clip_vision_model"
    values = images.read_clip(vision) if clip else images.read_siglip(vision)
    return values | {"projection": 0, "pooling": "first"}


def _read_llava(config: Fields, vision: Fields, d_model: int) -> Tower:
    """LLaVA: CLIP's second-to-last layer, then two matrices; LLaVA-NeXT adds tiles and a newline token."""
    values = _clip_or_siglip(vision)
    bias = config.take("multimodal_projector_bias", bool, True)
    projector = Projector(widths=(d_model, d_model), bias=bias, unused_layers=_unused(config, vision.depth(), -2))
    if config.take("model_type", str) == "llava":
        return values, projector
    pinpoints = config.items("image_grid_pinpoints") or _square_pinpoints(336)
    return values, replace(projector, tiling="pinpoints", pinpoints=_pairs(pinpoints), vectors=1)


def _read_onevision(config: Fields, vision: Fields, d_model: int) -> Tower:
    """LLaVA-OneVision: SigLIP's last layer, two matrices, tiles limited by ``anyres_max_9``."""
    values = _clip_or_siglip(vision)
    most = config.take("vision_aspect_ratio", str, "anyres_max_9").rpartition("_")[2]
    return values, Projector(
        widths=(d_model, d_model),
        bias=config.take("multimodal_projector_bias", bool, True),
        unused_layers=_unused(config, vision.depth(), -1),
        tiling="pinpoints",
        pinpoints=_pairs(config.items("image_grid_pinpoints") or _square_pinpoints(384, most=6)),
        tiles=int(most) if most.isdigit() else 1,
        vectors=1,
    )


def _unused(config: Fields, depth: int, default: int) -> int:
    """Number of the tower's last layers whose output is unused. The config's -1 means that the last layer is used."""
    layer: int = config.take("vision_feature_layer", int, default)
    return min(max(0, -1 - layer), depth - 1)


def _square_pinpoints(side: int, most: int = 2) -> list[list[int]]:
    """Image sizes in pixels: LLaVA-NeXT's grids (2x2, 1x2, 2x1, 1x3, 3x1), or all grids up to ``most`` by ``most``."""
    if most > 2:
        return [[i * side, j * side] for i in range(1, most + 1) for j in range(1, most + 1)]
    return [[side, 2 * side], [2 * side, side], [2 * side, 2 * side], [3 * side, side], [side, 3 * side]]


def _pairs(given: Sequence[Sequence[int]]) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(pair) for pair in given)


def _read_smolvlm(config: Fields, vision: Fields, d_model: int) -> Tower:
    """SmolVLM: SigLIP without pooling; patches joined in squares, a matrix without bias; tiles and the whole image."""
    values = images.read_siglip(vision)
    size = vision.maybe("size")
    longest = size.get("longest_edge") if isinstance(size, Mapping) else None
    return values | {"pooling": "first"}, Projector(
        widths=(d_model,),
        bias=False,
        join=config.size("scale_factor", 2),
        tiling="longest",
        longest=int(longest or 4 * images.stem_of(vision, prefix=0).image_size),
        marks=3,
        tile_marks=2,
    )


def _read_gemma3(config: Fields, vision: Fields, d_model: int) -> Tower:
    """Gemma 3: SigLIP at 896 pixels, averaged to 256 tokens, a norm and one matrix without bias."""
    values = images.read_siglip(vision) | {"pooling": "first"}
    side = round(config.size("mm_tokens_per_image", 256) ** 0.5)
    pool = images.stem_of(vision, prefix=0).grid // side
    return values, Projector(widths=(d_model,), bias=False, pool=pool, norm="rmsnorm", marks=4)


def _read_paligemma(config: Fields, vision: Fields, d_model: int) -> Tower:
    """PaliGemma: SigLIP and one matrix; one token per patch."""
    return images.read_siglip(vision) | {"pooling": "first"}, Projector(widths=(d_model,))


def _read_llama4(config: Fields, vision: Fields, d_model: int) -> Tower:
    """Llama 4: class token, norms before and after layers, four patches joined, three matrices without bias; tiles."""
    heads = attention(vision, qkv_bias=True, out_bias=True, rope=False, causal=False)
    stem = images.stem_of(vision, prefix=1, bias=False)
    values = images.whole(vision, heads, images.plain_ffn(vision), ends={}, stem=stem, eps=1e-5)
    ratio = vision.take("pixel_shuffle_ratio", float, 0.5)
    widths = (vision.size("projector_input_dim", 4096), vision.size("projector_output_dim", 4096), d_model)
    return values | {"embedding_norm": True}, Projector(
        widths=widths, bias=False, join=round(1 / ratio), tiling="canvas", tiles=16, marks=3, tile_marks=1
    )


def _read_internvl(config: Fields, vision: Fields, d_model: int) -> Tower:
    """InternVL: learned scale factors of blocks; four patches joined, a norm, two matrices; tiles."""
    heads = attention(
        vision, qkv_bias=vision.take("attention_bias", bool, True), out_bias=True, rope=False, causal=False
    )
    if vision.take("use_qk_norm", bool, False):
        raise SpecError("norms over the queries of all heads together are not supported", field="use_qk_norm")
    stem = ImageStem(image_size=_side(vision, "image_size", 448), patch=_side(vision, "patch_size", 14))
    values = images.whole(vision, heads, images.plain_ffn(vision), ends={}, stem=stem, scale=True)
    join = round(1 / config.take("downsample_ratio", float, 0.5))
    return values | {"final_norm": False}, Projector(
        widths=(d_model, d_model), join=join, norm="layernorm", norm_joined=True, tiling="ratio", tiles=12, marks=2
    )


def _side(vision: Fields, name: str, default: int) -> int:
    """Pixels per side. A config may have a single number, or one number per side."""
    value = vision.maybe(name)
    return int(value[0]) if isinstance(value, list) and value else vision.size(name, default)


def _read_qwen2_vl(config: Fields, vision: Fields, d_model: int) -> Tower:
    """Qwen2-VL: native image size, two frames per patch, rotary positions, four neighbours joined, two matrices."""
    width, heads = vision.size("embed_dim", 1280), vision.size("num_heads", 16)
    block = equal_heads(heads, width, qkv_bias=True, out_bias=True, rope=True)
    ffn = FeedForward(
        width=int(width * vision.take("mlp_ratio", float, 4.0)), activation="gelu_tanh", gated=False, bias=True
    )
    return _native(vision, width, (Layer(attention=block, ffn=ffn),) * vision.depth("depth", 32), d_model)


def _read_qwen2_5_vl(config: Fields, vision: Fields, d_model: int) -> Tower:
    """Qwen2.5-VL: like Qwen2-VL, with gated feed-forwards and, in most layers, attention in 112-pixel windows."""
    width, heads = vision.size("hidden_size", 1280), vision.size("num_heads", 16)
    ffn = FeedForward(width=vision.size("intermediate_size", 3420), bias=True)
    square = vision.size("window_size", 112) // vision.size("patch_size", 14)
    full = vision.items("fullatt_block_indexes") or [7, 15, 23, 31]
    block = equal_heads(heads, width, qkv_bias=True, out_bias=True, rope=True)
    stack = tuple(
        Layer(attention=replace(block, square=None if i in full else square), ffn=ffn)
        for i in range(vision.depth("depth", 32))
    )
    return _native(vision, width, stack, d_model, norm="rmsnorm")


def _read_qwen3_vl(config: Fields, vision: Fields, d_model: int) -> Tower:
    """Qwen3-VL: 16-pixel patches, learned and rotary positions, intermediate states for the decoder's first layers."""
    width, heads = vision.size("hidden_size", 1152), vision.size("num_heads", 16)
    block = equal_heads(heads, width, qkv_bias=True, out_bias=True)
    ffn = ungated(vision, vision.size("intermediate_size", 4304), default="gelu_pytorch_tanh")
    stack = (Layer(attention=block, ffn=ffn),) * vision.depth("depth", 27)
    values, projector = _native(vision, width, stack, d_model, patch=16, bias=True)
    deeper = len(vision.items("deepstack_visual_indexes") or [8, 16, 24])
    positions = vision.size("num_position_embeddings", 2304)
    projector = replace(projector, deeper=deeper, least_pixels=65_536, most_pixels=16_777_216)
    return values | {"positions": "learned", "max_tokens": positions}, projector


def _native(
    vision: Fields, width: int, stack: tuple[Layer, ...], d_model: int, *, patch: int = 14, bias: bool = False,
    norm: str = "layernorm",
) -> Tower:  # fmt: skip
    """The fields that all Qwen-VL towers share. The stem's image has 32 patches per side, but any size can be read."""
    edge = vision.size("patch_size", patch)
    channels = vision.size("in_channels", vision.size("in_chans", 3)) * vision.size("temporal_patch_size", 2)
    stem = ImageStem(image_size=32 * edge, patch=edge, channels=channels, bias=bias, prefix_tokens=0)
    join = vision.size("spatial_merge_size", 2)
    values: dict[str, object] = {
        "vocab_size": 0, "d_model": width, "layers": stack, "max_tokens": stem.tokens, "norm": norm, "norm_eps": 1e-6,
        "norm_bias": norm == "layernorm", "positions": "rope", "stem": stem, "final_norm": False,
    }  # fmt: skip
    return values, Projector(
        widths=(width * join**2, d_model), join=join, norm="rmsnorm" if norm == "rmsnorm" else "layernorm",
        tiling="native", least_pixels=56 * 56, most_pixels=12_845_056, marks=2,
    )  # fmt: skip


def _whisper(audio: Fields) -> dict[str, object]:
    """Whisper's encoder: 30 s of log-mel frames, two convolutions, a table of positions."""
    d, rows = audio.size("d_model", audio.size("hidden_size", 1280)), audio.size("max_source_positions", 1500)
    heads = audio.size("encoder_attention_heads", audio.size("num_attention_heads", 20))
    block = equal_heads(heads, d, qkv_bias=True, key_bias=False, out_bias=True)
    width = audio.size("encoder_ffn_dim", audio.size("intermediate_size", 4 * d))
    ffn = ungated(audio, width, activation="activation_function")
    depth = audio.depth("encoder_layers", audio.size_or_none("num_hidden_layers") or 32)
    stem, stack = whisper_stem(d, rows, audio.size("num_mel_bins", 128)), (Layer(attention=block, ffn=ffn),) * depth
    return of_signals(stem, d, stack, max_tokens=rows, positions="none")


def _read_qwen2_audio(config: Fields, audio: Fields, d_model: int) -> Tower:
    """Qwen2-Audio: Whisper's encoder, every two positions averaged, one matrix."""
    return _whisper(audio), Projector(widths=(d_model,), pool=2, tiling="seconds", marks=2)


def _read_voxtral(config: Fields, audio: Fields, d_model: int) -> Tower:
    """Voxtral: Whisper's encoder, every four positions joined, two matrices without biases."""
    return _whisper(audio), Projector(widths=(d_model,) * 2, bias=False, join=4, tiling="windows", marks=1)


TOWERS: dict[str, Callable[[Fields, Fields, int], Tower]] = {
    "gemma3": _read_gemma3,
    "idefics3": _read_smolvlm,
    "internvl": _read_internvl,
    "llama4": _read_llama4,
    "llava": _read_llava,
    "llava_next": _read_llava,
    "llava_onevision": _read_onevision,
    "paligemma": _read_paligemma,
    "qwen2_5_vl": _read_qwen2_5_vl,
    "qwen2_audio": _read_qwen2_audio,
    "qwen2_vl": _read_qwen2_vl,
    "qwen3_vl": _read_qwen3_vl,
    "qwen3_vl_moe": _read_qwen3_vl,
    "smolvlm": _read_smolvlm,
    "voxtral": _read_voxtral,
}
