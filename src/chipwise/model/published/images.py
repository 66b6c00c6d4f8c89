"""Image models: ViT, DeiT, DINOv2 (with registers), BEiT, EVA02, Swin, and the towers of CLIP and SigLIP.

References:
    ViT arXiv:2010.11929, DeiT arXiv:2012.12877, DINOv2 arXiv:2304.07193 and 2309.16588, BEiT arXiv:2106.08254,
    EVA02 arXiv:2303.11331, Swin arXiv:2103.14030 and 2111.09883, CLIP arXiv:2103.00020, SigLIP arXiv:2303.15343.
    Names of config fields: from transformers' configs; for EVA02, from the arguments of timm's ``Eva``.
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
from chipwise.model.published.common import attention, equal_heads, of_signals, ungated
from chipwise.model.published.fields import Fields

NEUTRAL = (
    "apply_layernorm", "attention_probs_dropout_prob", "auxiliary_channels", "auxiliary_concat_input",
    "auxiliary_loss_weight", "auxiliary_num_convs", "drop_path_rate", "encoder_stride", "hidden_dropout_prob",
    "id2label", "initializer_factor", "label2id", "layer_scale_init_value", "layerscale_value", "num_labels",
    "out_features", "out_indices", "pool_scales", "pooler_act", "pooler_output_size", "problem_type",
    "projection_dim", "reshape_hidden_states", "return_dict", "semantic_loss_ignore_index", "stage_names",
    "use_auxiliary_head", "vocab_size",
)  # fmt: skip
"""Config fields that do not affect the computation for an image."""


def read_vit(fields: Fields) -> dict[str, object]:
    """ViT: patches, a class token, learned positions, pre-norm layers, and a matrix over classes."""
    heads = attention(fields, qkv_bias=fields.take("qkv_bias", bool, True), out_bias=True, rope=False, causal=False)
    return whole(fields, heads, plain_ffn(fields), ends=_ends(fields, "pooler"))


def read_deit(fields: Fields) -> dict[str, object]:
    """DeiT with its distillation token, which has its own position and, in the distilled classifier, its own head."""
    heads = attention(fields, qkv_bias=fields.take("qkv_bias", bool, True), out_bias=True, rope=False, causal=False)
    taught = "DeiTForImageClassificationWithTeacher" in fields.architectures()
    ends = _ends(fields, "pooler", heads=1 + taught)
    if taught:
        fields.notes.append("its two heads, whose logits are averaged, count as one head with twice as many classes")
    return whole(fields, heads, plain_ffn(fields), ends=ends, prefix=2)


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
        raise SpecError("DINOv2's classifier is not supported; use a config of the backbone", field="architectures")
    found = whole(fields, heads, ffn, ends=ends, stem=stem, scale=True)
    return found | {"max_tokens": stem.patches + 1}  # registers have no positions


def read_beit(fields: Fields) -> dict[str, object]:
    """BEiT: relative position biases, no key bias, learned scale factors, mean-pooled patches."""
    stem = stem_of(fields, prefix=1, mask_token=fields.take("use_mask_token", bool, False))
    shared = fields.take("use_shared_relative_position_bias", bool, False)
    tables = fields.take("use_relative_position_bias", bool, False) or shared
    if shared:
        fields.notes.append("use_shared_relative_position_bias: the shared table is counted once for each layer")
    learned = fields.take("use_absolute_position_embeddings", bool, False)
    heads = attention(
        fields, qkv_bias=True, key_bias=False, out_bias=True, rope=False, causal=False,
        relative_buckets=(2 * stem.grid - 1) ** 2 + 3 if tables else 0,
    )  # fmt: skip
    mean = fields.take("use_mean_pooling", bool, True)
    ends = _ends(fields, "none")
    found = whole(fields, heads, plain_ffn(fields), ends=ends, stem=stem, scale=True)
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
    biases = {"qkv_bias": True, "key_bias": False, "out_bias": True}
    block = equal_heads(count, d, **biases, patch_rope=True, sub_norm=fields.take("scale_attn_inner", bool, False))
    width = int(d * fields.take("mlp_ratio", float, 8 / 3))
    ffn = FeedForward(width=width, activation="silu", bias=True, sub_norm=fields.take("scale_mlp", bool, False))
    pool, classes = fields.take("global_pool", str, "avg"), fields.size("num_classes", 1000, least=0)
    if pool not in ("avg", "token"):
        raise SpecError(f"must be avg or token, not {short(pool)}", field="global_pool")
    stack = (Layer(attention=block, ffn=ffn),) * fields.depth("depth")
    pooling = "mean" if pool == "avg" else "first"
    ends: dict[str, object] = {"head": "classes", "classes": classes} if classes else {"head": "none"}
    found = of_signals(stem, d, stack, max_tokens=stem.tokens, norm_eps=1e-6, positions="learned", pooling=pooling)
    return found | ends


def read_clip(fields: Fields) -> dict[str, object]:
    """CLIP's image tower: no patch bias, a norm before the first layer, a projection of the class token."""
    heads = attention(fields, qkv_bias=True, out_bias=True, rope=False, causal=False)
    stem = stem_of(fields, prefix=1, bias=False)
    kinds = fields.architectures()
    projection = (
        0 if kinds and all(kind.endswith("VisionModel") for kind in kinds) else fields.size("projection_dim", 512)
    )
    ffn = plain_ffn(fields)
    found = whole(fields, heads, ffn, ends={"head": "none"}, stem=stem, eps=1e-5)
    return found | {"embedding_norm": True, "projection": projection}


