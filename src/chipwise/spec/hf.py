"""Hugging Face ``config.json`` to and from ArchSpec, and names of known models.

Parameter counts and costs of what is read are exact. What a config asks for beyond that and that would change logits
(stretched rotary positions, for one) is kept as a note: ``deploy.hf.load_pretrained`` refuses to load weights then.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chipwise.core.errors import SpecError, Unsupported, nearest
from chipwise.core.files import read_json
from chipwise.spec import families, io
from chipwise.spec.arch import Activation, ArchSpec, Attention, FeedForward, Layer
from chipwise.spec.plain import is_plain

OWN_TYPE = "chipwise"  # model_type of folders whose modelling file is ours; their config holds the ArchSpec itself

_ACTIVATIONS: dict[str, Activation] = {
    "silu": "silu",
    "swish": "silu",
    "relu": "relu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
}
_ACTIVATION_NAMES: dict[Activation, str] = {
    "silu": "silu",
    "relu": "relu",
    "gelu": "gelu",
    "gelu_tanh": "gelu_pytorch_tanh",
}
# Fields that say nothing about what an inference pass computes.
_NEUTRAL = {
    "architectures", "attn_pdrop", "attention_dropout", "auto_map", "bos_token_id", "cache_implementation", "dtype",
    "embd_pdrop", "eos_token_id", "initializer_range", "max_length", "model_type", "n_ctx",
    "name_or_path", "pad_token_id", "pretraining_tp", "reorder_and_upcast_attn", "resid_pdrop", "summary_activation",
    "summary_first_dropout", "summary_proj_to_labels", "summary_type", "summary_use_proj", "task_specific_params",
    "torch_dtype", "transformers.js_config", "transformers_version", "unk_token_id", "use_cache", "vocab_size",
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What a config says.

    ``notes`` name what the ArchSpec cannot hold: parameters and costs are right all the same, logits would not be.
    """

    arch: ArchSpec
    notes: tuple[str, ...] = ()


def resolve(model: str | Path) -> ArchSpec:
    """The architecture that ``model`` names: a config.json, its folder, a spec file, or a known model such as ``gpt2``.

    Raises:
        SpecError: The file cannot be read as a model.
        UnknownName: Neither a path that exists nor a known name.
    """
    path = Path(model)
    if path.is_dir():
        path = path / "config.json"
        if not path.exists():
            raise SpecError("this folder holds no config.json", file=str(model))
    if not path.exists() and path.suffix not in {".json", ".yaml", ".yml"}:
        return from_config(families.config_of(str(model)), name=str(model))
    if path.suffix != ".json":
        return io.load(path)
    data = read_json(path)
    if isinstance(data, dict) and "model_type" in data:
        name = path.resolve().parent.name if path.name == "config.json" else path.stem
        return from_config(data, name=name, file=str(path))
    return io.from_data(data, file=str(path))


def from_config(config: Mapping[str, Any], *, name: str | None = None, file: str | None = None) -> ArchSpec:
    """The ArchSpec of ``config``. See :func:`read_config`."""
    return read_config(config, name=name, file=file).arch


def read_config(config: Mapping[str, Any], *, name: str | None = None, file: str | None = None) -> Reading:
    """``config`` (as ``config.json`` holds it) as an ArchSpec, with notes of what does not fit in one.

    Raises:
        SpecError: A ``model_type`` that is not read, or a field that is missing, of the wrong type, or asks for layers
            that no ArchSpec has.
    """
    kind = config.get("model_type")
    fields = _Fields(config)
    try:
        if kind == OWN_TYPE:
            return Reading(arch=io.from_data(fields.take("arch", dict)))
        if kind not in _READERS:
            known = ", ".join(sorted([*_READERS, OWN_TYPE]))
            raise SpecError(f"models of type {kind!r} are not read; known: {known}", field="model_type")
        values = _READERS[kind](fields)
        arch = ArchSpec(name=name or str(config.get("_name_or_path") or kind), **values)
    except SpecError as error:
        raise error.inside(file=file) from None
    return Reading(arch=arch, notes=(*fields.notes, *fields.unread()))


