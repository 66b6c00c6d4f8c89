"""The kernel path for a pair of number formats: which formats are multiplied, moved and quantised."""

from __future__ import annotations

from dataclasses import dataclass

from chipwise.core.dtypes import DType, dtype_of, weight_format
from chipwise.errors import Unsupported
from chipwise.hardware.datasheet import DeviceProfile


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelPath:
    """A way to multiply. ``name`` is the key of fitted constants; sizes are in bytes per value, scales included."""

    name: str
    multiplied_in: DType
    weight_bytes: float
    activation_bytes: float  # bytes per activation that the product reads
    output_bytes: float
    source_bytes: float  # bytes per activation before quantisation
    peak_flops_per_s: float

    @property
    def quantises(self) -> bool:
        """Whether a separate kernel quantises the activations before the product."""
        return self.activation_bytes < self.source_bytes


_NARROW = {"fp8": "fp8", "fp8_block": "fp8_block", "nvfp4": "nvfp4", "mxfp4": "nvfp4"}
_PEAK = {"fp8": (DType.FP8,), "fp8_block": (DType.FP8,), "nvfp4": (DType.FP4,)}


def path_of(weights: str, activations: str, device: DeviceProfile) -> KernelPath:
    """The kernel path that multiplies ``activations`` by ``weights`` on ``device``.

    8-bit and 4-bit floats are multiplied directly if the device has a rate for them, after activations are quantised.
    Otherwise, and for integer weights with wide activations, weights are widened to the activations' format. With
    integer activations, and with ``w8a8``, products are in integers.

    Raises:
        UnknownName: A format is unknown.
        Unsupported: The device has no rate for the format that is multiplied.
    """
    stored, entering = weight_format(weights), dtype_of(activations)
    narrow = _NARROW.get(weights)
    if narrow is not None and _rate(device, _PEAK[narrow][0]) is not None:
        multiplied = _PEAK[narrow][0]
        name, width = narrow, stored.bits_per_weight / 8 if narrow == "nvfp4" else 1.0
        return _path(name, multiplied, stored.bits_per_weight / 8, width, 2.0, 2.0, device)
    if entering is DType.INT8 or weights == "w8a8":
        return _path("w8a8", DType.INT8, stored.bits_per_weight / 8, 1.0, 2.0, 2.0, device)
    wide = entering if entering.bits >= 16 else DType.BF16
    size = wide.size_bytes
    if stored.dtype.bits >= 16:
        name = "bf16" if size == 2 else "wide"
        return _path(name, wide, stored.bits_per_weight / 8, size, size, size, device)
    name = "w8a16" if stored.dtype.bits == 8 else "w4a16"
    return _path(name, wide, stored.bits_per_weight / 8, size, size, size, device)


def _path(
    name: str, multiplied: DType, weight: float, activation: float, output: float, source: float, device: DeviceProfile
) -> KernelPath:
    return KernelPath(
        name=name,
        multiplied_in=multiplied,
        weight_bytes=weight,
        activation_bytes=activation,
        output_bytes=output,
        source_bytes=source,
        peak_flops_per_s=device.peak(multiplied),
    )


def _rate(device: DeviceProfile, dtype: DType) -> float | None:
    try:
        return device.peak(dtype)
    except Unsupported:
        return None
