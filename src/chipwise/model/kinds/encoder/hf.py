"""BERT-style encoders in Hugging Face folders: names of weights, and the config of a uniform encoder.

References:
    Names: ``BertModel`` of transformers. Folders of sentence encoders: sentence-transformers' ``modules.json``.
"""

from __future__ import annotations

from collections.abc import Mapping

from chipwise.core.arrays import Float32Array
from chipwise.errors import Unsupported
from chipwise.model.arch.arch import ArchSpec
from chipwise.model.arch.feed_forward import Activation, FeedForward
from chipwise.model.arch.mixers import Attention
from chipwise.model.kinds.encoder.form import without_head
from chipwise.model.kinds.form import Checkpoint, HfFolders, Tensors, published_name

_OUTSIDE = {
    "embedding": "embeddings.word_embeddings",
    "positions": "embeddings.position_embeddings",
    "token_types": "embeddings.token_type_embeddings",
    "embedding_norm": "embeddings.LayerNorm",
    "pooler": "pooler.dense",
}
_BLOCKS = {
    "attention.q": "attention.self.query",
    "attention.k": "attention.self.key",
    "attention.v": "attention.self.value",
    "attention.out": "attention.output.dense",
    "attention_norm": "attention.output.LayerNorm",
    "ffn.up": "intermediate.dense",
    "ffn.down": "output.dense",
    "ffn_norm": "output.LayerNorm",
}
_OLD = {"LayerNorm.gamma": "LayerNorm.weight", "LayerNorm.beta": "LayerNorm.bias"}  # names in the first checkpoints
_ACTIVATIONS: dict[Activation, str] = {"gelu": "gelu", "gelu_tanh": "gelu_new", "relu": "relu", "silu": "silu"}


def bert_name(name: str) -> str:
    """The name that chipwise's weight ``name`` has in ``BertModel``."""
    return published_name(name, _OUTSIDE, _BLOCKS, "encoder.layer")


def from_bert(tensors: Mapping[str, Float32Array], shapes: Mapping[str, object]) -> dict[str, Float32Array]:
    """A BERT checkpoint's weights under chipwise's names, without task heads. Unknown weights keep their names."""
    names = {bert_name(name): name for name in shapes}
    found = {}
    for full, value in tensors.items():
        name = full.removeprefix("bert.")
        for old, new in _OLD.items():
            name = name.replace(old, new)
        if not name.startswith("cls."):
            found[names.get(name, name)] = value
    return found


def is_bert(arch: ArchSpec) -> bool:
    """Whether ``BertModel`` computes exactly ``arch``: an encoder with equal layers of BERT's kind."""
    first = arch.layers[0]
    attention, ffn = first.attention, first.ffn
    if not isinstance(attention, Attention) or not isinstance(ffn, FeedForward):
        return False
    alike = all(layer == first for layer in arch.layers)
    biases = attention.qkv_bias and attention.out_bias and ffn.bias and arch.norm_bias
    square = attention.query_width == arch.d_model
    ends = arch.norm == "layernorm" and arch.embedding_norm and arch.stem.token_types > 0
    return alike and biases and square and ends and not ffn.gated and ffn.activation in _ACTIVATIONS


def bert_config(arch: ArchSpec) -> dict[str, object]:
    """``arch`` as the config of a ``BertModel``.

    Raises:
        Unsupported: ``BertModel`` does not compute ``arch``.
    """
    first = arch.layers[0]
    if not is_bert(arch) or first.attention is None or first.ffn is None:
        raise Unsupported(
            f"{arch.name} is not a BERT: its layers differ, or heads x head size is not the model's width"
        )
    return {
        "architectures": ["BertModel"],
        "model_type": "bert",
        "vocab_size": arch.vocab_size,
        "hidden_size": arch.d_model,
        "intermediate_size": first.ffn.width,
        "num_hidden_layers": len(arch.layers),
        "num_attention_heads": first.attention.heads,
        "hidden_act": _ACTIVATIONS[first.ffn.activation],
        "max_position_embeddings": arch.max_tokens,
        "type_vocab_size": arch.stem.token_types,
        "layer_norm_eps": arch.norm_eps,
        "position_embedding_type": "absolute",
    }


def _write(arch: ArchSpec, weights: Tensors) -> tuple[dict[str, object], Tensors] | None:
    if not is_bert(arch):
        return None
    return bert_config(arch), {bert_name(name): value for name, value in weights.items()}


def _read(arch: ArchSpec, held: Checkpoint) -> tuple[ArchSpec, Tensors]:
    tensors = dict(held.tensors)
    if not any(name.endswith("pooler.dense.weight") for name in tensors):
        arch = without_head(arch)  # the encoder was trained without a pooler
    return arch, from_bert(tensors, held.shapes)


FOLDERS = HfFolders(write=_write, readers={"bert": _read})
