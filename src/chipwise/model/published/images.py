"""Image models: ViT, DeiT, DINOv2 (with registers), BEiT, EVA02, Swin, and the towers of CLIP and SigLIP.

References:
    ViT arXiv:2010.11929, DeiT arXiv:2012.12877, DINOv2 arXiv:2304.07193 and 2309.16588, BEiT arXiv:2106.08254,
    EVA02 arXiv:2303.11331, with field names from the arguments of timm's ``Eva``; Swin arXiv:2103.14030 and 2111.09883,
    CLIP arXiv:2103.00020, SigLIP arXiv:2303.15343; fields as transformers' configs name them.
"""

from __future__ import annotations

from dataclasses import replace

from chipwise.errors import SpecError, short
from chipwise.model.arch.arch import check_heads
from chipwise.model.arch.feed_forward import FeedForward
from chipwise.model.arch.layer import Layer
from chipwise.model.arch.mixers import Attention
from chipwise.model.kinds.image.stages import Stage
from chipwise.model.kinds.image.stem import ImageStem
from chipwise.model.published.common import attention, depth, ungated
from chipwise.model.published.fields import Fields

NEUTRAL = (
    "apply_layernorm", "attention_probs_dropout_prob", "auxiliary_channels", "auxiliary_concat_input",
    "auxiliary_loss_weight", "auxiliary_num_convs", "drop_path_rate", "encoder_stride", "hidden_dropout_prob",
    "id2label", "initializer_factor", "label2id", "layer_scale_init_value", "layerscale_value", "num_labels",
    "out_features", "out_indices", "pool_scales", "pooler_act", "pooler_output_size", "problem_type",
    "projection_dim", "reshape_hidden_states", "return_dict", "semantic_loss_ignore_index", "stage_names",
    "use_auxiliary_head", "vocab_size",
)  # fmt: skip
"""Fields that do not affect a pass over an image."""


def read_vit(fields: Fields) -> dict[str, object]:
    """ViT: patches, a class token, learned positions, pre-norm layers, and a matrix over classes."""
    heads = attention(fields, qkv_bias=fields.take("qkv_bias", bool, True), out_bias=True, rope=False, causal=False)
    return _whole(fields, heads, plain_ffn(fields), ends=_ends(fields, "pooler"))


def read_deit(fields: Fields) -> dict[str, object]:
    """DeiT with its distillation token, which has a position and, in the distilled classifier, its own head."""
    heads = attention(fields, qkv_bias=fields.take("qkv_bias", bool, True), out_bias=True, rope=False, causal=False)
    taught = "DeiTForImageClassificationWithTeacher" in _architectures(fields)
    ends = _ends(fields, "pooler", heads=1 + taught)
    if taught:
        fields.notes.append("two heads, whose logits are averaged, count as one of twice the classes")
    return _whole(fields, heads, plain_ffn(fields), ends=ends, prefix=2)


