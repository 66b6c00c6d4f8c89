"""Typed access to the fields of a Hugging Face config. It records which fields have been read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from chipwise.core.fields import MOST, convert, whole_number
from chipwise.errors import SpecError, nearest, short
from chipwise.model.arch.feed_forward import Activation
from chipwise.model.arch.trunk import check_depth

ACTIVATIONS: dict[str, Activation] = {
    "silu": "silu",
    "swish": "silu",
    "relu": "relu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "relu2": "relu2",
}
# Fields that do not change what an inference pass computes.
NEUTRAL = {
    "architectures", "attn_pdrop", "attention_dropout", "auto_map", "bos_token_id", "cache_implementation", "dtype",
    "embd_pdrop", "eos_token_id", "initializer_range", "max_length", "model_type", "n_ctx",
    "name_or_path", "pad_token_id", "pretraining_tp", "reorder_and_upcast_attn", "resid_pdrop", "summary_activation",
    "summary_first_dropout", "summary_proj_to_labels", "summary_type", "summary_use_proj", "task_specific_params",
    "torch_dtype", "transformers.js_config", "transformers_version", "unk_token_id", "use_cache", "vocab_size",
}  # fmt: skip

# Fields that may change logits, training or text, but not the cost of a pass.
COSTLESS = {
    "attention_multiplier", "attn_scale", "attn_temperature_tuning", "aux_loss_alpha", "begin_suppress_tokens",
    "classifier_activation", "classifier_dropout", "classifier_pooling", "cls_token_id", "decoder_start_token_id",
    "dropout", "dropout_rate", "embedding_multiplier", "ep_size", "final_logit_softcapping", "floor_scale",
    "hidden_dropout", "hidden_dropout_prob", "id2label", "init_std", "initializer_cutoff_factor", "initializer_factor",
    "is_decoder", "is_encoder_decoder", "label2id", "logits_scaling", "mask_token_id", "max_window_layers", "n_group",
    "norm_topk_prob", "num_labels", "output_attentions", "output_hidden_states", "output_router_logits", "problem_type",
    "qk_head_dim", "quantization_config", "query_pre_attn_scalar", "relative_attention_max_distance",
    "residual_multiplier", "return_dict", "rope_interleave", "rope_scaling", "routed_scaling_factor",
    "router_aux_loss_coef", "router_jitter_noise", "scale_decoder_outputs", "scoring_func", "sep_token_id", "seq_aux",
    "sparse_pred_ignore_index", "suppress_tokens", "swiglu_alpha", "swiglu_limit", "topk_group", "topk_method",
}  # fmt: skip


# Names in configs for fields of an ArchSpec, so that errors name the config's field.
_CONFIG_NAMES: dict[str, tuple[str, ...]] = {
    "active": ("num_experts_per_tok", "experts_per_token"),
    "chunk": ("attention_chunk_size",),
    "conv": ("linear_conv_kernel_dim", "conv_kernel"),
    "d_model": ("hidden_size", "n_embd", "d_model"),
    "experts": ("num_local_experts", "num_experts", "n_routed_experts"),
    "groups": ("n_groups",),
    "head_size": ("head_dim", "attention_head_dim", "d_kv", "mamba_head_dim", "num_attention_heads", "n_head"),
    "heads": ("num_attention_heads", "n_head", "num_heads", "mamba_num_heads"),
    "key_heads": ("linear_num_key_heads",),
    "kv_heads": ("num_key_value_heads", "num_kv_heads", "num_attention_heads"),
    "kv_rank": ("kv_lora_rank",),
    "latent_size": ("moe_latent_size",),
    "layers": ("num_hidden_layers", "n_layer", "num_layers"),
    "max_tokens": ("max_position_embeddings", "n_positions"),
    "norm_eps": ("rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon", "norm_eps"),
    "rope_size": ("qk_rope_head_dim",),
    "rope_theta": ("rope_theta", "rotary_emb_base", "global_rope_theta"),
    "softcap": ("attn_logit_softcapping",),
    "token_types": ("type_vocab_size",),
    "width": ("intermediate_size", "moe_intermediate_size", "ffn_dim", "ffn_hidden_size", "n_inner", "d_ff"),
    "window": ("sliding_window", "local_attention"),
}
ROPE_TYPES = ("default", "dynamic", "linear", "llama3", "longrope", "mrope", "proportional", "su", "yarn")
VALUE_TYPES = ("auto", "bfloat16", "float16", "float32", "float64", "float8_e4m3fn", "float8_e5m2", "int8", "uint8")


class Fields:
    """Typed access to the fields of a config. It records which fields have been read."""

    def __init__(self, config: Mapping[str, object]) -> None:
        self._config = config
        self._read: set[str] = set()
        self.notes: list[str] = []

    def take(self, name: str, kind: type, default: Any = None) -> Any:
        """The field as a ``kind``; ``default`` if it is missing or null.

        Raises:
            SpecError: The field has another type, or is missing or null and there is no default.
        """
        self._read.add(name)
        value = self._config.get(name)
        if value is None:
            value = default
        if value is None:
            raise SpecError("this field is missing", field=name)
        return convert(kind, value, name)

    def size(self, name: str, default: int | None = None, *, least: int = 1) -> int:
        """The field as a whole number of at least ``least``."""
        value: int = self.take(name, int, default)
        if value < least:
            raise SpecError(f"must be at least {least}, not {value}", field=name)
        if value > MOST:
            raise SpecError(f"must be at most {MOST:,}, not {short(value)}", field=name)
        return value

    def size_or_none(self, name: str) -> int | None:
        """The field as a whole number of at least 1; None if it is missing or null."""
        self._read.add(name)
        return None if self._config.get(name) is None else self.size(name)

    def depth(self, name: str = "num_hidden_layers", default: int | None = None) -> int:
        """The field as a number of layers."""
        value = self.size(name, default)
        check_depth(value, field=name)
        return value

    def items(self, name: str) -> list[Any] | None:
        """The field as a list; None if it is missing, null or empty."""
        value = self.maybe(name)
        if value is not None and not isinstance(value, list | tuple):
            raise SpecError(f"must be a list, not {short(value)}", field=name)
        return list(value) if value else None

    def layer_numbers(self, name: str, depth: int) -> set[int]:
        """The field as a set of layer numbers."""
        found = convert(tuple[int, ...], self.items(name) or (), name)
        for number in found:
            if not 0 <= number < depth:
                raise SpecError(f"there is no layer {short(number)}; the model has {depth} layers", field=name)
        return set(found)

    def architectures(self) -> list[str]:
        """Names of the transformers classes that the config lists."""
        return [str(name) for name in self.items("architectures") or []]

    def has(self, name: str) -> bool:
        """Whether the config has the field, even with the value null."""
        return name in self._config

    def maybe(self, name: str) -> Any:
        """The field's value as it is; None if the field is missing."""
        self._read.add(name)
        return self._config.get(name)

    def skip(self, *names: str) -> None:
        """Marks fields that do not matter as read, so that :meth:`unread` does not return them."""
        self._read |= set(names)

    def activation(self, name: str, default: str | None = None) -> Activation:
        """The field as an activation."""
        value = self.take(name, str, default)
        if value not in ACTIVATIONS:
            raise SpecError(f"unknown activation {short(value)}; {nearest(value, ACTIVATIONS)}", field=name)
        return ACTIVATIONS[value]

    def theta(self) -> float:
        """Base of the rotary angles, from ``rope_parameters`` (transformers 5) or ``rope_theta``."""
        rotary = self.maybe("rope_parameters") or self.maybe("rope_scaling") or {}
        self._read |= {"rope_parameters", "rope_scaling", "rope_theta"}
        if not isinstance(rotary, Mapping) or any(isinstance(item, Mapping) for item in rotary.values()):
            raise SpecError("must be one set of rotary positions, the same for all layers", field="rope_parameters")
        kind = rotary.get("rope_type", rotary.get("type", "default"))
        if kind != "default":
            self.notes.append(f"rope_scaling: scaling of rotary positions by {short(kind)} is not implemented")
        share = self.maybe("partial_rotary_factor") or rotary.get("partial_rotary_factor") or 1.0
        if share != 1.0:
            self.notes.append(f"partial_rotary_factor: rotating only {short(share)} of each head is not implemented")
        if "rope_theta" in rotary:
            return float(convert(float, rotary["rope_theta"], "rope_parameters.rope_theta"))
        return float(self.take("rope_theta", float, 10_000.0))

    def check_names(self) -> None:
        """Checks dtypes, windows, class names, labels and rotary scaling, even if the family's reader ignores them.

        Raises:
            SpecError: A value is unknown or has the wrong type.
        """
        for name in ("torch_dtype", "dtype"):
            value = self._config.get(name)
            if value is not None and str(value).removeprefix("torch.") not in VALUE_TYPES:
                raise SpecError(f"unknown number type {short(value)}; {nearest(str(value), VALUE_TYPES)}", field=name)
        window = self._config.get("sliding_window")
        if window is not None and (not isinstance(window, int) or isinstance(window, bool) or window < 0):
            raise SpecError(f"must be a whole number of tokens, not {short(window)}", field="sliding_window")
        for name, kind, words in (
            ("architectures", list, "a list of names"),
            ("id2label", Mapping, "a mapping of fields"),
        ):
            value = self._config.get(name)
            if value is not None and not isinstance(value, kind):
                raise SpecError(f"must be {words}, not {short(value)}", field=name)
        if self._config.get("num_labels") is not None:
            whole_number("num_labels", self._config["num_labels"], least=0)
        for name in ("rope_scaling", "rope_parameters"):
            rotary = self._config.get(name)
            if rotary is not None and not isinstance(rotary, Mapping):
                raise SpecError(f"must be a mapping of fields, not {short(rotary)}", field=name)
            for part in [rotary or {}, *(item for item in (rotary or {}).values() if isinstance(item, Mapping))]:
                kind = part.get("rope_type", part.get("type", "default"))
                if kind not in ROPE_TYPES:
                    raise SpecError(f"unknown type {short(kind)}; {nearest(str(kind), ROPE_TYPES)}", field=name)

    def check_layer_types(self, depth: int) -> None:
        """Checks that ``layer_types`` has one entry per layer, even if the family's reader does not read it.

        Raises:
            SpecError: ``layer_types`` has a different number of entries.
        """
        types = self._config.get("layer_types")
        if types is not None and (not isinstance(types, Sequence) or len(types) != depth):
            count = len(types) if isinstance(types, Sequence) and not isinstance(types, str) else short(types)
            raise SpecError(f"must have {depth} entries, one per layer, not {count}", field="layer_types")

    def in_config(self, error: SpecError) -> SpecError:
        """A copy of ``error`` that names the config's field instead of the ArchSpec's field."""
        last = (error.field or "").rpartition(".")[2]
        if last in self._read or last not in _CONFIG_NAMES:
            return error
        names = [name for name in _CONFIG_NAMES[last] if name in self._read]
        given = [name for name in names if self._config.get(name) is not None]
        return SpecError(error.message, file=error.file, field=next(iter(given or names), error.field))

    def unread(self) -> list[str]:
        """Names of the fields that have not been read and may change the model's computation."""
        rest = sorted(str(name) for name in self._config.keys() - self._read - NEUTRAL)
        return [name for name in rest if not name.startswith("_") and self._config[name]]
