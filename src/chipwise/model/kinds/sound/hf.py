"""wav2vec 2.0, HuBERT and Whisper's encoder in Hugging Face folders: names of weights.

References:
    Names on disk: ``Wav2Vec2ForCTC``, ``HubertForCTC`` and ``WhisperForConditionalGeneration`` of transformers.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from chipwise.core.arrays import Float32Array
from chipwise.errors import Unsupported
from chipwise.model.arch.arch import ArchSpec
from chipwise.model.kinds.form import Checkpoint, HfFolders, Tensors

FAMILIES = ("hubert", "wav2vec2", "whisper")
_CHANGES = ("add_adapter", "adapter_attn_dim", "conv_pos_batch_norm")  # fields that change the logits if they are set
_PREFIX = re.compile(r"^(wav2vec2|hubert|model)\.")
_LAYER = re.compile(r"encoder\.layers\.(\d+)\.(.+)\.(weight|bias)")
_CONV = re.compile(r"feature_extractor\.conv_layers\.(\d+)\.(conv|layer_norm)\.(weight|bias)")
_BLOCKS = {
    "attention.q_proj": "attention.q",
    "attention.k_proj": "attention.k",
    "attention.v_proj": "attention.v",
    "attention.out_proj": "attention.out",
    "layer_norm": "attention_norm",
    "feed_forward.intermediate_dense": "ffn.up",
    "feed_forward.output_dense": "ffn.down",
    "final_layer_norm": "ffn_norm",
    "self_attn.q_proj": "attention.q",
    "self_attn.k_proj": "attention.k",
    "self_attn.v_proj": "attention.v",
    "self_attn.out_proj": "attention.out",
    "self_attn_layer_norm": "attention_norm",
    "fc1": "ffn.up",
    "fc2": "ffn.down",
}
_OUTSIDE = {
    "masked_spec_embed": "stem.mask.weight",
    "feature_projection.layer_norm.weight": "stem.norm.weight",
    "feature_projection.layer_norm.bias": "stem.norm.bias",
    "feature_projection.projection.weight": "stem.projection.weight",
    "feature_projection.projection.bias": "stem.projection.bias",
    "encoder.pos_conv_embed.conv.bias": "stem.places.bias",
    "encoder.pos_conv_embed.conv.weight_g": "stem.places.weight_g",
    "encoder.pos_conv_embed.conv.weight_v": "stem.places.weight_v",
    "encoder.pos_conv_embed.conv.parametrizations.weight.original0": "stem.places.weight_g",
    "encoder.pos_conv_embed.conv.parametrizations.weight.original1": "stem.places.weight_v",
    "lm_head.weight": "head.weight",
    "lm_head.bias": "head.bias",
    "encoder.conv1.weight": "stem.convs.0.weight",
    "encoder.conv1.bias": "stem.convs.0.bias",
    "encoder.conv2.weight": "stem.convs.1.weight",
    "encoder.conv2.bias": "stem.convs.1.bias",
    "encoder.embed_positions.weight": "stem.positions.weight",
}


def check_config(config: Mapping[str, object]) -> None:
    """Rejects config options that the exporter ignores.

    Raises:
        Unsupported: A field is set that would change the output; the error names it.
    """
    for name in _CHANGES:
        if config.get(name):
            raise Unsupported(f"{name} = {config[name]!r:.40}: models with it are not exported")
    if config.get("feat_extract_activation", "gelu") != "gelu":
        raise Unsupported("feat_extract_activation other than gelu is not exported")


def _read(arch: ArchSpec, held: Checkpoint) -> tuple[ArchSpec, Tensors]:
    """Reads only the weights of the encoder and its head."""
    check_config(held.config)
    after = arch.norm_place == "post"  # then ``layer_norm`` is the norm of the embedding
    found: dict[str, Float32Array] = {}
    for full, value in held.tensors:
        name = _PREFIX.sub("", full)
        if name.startswith("decoder.") or name == "proj_out.weight":  # Whisper's decoder
            continue
        found[_name(name, after=after) or full] = value
    return arch, found


FOLDERS = HfFolders(write=lambda arch, weights: None, readers=dict.fromkeys(FAMILIES, _read))


def _name(name: str, *, after: bool) -> str | None:
    if name in _OUTSIDE:
        return _OUTSIDE[name]
    if name.startswith("encoder.layer_norm."):
        return f"{'embedding_norm' if after else 'norm'}.{name.rpartition('.')[2]}"
    if (conv := _CONV.fullmatch(name)) is not None:
        return f"stem.convs.{conv[1]}.{'' if conv[2] == 'conv' else 'norm.'}{conv[3]}"
    layer = _LAYER.fullmatch(name)
    return f"layers.{layer[1]}.{_BLOCKS[layer[2]]}.{layer[3]}" if layer is not None and layer[2] in _BLOCKS else None