class _Fields:
    """The fields of a config: typed access that remembers what was read."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self._config = config
        self._read: set[str] = set()
        self.notes: list[str] = []

    def take(self, name: str, kind: type, default: Any = None) -> Any:
        """The field as ``kind``; ``default`` where it is missing or null, and an error where that is None too."""
        self._read.add(name)
        value = self._config.get(name)
        if value is None:
            value = default
        if value is None:
            raise SpecError("this field is missing", field=name)
        if kind is float and isinstance(value, int) and not isinstance(value, bool):
            value = float(value)
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise SpecError(f"must be {kind.__name__}, not {value!r:.60}", field=name)
        return value

    def has(self, name: str) -> bool:
        """Whether the config names the field at all, be it with null."""
        return name in self._config

    def maybe(self, name: str) -> Any:
        """The field as it is, None where it is missing."""
        self._read.add(name)
        return self._config.get(name)

    def activation(self, name: str, default: str | None = None) -> Activation:
        """The field as an activation."""
        word = self.take(name, str, default)
        if word not in _ACTIVATIONS:
            raise SpecError(f"unknown activation {word!r}; {nearest(word, _ACTIVATIONS)}", field=name)
        return _ACTIVATIONS[word]

    def theta(self) -> float:
        """Base of the rotary angles, from ``rope_parameters`` (transformers 5) or ``rope_theta``."""
        rotary = self.maybe("rope_parameters") or self.maybe("rope_scaling") or {}
        self._read |= {"rope_parameters", "rope_scaling", "rope_theta"}
        if not isinstance(rotary, Mapping) or any(isinstance(item, Mapping) for item in rotary.values()):
            raise SpecError("one set of rotary positions for all layers is read, not several", field="rope_parameters")
        kind = rotary.get("rope_type", rotary.get("type", "default"))
        if kind != "default":
            self.notes.append(f"rope_scaling: rotary positions stretched by {kind!r} are not computed")
        share = self.maybe("partial_rotary_factor") or rotary.get("partial_rotary_factor") or 1.0
        if share != 1.0:
            self.notes.append(f"partial_rotary_factor: {share} of each head rotated is not computed")
        if "rope_theta" in rotary:
            return float(rotary["rope_theta"])
        return float(self.take("rope_theta", float, 10_000.0))

    def unread(self) -> list[str]:
        """Notes on fields that say something and that nobody here understands."""
        rest = sorted(name for name in self._config.keys() - self._read - _NEUTRAL if not name.startswith("_"))
        return [f"{name}: not known to chipwise" for name in rest if self._config[name]]


def _read_gpt2(fields: _Fields) -> dict[str, Any]:
    d_model, heads = fields.take("n_embd", int, 768), fields.take("n_head", int, 12)
    if d_model % heads:
        raise SpecError(f"{heads} heads do not divide a width of {d_model}", field="n_head")
    if fields.take("add_cross_attention", bool, False):
        raise SpecError("cross-attention layers are not read", field="add_cross_attention")
    if not fields.take("scale_attn_weights", bool, True):
        fields.notes.append("scale_attn_weights: unscaled attention is not computed")
    if fields.take("scale_attn_by_inverse_layer_idx", bool, False):
        fields.notes.append("scale_attn_by_inverse_layer_idx: scaling by layer is not computed")
    attention = Attention(
        heads=heads, kv_heads=heads, head_size=d_model // heads, qkv_bias=True, out_bias=True, rope=False
    )
    ffn = FeedForward(
        width=fields.take("n_inner", int, 4 * d_model),
        activation=fields.activation("activation_function", "gelu_new"),
        gated=False,
        bias=True,
    )
    return {
        "vocab_size": fields.take("vocab_size", int, 50257),
        "d_model": d_model,
        "layers": (Layer(attention=attention, ffn=ffn),) * fields.take("n_layer", int, 12),
        "max_tokens": fields.take("n_positions", int, 1024),
        "tie_embeddings": fields.take("tie_word_embeddings", bool, True),
        "norm": "layernorm",
        "norm_eps": fields.take("layer_norm_epsilon", float, 1e-5),
        "norm_bias": True,
        "positions": "learned",
    }


def _llama_like(
    fields: _Fields,
    *,
    qkv_bias: bool = False,
    out_bias: bool = False,
    qk_norm: bool = False,
    mlp_bias: bool = False,
    head_size: int | None = None,
    windows: tuple[int | None, ...] | None = None,
) -> dict[str, Any]:
    """The fields that Llama and those after it have in common."""
    d_model, heads = fields.take("hidden_size", int), fields.take("num_attention_heads", int)
    if not (size := fields.maybe("head_dim") or head_size) and d_model % heads:
        raise SpecError(f"{heads} heads do not divide a width of {d_model}", field="num_attention_heads")
    attention = {
        "heads": heads,
        "kv_heads": fields.take("num_key_value_heads", int, heads),
        "head_size": size or d_model // heads,
        "qkv_bias": qkv_bias,
        "out_bias": out_bias,
        "qk_norm": qk_norm,
    }
    ffn = FeedForward(
        width=fields.take("intermediate_size", int), activation=fields.activation("hidden_act", "silu"), bias=mlp_bias
    )
    depth = fields.take("num_hidden_layers", int)
    layers = (Layer(attention=Attention(**attention, window=w), ffn=ffn) for w in windows or (None,) * depth)
    return {
        "vocab_size": fields.take("vocab_size", int),
        "d_model": d_model,
        "layers": tuple(layers),
        "max_tokens": fields.take("max_position_embeddings", int, 2048),
        "tie_embeddings": fields.take("tie_word_embeddings", bool, False),
        "norm": "rmsnorm",
        "norm_eps": fields.take("rms_norm_eps", float, 1e-6),
        "rope_theta": fields.theta(),
    }


def _read_llama(fields: _Fields) -> dict[str, Any]:
    bias = fields.take("attention_bias", bool, False)
    return _llama_like(fields, qkv_bias=bias, out_bias=bias, mlp_bias=fields.take("mlp_bias", bool, False))


def _read_mistral(fields: _Fields) -> dict[str, Any]:
    fields.maybe("layer_types")
    # A config without the field means the published window; one that says null means none.
    window = fields.maybe("sliding_window") if fields.has("sliding_window") else 4096
    return _llama_like(fields, windows=(window,) * fields.take("num_hidden_layers", int))


def _read_qwen2(fields: _Fields) -> dict[str, Any]:
    return _llama_like(fields, qkv_bias=True, windows=_qwen_windows(fields))


def _read_qwen3(fields: _Fields) -> dict[str, Any]:
    bias = fields.take("attention_bias", bool, False)
    return _llama_like(fields, qkv_bias=bias, out_bias=bias, qk_norm=True, head_size=128, windows=_qwen_windows(fields))


def _qwen_windows(fields: _Fields) -> tuple[int | None, ...]:
    """The window of each layer: ``layer_types`` where given, else the layers from ``max_window_layers`` on."""
    depth = fields.take("num_hidden_layers", int)
    on = fields.take("use_sliding_window", bool, False)
    window = fields.take("sliding_window", int, 4096)
    first = fields.take("max_window_layers", int, 28)
    types = fields.maybe("layer_types") or [
        "sliding_attention" if on and i >= first else "full_attention" for i in range(depth)
    ]
    if len(types) != depth:
        raise SpecError(f"names {len(types)} layers, num_hidden_layers says {depth}", field="layer_types")
    for i, kind in enumerate(types):
        if kind not in {"full_attention", "sliding_attention"}:
            raise SpecError(f"layers of type {kind!r} are not read", field=f"layer_types[{i}]")
    return tuple(window if on and kind == "sliding_attention" else None for kind in types)


_READERS = {
    "gpt2": _read_gpt2,
    "llama": _read_llama,
    "mistral": _read_mistral,
    "qwen2": _read_qwen2,
    "qwen3": _read_qwen3,
}


def family_of(arch: ArchSpec) -> str | None:
    """The Hugging Face family that computes exactly ``arch`` with transformers' own code; None if there is none."""
    if not is_plain(arch):
        return None
    first = arch.layers[0]
    attention, ffn = first.attention, first.ffn
    alike = all(layer == first for layer in arch.layers)  # a layer that shares weights differs from the one it shares
    if attention is None or ffn is None or not alike or not ffn.gated:
        return None
    if arch.norm != "rmsnorm" or arch.positions != "rope":
        return None
    even = arch.d_model % attention.heads == 0
    if attention.qk_norm:
        fits = attention.qkv_bias == attention.out_bias and attention.window is None and not ffn.bias
        return "qwen3" if fits else None
    if attention.window is None and attention.qkv_bias == attention.out_bias and even:
        return "llama"
    if not (attention.qkv_bias or attention.out_bias or ffn.bias):
        return "mistral"
    usual = attention.query_width == arch.d_model and not ffn.bias and attention.window is None
    return "qwen2" if attention.qkv_bias and not attention.out_bias and usual else None


