"""Checkpoints: the state of a training run and the run's identity, in one safetensors file.

A checkpoint contains tensors (weights, the optimiser's averages) and metadata as JSON. Only a run with the same key can
read it. The file is replaced atomically, so a killed process leaves either the old or the new state. It contains no
pickle, so reading it does not execute code.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from chipwise.core.fields import losses_renamed
from chipwise.core.files import storage, write_atomic
from chipwise.core.record import Record
from chipwise.errors import SpecError
from chipwise.model.nn.precision import Precision

SCHEMA = "chipwise.training/2"

CurvePoint = tuple[float, int, float, float | None]  # CPU seconds, tokens, bits per byte in training and validation


@dataclass(slots=True, kw_only=True)
class Progress:
    """Progress of a training run; ``steps`` also determines the next batch."""

    steps: int = 0
    tokens: int = 0
    cpu_s: float = 0.0
    decay_from: float | None = None  # CPU seconds at which this run began to decay the learning rate
    rate_scale: float = 1.0  # factor on the learning rates, halved after a divergence
    loss: float = math.nan  # loss of recent training batches, smoothed
    precision: Precision  # precision of matrix products; fixed for a training run
    curve: list[CurvePoint] = field(default_factory=list)

    def plain(self) -> dict[str, object]:
        """The progress as JSON values."""
        values: dict[str, object] = {name: getattr(self, name) for name in self.__slots__}
        values["loss"] = None if math.isnan(self.loss) else self.loss
        return values

    @classmethod
    def from_plain(cls, values: Mapping[str, object]) -> Progress:
        """Reads the output of :meth:`plain`."""
        known = losses_renamed(values)
        known["curve"] = [tuple(point) for point in known["curve"]]
        known["loss"] = math.nan if known["loss"] is None else known["loss"]
        return cls(**known)


def save(path: Path, key: str, progress: Progress, weights: dict[str, Tensor], averages: dict[str, Tensor]) -> None:
    """Writes a checkpoint of the training run with identity ``key``."""
    tensors = {f"weights.{name}": value for name, value in weights.items()}
    tensors |= {f"averages.{name}": value for name, value in averages.items()}
    write_state(path, SCHEMA, key, tensors, progress.plain())


def load(path: Path, key: str) -> tuple[Progress, dict[str, Tensor], dict[str, Tensor]] | None:
    """Reads the checkpoint; None if this training run has no readable checkpoint and must start from the beginning."""
    found = read_state(path, SCHEMA, key)
    if found is None:
        return None
    parts: dict[str, dict[str, Tensor]] = {"weights": {}, "averages": {}}
    try:
        for name, value in found[0].items():
            part, _, rest = name.partition(".")
            parts[part][rest] = value
        return Progress.from_plain(found[1].data), parts["weights"], parts["averages"]
    except (KeyError, TypeError):
        return None


def write_state(path: Path, schema: str, key: str, tensors: Mapping[str, Tensor], facts: Mapping[str, object]) -> None:
    """Writes ``tensors`` and the metadata ``facts`` of the training run with identity ``key``, atomically."""
    from safetensors.torch import save as to_bytes

    whole = {name: value.detach().contiguous() for name, value in tensors.items()}
    about = {"schema": schema, "key": key, "facts": json.dumps(facts, allow_nan=False)}
    with storage(path):
        write_atomic(path, to_bytes(whole, metadata=about))


def read_state(path: Path, schema: str, key: str) -> tuple[dict[str, Tensor], Record] | None:
    """Reads the state that was written for ``key``; None if the file is missing, damaged or for another key."""
    from safetensors import SafetensorError, safe_open

    if not path.exists():
        return None
    try:
        with safe_open(path, framework="pt") as file:
            about = file.metadata() or {}
            if about.get("schema") != schema or about.get("key") != key:
                return None
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a mapping)
            return tensors, Record.of(json.loads(about["facts"]), file=str(path))
    except (SafetensorError, OSError, ValueError, KeyError, SpecError):
        return None


def fingerprint(weights: Mapping[str, object]) -> str:
    """Digest of weights (arrays or tensors): names, shapes and every bit of their FP32 values."""
    hashed = hashlib.sha256()
    for name in sorted(weights):
        value = weights[name]
        if isinstance(value, torch.Tensor):
            value = value.detach().cpu().float().numpy()
        value = np.ascontiguousarray(value, np.float32)
        hashed.update(f"{name}{value.shape}".encode())
        hashed.update(value.data)
    return hashed.hexdigest()
