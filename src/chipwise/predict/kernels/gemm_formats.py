"""The kernel path of a matrix product: in which number formats operands are stored, moved and multiplied."""

from __future__ import annotations

from dataclasses import dataclass

from chipwise.core.dtypes import DType, dtype_of, weight_format
from chipwise.hardware.datasheet import DeviceProfile


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelPath:
    """The number formats that a matrix product uses. Sizes are in bytes per value, including scales.

    ``name`` is the key of the fitted constants.
    """

    name: str
    multiplied_in: DType
    weight_bytes: float
    activation_bytes: float  # bytes per activation that the matrix product reads
    output_bytes: float
    source_bytes: float  # bytes per activation before quantisation
    peak_flops_per_s: float

    @property
    def quantises(self) -> bool:
        """Whether a separate kernel quantises the activations before the matrix product."""
        return self.activation_bytes < self.source_bytes


_NARROW = {"fp8": "fp8", "fp8_block": "fp8_block", "nvfp4": "nvfp4", "mxfp4": "nvfp4"}
_PEAK = {"fp8": DType.FP8, "fp8_block": DType.FP8, "nvfp4": DType.FP4}


def path_of(weights: str, activations: str, device: DeviceProfile) -> KernelPath:
    """The kernel path that multiplies ``activations`` by ``weights`` on ``device``.

    Weights in 8-bit or 4-bit floats are multiplied directly if the device has a rate for them; activations are then
    quantised first. With integer activations, and with ``w8a8`` weights, the matrix product is computed in int8. In all
    other cases, narrow weights are widened to the activations' format.

    Raises:
        UnknownName: A format is unknown.
        Unsupported: The device has no rate for the format that is multiplied.
    """
    stored, entering = weight_format(weights), dtype_of(activations)
    width, narrow = stored.bits_per_weight / 8, _NARROW.get(weights)
    multiplied = entering if entering.bits >= 16 else DType.BF16
    size = entered = multiplied.size_bytes
    if narrow is not None and device.rate(_PEAK[narrow]) is not None:
        name, multiplied, entered, size = narrow, _PEAK[narrow], width if narrow == "nvfp4" else 1.0, 2.0
    elif entering is DType.INT8 or weights == "w8a8":
        name, multiplied, entered, size = "w8a8", DType.INT8, 1.0, 2.0
    elif stored.dtype.bits >= 16:
        name = "bf16" if size == 2 else "wide"
    else:
        name = "w8a16" if stored.dtype.bits == 8 else "w4a16"
    return KernelPath(
        name=name,
        multiplied_in=multiplied,
        weight_bytes=width,
        activation_bytes=entered,
        output_bytes=size,
        source_bytes=size,
        peak_flops_per_s=device.peak(multiplied),
    )