def read_siglip(fields: Fields) -> dict[str, object]:
    """SigLIP's image tower: no class token; attention pooling with a learned query."""
    heads = attention(fields, qkv_bias=True, out_bias=True, rope=False, causal=False)
    stem = stem_of(fields, prefix=0)
    pooled = fields.take("vision_use_head", bool, True)
    found = whole(fields, heads, plain_ffn(fields, "gelu_pytorch_tanh"), ends={"head": "none"}, stem=stem, eps=1e-6)
    return found | {"pooling": "attention" if pooled else "first"}


def read_swin(fields: Fields) -> dict[str, object]:
    """Swin: four stages of window attention, each with half the grid size and twice the width of the stage before."""
    return _pyramid(fields, second=False)


def read_swinv2(fields: Fields) -> dict[str, object]:
    """Swin v2: cosine attention, position biases computed by an MLP, norms after the blocks."""
    return _pyramid(fields, second=True)


def _pyramid(fields: Fields, *, second: bool) -> dict[str, object]:
    width, depths = fields.size("embed_dim", 96), fields.items("depths") or [2, 2, 6, 2]
    counts = fields.items("num_heads") or [3, 6, 12, 24]
    if len(depths) != len(counts):
        raise SpecError(f"there are {len(depths)} stages, but numbers of heads for {len(counts)}", field="num_heads")
    fields.skip("hidden_size", "num_layers", "pretrained_window_sizes")
    if fields.take("use_absolute_embeddings", bool, False):
        raise SpecError("absolute position embeddings are not supported", field="use_absolute_embeddings")
    window, ratio = fields.size("window_size", 7), fields.take("mlp_ratio", float, 4.0)
    bias = fields.take("qkv_bias", bool, True)
    side = fields.size("image_size", 224) // fields.size("patch_size", 4)
    activation = fields.activation("hidden_act", "gelu")
    stages = []
    for i, (heads, depth_) in enumerate(zip(counts, depths, strict=True)):
        square, d = min(window, side >> i), width << i
        check_heads(d, heads, field="num_heads")
        block = equal_heads(heads, d, qkv_bias=bias, out_bias=True, square=square, shift=square < side >> i)
        if second:
            block = replace(block, bias_network=512, cosine=True, key_bias=False)
        else:
            block = replace(block, relative_buckets=(2 * square - 1) ** 2)
        ffn = FeedForward(width=int(ratio * d), activation=activation, gated=False, bias=True)
        stages.append(Stage(d_model=d, depth=depth_, attention=block, ffn=ffn, norm_after=second))
    last = stages.pop()
    pyramid = replace(stem_of(fields, prefix=0), stages=tuple(stages), stem_norm=True)
    fields.skip(*NEUTRAL)
    stack = (Layer(attention=last.attention, ffn=last.ffn),) * last.depth
    eps = fields.take("layer_norm_eps", float, 1e-5)
    found = of_signals(pyramid, last.d_model, stack, max_tokens=pyramid.tokens, norm_eps=eps, positions="none")
    return found | {"pooling": "mean", **_ends(fields, "none")}


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
    """A feed-forward of two matrices with biases."""
    width = fields.size("intermediate_size", 4 * fields.size("hidden_size"))
    if fields.maybe("hidden_act") == "quick_gelu":
        fields.notes.append("hidden_act: quick_gelu is counted as gelu_tanh, which takes the same time")
        return FeedForward(width=width, activation="gelu_tanh", gated=False, bias=True)
    return ungated(fields, width, default=default)


def _ends(fields: Fields, without: str, *, heads: int = 1) -> dict[str, object]:
    """The head's fields: a classifier, or the kind of head that ``without`` names.

    The model is not a classifier if the config lists architectures and none of them is one. A classifier has ``heads``
    classes for each label.
    """
    labels = fields.maybe("id2label")
    count = len(labels) if isinstance(labels, dict) and labels else fields.size("num_labels", 2)
    kinds = fields.architectures()
    if kinds and not any("Classification" in kind for kind in kinds):
        return {"head": without}
    return {"head": "classes", "classes": heads * count}


def whole(
    fields: Fields, heads: Attention, ffn: FeedForward, *, ends: dict[str, object], stem: ImageStem | None = None,
    prefix: int = 1, scale: bool = False, eps: float | None = None,
) -> dict[str, object]:  # fmt: skip
    """The ArchSpec fields that all image models have in common."""
    stem = stem or stem_of(fields, prefix=prefix)
    fields.skip(*NEUTRAL)
    stack = (Layer(attention=heads, ffn=ffn, scale=scale),) * fields.depth()
    eps = fields.take("layer_norm_eps", float, eps or (1e-6 if scale else 1e-12))
    d, tokens = fields.size("hidden_size"), stem.tokens
    return of_signals(stem, d, stack, max_tokens=tokens, norm_eps=eps, positions="learned") | ends