_CLASSES = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}


def to_config(arch: ArchSpec) -> dict[str, Any]:
    """``arch`` as the config of a Llama-style model that transformers itself knows.

    Raises:
        Unsupported: No family of transformers computes ``arch``.
    """
    family = family_of(arch)
    first = arch.layers[0]
    attention, ffn = first.attention, first.ffn
    if family is None or attention is None or ffn is None:
        raise Unsupported(
            f"{arch.name} is no Llama-style model (one kind of layer with attention and a gated FFN, RMSNorm, rotary "
            "positions); save it with deploy.hf.save_pretrained, which adds a modelling file of its own"
        )
    config: dict[str, Any] = {
        "architectures": [_CLASSES[family]],
        "model_type": family,
        "vocab_size": arch.vocab_size,
        "hidden_size": arch.d_model,
        "intermediate_size": ffn.width,
        "num_hidden_layers": len(arch.layers),
        "num_attention_heads": attention.heads,
        "num_key_value_heads": attention.kv_heads,
        "head_dim": attention.head_size,
        "hidden_act": _ACTIVATION_NAMES[ffn.activation],
        "max_position_embeddings": arch.max_tokens,
        "rms_norm_eps": arch.norm_eps,
        "rope_theta": arch.rope_theta,
        "rope_parameters": {"rope_type": "default", "rope_theta": arch.rope_theta},
        "tie_word_embeddings": arch.tie_embeddings,
    }
    if family in {"llama", "qwen3"}:
        config["attention_bias"] = attention.qkv_bias
    if family == "llama":
        config["mlp_bias"] = ffn.bias
    if family == "mistral":
        config["sliding_window"] = attention.window
    return config
