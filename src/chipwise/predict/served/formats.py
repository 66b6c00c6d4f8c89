"""The number formats of a served model's weights, KV cache and activations."""

from __future__ import annotations

from dataclasses import dataclass, replace

from chipwise.core.dtypes import DType, format_name, weight_format
from chipwise.hardware.datasheet import DeviceProfile
from chipwise.hardware.runtime import CORES, Runtime


@dataclass(frozen=True, slots=True, kw_only=True)
class Formats:
    """The number formats of a served model.

    ``weights`` is the format of all matrices except head, routers and token table. Routers keep the format of the
    activations; so do head and token table, unless a GGUF or MLX format sets other formats for them. ``experts`` is the
    format of the experts in a mixture, which may be narrower. The matrices of the layers in ``wide_layers`` keep the
    format of the activations. ``layers`` lists a format for each layer, if the formats of layers differ.
    """

    weights: str = "bf16"
    experts: str = "bf16"
    activations: str = "bf16"
    cache: str = "bf16"
    wide_layers: frozenset[int] = frozenset()
    layers: tuple[str, ...] = ()

    @property
    def head(self) -> str:
        """Format of the output matrix, which gives the logits."""
        return weight_format(self.weights).head or self.activations

    @property
    def table(self) -> str:
        """Format of the token table."""
        return weight_format(self.weights).table or self.activations

    @property
    def stated(self) -> str:
        """The format to display: that of the matrices, or that of the experts if it is narrower."""
        return "mixed" if self.layers else self.experts

    def of_layer(self, number: int) -> Formats:
        """The formats of one layer. Layers with equal formats get the same object."""
        if number in self.wide_layers:
            return self._throughout(self.activations)
        return self._throughout(self.layers[number]) if self.layers else self

    def _throughout(self, name: str) -> Formats:
        return replace(self, weights=name, experts=name, wide_layers=frozenset(), layers=())

    def __post_init__(self) -> None:
        for name in (self.weights, self.experts, *self.layers):
            weight_format(name)
        DType.named(self.activations)
        DType.named(self.cache)


EXPERTS_ONLY = frozenset({"nvfp4", "mxfp4", "int4_g32"})
"""Formats in which checkpoints of mixtures (gpt-oss, NVIDIA's DeepSeek, Kimi-K2.5) quantise only the experts."""


def wide_format(device: DeviceProfile, runtime: Runtime | None = None) -> str:
    """Default format of activations and weights: the first of BF16, FP16 and FP32 that the device can multiply.

    In ONNX Runtime on CPU cores it is FP32, because few 16-bit kernels exist there.
    """
    if runtime is not None and runtime.stack == CORES:
        return "fp32"
    listed = device.peak_flops_per_s
    return next((name for name in ("bf16", "fp16", "fp32") if name in listed), "bf16")


def formats_of(weights: str | None, cache: str | None = None, *, wide: str = "bf16", mixture: bool = False) -> Formats:
    """The formats that ``--weights`` and ``--kv`` select.

    Args:
        weights: The format of the matrices. Default: ``wide``.
        cache: The format of the KV cache. Default: that of the activations.
        wide: The format of activations and unquantised weights, see :func:`wide_format`.
        mixture: Whether the model has experts.

    Raises:
        UnknownName: A format is unknown.
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
