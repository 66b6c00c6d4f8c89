"""Formats of a checkpoint's weights and KV cache, read from the quantisation section of its config.

References:
    transformers' ``quantization_config`` for each ``quant_method``; compressed-tensors' ``config_groups``; NVIDIA
    ModelOpt's ``hf_quant_config.json``; Dettmers et al. 2023, QLoRA, arXiv:2305.14314 (NF4: one scale per 64 values).
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from chipwise.core.files import read_json
from chipwise.errors import SpecError
from chipwise.model.published import alike, families

FIELD = "quantization_config"
MODELOPT = "hf_quant_config.json"  # file next to config.json


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """Weight format (None: 16 bits) and KV-cache format (None: the activations' format) of a checkpoint."""

    weights: str | None = None
    cache: str | None = None


def default_weights(model: str) -> str | None:
    """The published weight format of ``model`` (a known name, a config.json, or its folder); None for 16 bits.

    Raises:
        SpecError: The kind of quantisation is not supported.
        UnknownName: ``model`` is neither a file nor a known name.
    """
    place, _ = alike.split(model)
    return stored_at(Path(place)).weights if os.path.exists(place) else families.default_weights(model)


def stored_at(path: Path) -> Stored:
    """The formats stated in a config.json; ``path`` is the file or its folder.

    Raises:
        SpecError: The kind of quantisation is not supported.
    """
    path = path / "config.json" if path.is_dir() else path
    if path.suffix != ".json":
        return Stored()
    config = _mapping(read_json(path))
    found = config.get(FIELD) or _mapping(config.get("text_config")).get(FIELD)
    beside = path.parent / MODELOPT
    if not found and path.name == "config.json" and beside.exists():
        found = {"quant_method": "modelopt", **_mapping(read_json(beside))}
    try:
        return stored(_mapping(found)) if found else Stored()
    except SpecError as error:
        raise error.inside(file=str(path)) from None


def stored(config: Mapping[str, object]) -> Stored:
    """The formats that a ``quantization_config`` states.

    Raises:
        SpecError: The kind of quantisation is not supported; the user has to name the format.
    """
    method = str(config.get("quant_method", "")).lower()
    weights = cache = None
    if method in ("fp8", "fbgemm_fp8"):
        weights = "fp8_block" if config.get("weight_block_size") else "fp8"
    elif method == "mxfp4":
        weights = "mxfp4"
    elif method in ("awq", "gptq"):
        weights = _integer(config.get("bits", 4), config.get("group_size", 128))
    elif method == "bitsandbytes":
        # NF4 takes 4.5 bits per weight, like int4_g32.
        weights = "int4_g32" if _either(config, "load_in_4bit") else "int8"
    elif method == "compressed-tensors":
        weights, cache = _compressed(config)
    elif method == "modelopt":
        found = _mapping(config.get("quantization")) or config
        weights = {"FP8": "fp8", "NVFP4": "nvfp4", "W4A16_AWQ": "int4_g128"}.get(str(found.get("quant_algo")))
        cache = "fp8" if found.get("kv_cache_quant_algo") == "FP8" else None
    if weights is None:
        raise SpecError(f"{dict(config)!r:.120} is not supported; name the format of the weights", field=FIELD)
    return Stored(weights=weights, cache=cache)


def _mapping(value: object) -> Mapping[str, object]:
    return value if isinstance(value, Mapping) else {}


def _either(config: Mapping[str, object], name: str) -> bool:
    return bool(config.get(name) or config.get(f"_{name}"))


def _integer(bits: object, group: object) -> str | None:
    """The format of ``bits``-bit integers with a scale per ``group`` values; None if chipwise has no such format."""
    if bits == 8:
        return "int8"
    return ("int4_g32" if group == 32 else "int4_g128") if bits == 4 else None


def _compressed(config: Mapping[str, object]) -> tuple[str | None, str | None]:
    """Formats in a compressed-tensors config. Only its first group is read: published checkpoints have equal groups."""
    group = _mapping(next(iter(_mapping(config.get("config_groups")).values()), None))
    found = _mapping(group.get("weights"))
    bits, kind, size = found.get("num_bits"), found.get("type"), found.get("group_size")
    cache = "fp8" if _mapping(config.get("kv_cache_scheme")).get("num_bits") == 8 else None
    if kind == "float" and bits == 8:
        return "fp8_block" if found.get("strategy") == "block" else "fp8", cache
    if kind == "float":
        return ("mxfp4" if size == 32 else "nvfp4") if bits == 4 else None, cache
    if bits == 8 and _mapping(group.get("input_activations")).get("num_bits") == 8:
        return "w8a8", cache
    return _integer(bits, size), cache
