"""Hugging Face folders in the format of compressed-tensors, which vLLM and transformers load: int4 or fp8 layers.

The package compressed-tensors is not needed to write them. int4 uses the format ``pack-quantized``: eight values in an
int32, a scale in bfloat16 for each group. fp8 uses ``float-quantized``: E4M3 bytes, a scale in FP32 for each row; when
the model runs, activations are rounded to fp8 token by token. Tables, head, norms and biases are in bfloat16.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from chipwise.core.arrays import AnyArray
from chipwise.core.files import read_mapping, write_json
from chipwise.deploy.export.sources import Source, write_hf
from chipwise.errors import Unsupported
from chipwise.model.arch.design import Design
from chipwise.model.blocks.quantize import NEAREST, Packed, Packing

if TYPE_CHECKING:
    from torch import Tensor

FILE = "model.safetensors"


def write_compressed(
    source: Source, design: Design, folder: Path, packing: Packing = NEAREST
) -> tuple[list[str], list[str]]:
    """Writes a Hugging Face folder with the layers of ``design`` in int4 or fp8; returns file names and remarks.

    Parts that ``design`` keeps in FP32, such as the head, are stored in bfloat16.

    Raises:
        Unsupported: A width is not a multiple of the group size.
    """
    import torch
    from safetensors.numpy import load_file
    from safetensors.torch import save_file

    files, notes = write_hf(source, design, folder)
    config = read_mapping(folder / "config.json")
    (form,) = {form for form in design.formats.all if form != "fp32"}
    names = {(value.shape, value.tobytes()): name for name, value in source.weights.items()}
    stored: dict[str, Tensor] = {}
    kept = []
    for name, value in load_file(folder / FILE).items():
        ours, place = names.get((value.shape, value.tobytes()), ""), name.removesuffix(".weight")
        if ours.startswith("layers.") and value.ndim == 2:
            stored |= _tensors(place, packing.pack(ours, value, form), value, packing)
        else:
            stored[name] = torch.from_numpy(value).to(torch.bfloat16)
            kept += [place] if value.ndim == 2 else []
    save_file(stored, folder / FILE, metadata={"format": "pt"})
    about = _config(form, packing, kept=sorted({*kept, "lm_head"}))
    write_json(folder / "config.json", {**config, "dtype": "bfloat16", "quantization_config": about})
    return files, [*notes, "not run in vLLM"]


def _tensors(place: str, packed: Packed, value: AnyArray, packing: Packing) -> dict[str, Tensor]:
    """Returns the tensors that store a matrix (n, k), by name."""
    import torch

    n, k = value.shape
    scales = torch.from_numpy(packed.scales.reshape(n, -1).copy())
    if packed.form == "fp8":
        codes = torch.from_numpy(packed.values.copy()).view(torch.float8_e4m3fn)
        return {f"{place}.weight": codes, f"{place}.weight_scale": scales}
    if k % packing.grid.block:
        raise Unsupported(
            f"{place} has rows of {k} values, which is not a multiple of the group size {packing.grid.block}; choose "
            "another group size (--group), or --weights fp8"
        )
    words = np.ascontiguousarray(packed.values.reshape(n, -1)).view("<i4")
    return {
        f"{place}.weight_packed": torch.from_numpy(words),
        f"{place}.weight_scale": scales.to(torch.bfloat16),
        f"{place}.weight_shape": torch.tensor([n, k]),
    }


def _config(form: str, packing: Packing, *, kept: list[str]) -> dict[str, object]:
    """The field ``quantization_config`` of config.json; the modules ``kept`` are not quantised."""
    shared = {"symmetric": True, "dynamic": False}
    if form == "fp8":
        weights = {"num_bits": 8, "type": "float", "strategy": "channel", **shared}
        activations = {"num_bits": 8, "type": "float", "strategy": "token", "symmetric": True, "dynamic": True}
    else:
        weights = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": packing.grid.block, **shared}
        activations = None
    return {
        "quant_method": "compressed-tensors",
        "quantization_status": "compressed",
        "format": "float-quantized" if form == "fp8" else "pack-quantized",
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights, "input_activations": activations}},
        "ignore": kept,
    }
