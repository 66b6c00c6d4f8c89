"""Formats: which number format each part of a served model is kept and moved in."""

from __future__ import annotations

from dataclasses import dataclass, replace

from chipwise.core.dtypes import DType, format_name, weight_format
from chipwise.hardware.datasheet import DeviceProfile


@dataclass(frozen=True, slots=True, kw_only=True)
class Formats:
    """``weights`` of every matrix but head, routers and token table, which stay in the format of the activations.

    Files whose format says so (GGUF, MLX) keep head and table in formats of their own.
    ``experts`` of a mixture's experts, where they are kept narrower than the rest. Layers whose numbers are in
    ``wide_layers`` keep their matrices in the format of the activations.
    """

    weights: str = "bf16"
    experts: str = "bf16"
    activations: str = "bf16"
    cache: str = "bf16"
    wide_layers: frozenset[int] = frozenset()

    @property
    def head(self) -> str:
        """The format of the matrix that gives the logits."""
        return weight_format(self.weights).head or self.activations

    @property
    def table(self) -> str:
        """The format of the token table."""
        return weight_format(self.weights).table or self.activations

    @property
    def wide(self) -> Formats:
        """Those of a layer that is kept wide."""
        return replace(self, weights=self.activations, experts=self.activations, wide_layers=frozenset())

    def __post_init__(self) -> None:
        weight_format(self.weights)
        weight_format(self.experts)
        DType.named(self.activations)
        DType.named(self.cache)


EXPERTS_ONLY = frozenset({"nvfp4", "mxfp4", "int4_g32"})
"""Checkpoints of mixtures in these formats (gpt-oss, NVIDIA's DeepSeek, Kimi-K2.5) quantise the experts alone."""


def wide_format(device: DeviceProfile) -> str:
    """The format of activations, and of weights unless a narrower one is chosen.

    What the device multiplies, at 16 bits if it can: BF16, else FP16, else FP32.
    """
    listed = device.peak_flops_per_s
    return next((name for name in ("bf16", "fp16", "fp32") if name in listed), "bf16")


def formats_of(weights: str | None, cache: str | None = None, *, wide: str = "bf16", mixture: bool = False) -> Formats:
    """The formats that a user means by ``--weights`` and ``--kv``; activations are as wide as unquantised weights are.

    Args:
        weights: The format of the matrices; ``wide`` unless given.
        cache: The format of the KV cache, that of the activations unless given.
        wide: The format of activations between narrower weights, see :func:`wide_format`.
        mixture: Whether the model has experts.

    Raises:
        UnknownName: No number format has this name.
    """
    name = format_name(weights or wide)
    activations = name if name in ("fp32", "fp16", "bf16") else wide
    only_experts = mixture and name in EXPERTS_ONLY
    return Formats(
        weights=activations if only_experts else weight_format(name).name,
        experts=weight_format(name).name,
        activations=activations,
        cache=DType.named(cache).value if cache else activations,
    )
