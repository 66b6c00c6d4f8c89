"""The fields of a Hugging Face config: typed access that remembers what was read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from chipwise.core.errors import SpecError, nearest
from chipwise.spec.feed_forward import Activation

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
# Fields that say nothing about what an inference pass computes.
NEUTRAL = {
    "architectures", "attn_pdrop", "attention_dropout", "auto_map", "bos_token_id", "cache_implementation", "dtype",
    "embd_pdrop", "eos_token_id", "initializer_range", "max_length", "model_type", "n_ctx",
    "name_or_path", "pad_token_id", "pretraining_tp", "reorder_and_upcast_attn", "resid_pdrop", "summary_activation",
    "summary_first_dropout", "summary_proj_to_labels", "summary_type", "summary_use_proj", "task_specific_params",
    "torch_dtype", "transformers.js_config", "transformers_version", "unk_token_id", "use_cache", "vocab_size",
}  # fmt: skip


class Fields:
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
        if word not in ACTIVATIONS:
            raise SpecError(f"unknown activation {word!r}; {nearest(word, ACTIVATIONS)}", field=name)
        return ACTIVATIONS[word]

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
        rest = sorted(name for name in self._config.keys() - self._read - NEUTRAL if not name.startswith("_"))
        return [f"{name}: not known to chipwise" for name in rest if self._config[name]]