def read_dinov2(fields: Fields) -> dict[str, object]:
    """DINOv2: learned scale factors of blocks, a mask token, optionally registers and SwiGLU."""
    d = fields.size("hidden_size")
    heads = attention(fields, qkv_bias=fields.take("qkv_bias", bool, True), out_bias=True, rope=False, causal=False)
    registers = fields.size("num_register_tokens", 0, least=0)
    width = d * fields.size("mlp_ratio", 4)
    if fields.take("use_swiglu_ffn", bool, False):
        ffn = FeedForward(width=(int(width * 2 / 3) + 7) // 8 * 8, activation="silu", bias=True)
        fields.maybe("hidden_act")
    else:
        ffn = ungated(fields, width)
    stem = stem_of(fields, prefix=1 + registers, mask_token=fields.take("use_mask_token", bool, True))
    ends = _ends(fields, "none")
    if ends["head"] == "classes":
        raise SpecError("DINOv2's classifier reads two pooled states; describe the backbone", field="architectures")
    found = _whole(fields, heads, ffn, ends=ends, stem=stem, scale=True)
    return found | {"max_tokens": stem.patches + 1}  # registers have no positions


def read_beit(fields: Fields) -> dict[str, object]:
    """BEiT: relative position biases, no key bias, learned scale factors, mean-pooled patches."""
    stem = stem_of(fields, prefix=1, mask_token=fields.take("use_mask_token", bool, False))
    shared = fields.take("use_shared_relative_position_bias", bool, False)
    tables = fields.take("use_relative_position_bias", bool, False) or shared
    if shared:
        fields.notes.append("use_shared_relative_position_bias: the table is counted in each layer")
    learned = fields.take("use_absolute_position_embeddings", bool, False)
    heads = attention(
        fields, qkv_bias=True, key_bias=False, out_bias=True, rope=False, causal=False,
        relative_buckets=(2 * stem.grid - 1) ** 2 + 3 if tables else 0,
    )  # fmt: skip
    mean = fields.take("use_mean_pooling", bool, True)
    ends = _ends(fields, "none")
    found = _whole(fields, heads, plain_ffn(fields), ends=ends, stem=stem, scale=True)
    positions = "learned" if learned else "none"
    return found | {"pooling": "mean" if mean else "first", "positions": positions}


def read_eva02(fields: Fields) -> dict[str, object]:
    """EVA02: learned positions plus 2D rotary positions, no key bias, SwiGLU with an inner norm."""
    d, count = fields.size("embed_dim"), fields.size("num_heads")
    check_heads(d, count, field="num_heads")
    stem = ImageStem(
        image_size=fields.size("img_size", 224),
        patch=fields.size("patch_size", 14),
        channels=fields.size("in_chans", 3),
    )
    block = Attention(
        heads=count, kv_heads=count, head_size=d // count, qkv_bias=True, key_bias=False, out_bias=True, rope=False,
        causal=False, patch_rope=True, sub_norm=fields.take("scale_attn_inner", bool, False),
    )  # fmt: skip
    width = int(d * fields.take("mlp_ratio", float, 8 / 3))
    ffn = FeedForward(width=width, activation="silu", bias=True, sub_norm=fields.take("scale_mlp", bool, False))
    pool, classes = fields.take("global_pool", str, "avg"), fields.size("num_classes", 1000, least=0)
    if pool not in ("avg", "token"):
        raise SpecError(f"must be avg or token, not {short(pool)}", field="global_pool")
    return {
        "vocab_size": 0,
        "d_model": d,
        "layers": (Layer(attention=block, ffn=ffn),) * fields.depth("depth"),
        "max_tokens": stem.tokens,
        "norm": "layernorm",
        "norm_eps": 1e-6,
        "norm_bias": True,
        "positions": "learned",
        "stem": stem,
        "pooling": "mean" if pool == "avg" else "first",
        **({"head": "classes", "classes": classes} if classes else {"head": "none"}),
    }


def read_clip(fields: Fields) -> dict[str, object]:
    """CLIP's image tower: no patch bias, a norm before the first layer, a projection of the class token."""
    heads = attention(fields, qkv_bias=True, out_bias=True, rope=False, causal=False)
    stem = stem_of(fields, prefix=1, bias=False)
    kinds = _architectures(fields)
    projection = (
        0 if kinds and all(kind.endswith("VisionModel") for kind in kinds) else fields.size("projection_dim", 512)
    )
    ffn = plain_ffn(fields)
    found = _whole(fields, heads, ffn, ends={"head": "none"}, stem=stem, eps=1e-5)
    return found | {"embedding_norm": True, "projection": projection}


def read_siglip(fields: Fields) -> dict[str, object]:
    """SigLIP's image tower: no class token; attention pooling with a learned query."""
    heads = attention(fields, qkv_bias=True, out_bias=True, rope=False, causal=False)
    stem = stem_of(fields, prefix=0)
    pooled = fields.take("vision_use_head", bool, True)
    found = _whole(fields, heads, plain_ffn(fields, "gelu_pytorch_tanh"), ends={"head": "none"}, stem=stem, eps=1e-6)
    return found | {"pooling": "attention" if pooled else "first"}


def read_swin(fields: Fields) -> dict[str, object]:
    """Swin: four stages of window attention, each at half the grid and twice the width of the one before."""
    return _pyramid(fields, second=False)


def read_swinv2(fields: Fields) -> dict[str, object]:
    """Swin v2: cosine attention, position biases computed by an MLP, norms after the blocks."""
    return _pyramid(fields, second=True)


def _pyramid(fields: Fields, *, second: bool) -> dict[str, object]:
    width, depths = fields.size("embed_dim", 96), fields.items("depths") or [2, 2, 6, 2]
    counts = fields.items("num_heads") or [3, 6, 12, 24]
    if len(depths) != len(counts):
        raise SpecError(f"{len(depths)} stages and heads for {len(counts)}", field="num_heads")
    for name in ("use_absolute_embeddings", "window_size", "hidden_size", "num_layers", "pretrained_window_sizes"):
        fields.maybe(name)
    if fields.take("use_absolute_embeddings", bool, False):
        raise SpecError("learned positions before stages are not read", field="use_absolute_embeddings")
    window, ratio = fields.size("window_size", 7), fields.take("mlp_ratio", float, 4.0)
    bias = fields.take("qkv_bias", bool, True)
    side = fields.size("image_size", 224) // fields.size("patch_size", 4)
    activation = fields.activation("hidden_act", "gelu")
    stages = []
    for i, (heads, depth_) in enumerate(zip(counts, depths, strict=True)):
        square, d = min(window, side >> i), width << i
        check_heads(d, heads, field="num_heads")
        block = Attention(
            heads=heads, kv_heads=heads, head_size=d // heads, qkv_bias=bias, out_bias=True, rope=False, causal=False,
            square=square, shift=square < side >> i,
        )  # fmt: skip
        if second:
            block = replace(block, bias_network=512, cosine=True, key_bias=False)
        else:
            block = replace(block, relative_buckets=(2 * square - 1) ** 2)
        ffn = FeedForward(width=int(ratio * d), activation=activation, gated=False, bias=True)
        stages.append(Stage(d_model=d, depth=depth_, attention=block, ffn=ffn, norm_after=second))
    last = stages.pop()
    pyramid = replace(stem_of(fields, prefix=0), stages=tuple(stages), stem_norm=True)
    for name in NEUTRAL:
        fields.maybe(name)
    return {
        "vocab_size": 0,
        "d_model": last.d_model,
        "layers": (Layer(attention=last.attention, ffn=last.ffn),) * last.depth,
        "max_tokens": pyramid.tokens,
        "norm": "layernorm",
        "norm_eps": fields.take("layer_norm_eps", float, 1e-5),
        "norm_bias": True,
        "positions": "none",
        "stem": pyramid,
        "pooling": "mean",
        **_ends(fields, "none"),
    }


def _architectures(fields: Fields) -> list[str]:
    return [str(name) for name in fields.items("architectures") or []]


def stem_of(fields: Fields, *, prefix: int, bias: bool = True, mask_token: bool = False) -> ImageStem:
    """The stem, with ``prefix`` positions before the patches."""
    return ImageStem(
        image_size=fields.size("image_size", 224),
        patch=fields.size("patch_size", 16),
        channels=fields.size("num_channels", 3),
        bias=bias,
        prefix_tokens=prefix,
        mask_token=mask_token,
    )


def plain_ffn(fields: Fields, default: str = "gelu") -> FeedForward:
    """Two matrices with biases."""
    width = fields.size("intermediate_size", 4 * fields.size("hidden_size"))
    if fields.maybe("hidden_act") == "quick_gelu":
        fields.notes.append("hidden_act: quick_gelu is counted as gelu_tanh, which is as long a computation")
        return FeedForward(width=width, activation="gelu_tanh", gated=False, bias=True)
    return ungated(fields, width, default=default)


def _ends(fields: Fields, without: str, *, heads: int = 1) -> dict[str, object]:
    """Head and number of classes: ``without`` for bare models, else the config's labels (default 2) times ``heads``."""
    labels = fields.maybe("id2label")
    count = len(labels) if isinstance(labels, dict) and labels else fields.size("num_labels", 2)
    kinds = _architectures(fields)
    if kinds and not any("Classification" in kind for kind in kinds):
        return {"head": without}
    return {"head": "classes", "classes": heads * count}


def _whole(
    fields: Fields, heads: Attention, ffn: FeedForward, *, ends: dict[str, object], stem: ImageStem | None = None,
    prefix: int = 1, scale: bool = False, eps: float | None = None,
) -> dict[str, object]:  # fmt: skip
    """The ArchSpec fields that all image models have in common."""
    stem = stem or stem_of(fields, prefix=prefix)
    for name in NEUTRAL:
        fields.maybe(name)
    layer = Layer(attention=heads, ffn=ffn, scale=scale)
    default = eps or (1e-6 if scale else 1e-12)
    return {
        "vocab_size": 0,
        "d_model": fields.size("hidden_size"),
        "layers": (layer,) * depth(fields),
        "max_tokens": stem.tokens,
        "norm": "layernorm",
        "norm_eps": fields.take("layer_norm_eps", float, default),
        "norm_bias": True,
        "positions": "learned",
        "stem": stem,
        **ends,
    }
