"""The state of a training in one safetensors file: weights, the optimiser's averages and the figures so far.

One file, replaced at once, so that a kill leaves the state before or the state after. No pickle: nothing in it runs.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from chipwise.core.files import storage, write_atomic

SCHEMA = "chipwise.training/1"

CurvePoint = tuple[float, int, float, float | None]  # CPU seconds, tokens, training bits per byte, validation ones


@dataclass(slots=True, kw_only=True)
class Progress:
    """How far a training is. ``steps`` also says which batches come next."""

    steps: int = 0
    tokens: int = 0
    cpu_s: float = 0.0
    decay_from: float | None = None  # CPU seconds at which this branch began to decay
    rate_scale: float = 1.0  # lowered after a divergence
    bits_per_byte: float = math.nan  # of recent training batches, smoothed
    curve: list[CurvePoint] = field(default_factory=list)

    def plain(self) -> dict[str, Any]:
        """As JSON can hold it."""
        values: dict[str, Any] = {name: getattr(self, name) for name in self.__slots__}
        values["bits_per_byte"] = None if math.isnan(self.bits_per_byte) else self.bits_per_byte
        return values

    @classmethod
    def from_plain(cls, values: dict[str, Any]) -> Progress:
        """What :meth:`plain` gave."""
        known = dict(values)
        known["curve"] = [tuple(point) for point in known["curve"]]
        known["bits_per_byte"] = math.nan if known["bits_per_byte"] is None else known["bits_per_byte"]
        return cls(**known)


def save(path: Path, key: str, progress: Progress, weights: dict[str, Tensor], averages: dict[str, Tensor]) -> None:
    """Writes a checkpoint of the training whose identity is ``key``."""
    from safetensors.torch import save as to_bytes

    tensors = {f"weights.{name}": value.detach().contiguous() for name, value in weights.items()}
    tensors |= {f"averages.{name}": value.contiguous() for name, value in averages.items()}
    about = {"schema": SCHEMA, "key": key, "progress": json.dumps(progress.plain(), allow_nan=False)}
    with storage(path):
        write_atomic(path, to_bytes(tensors, metadata=about))


def load(path: Path, key: str) -> tuple[Progress, dict[str, Tensor], dict[str, Tensor]] | None:
    """The checkpoint, or None where there is none of this training that can be read (it then starts anew)."""
    from safetensors import SafetensorError, safe_open

    if not path.exists():
        return None
    try:
        with safe_open(path, framework="pt") as file:
            about = file.metadata() or {}
            if about.get("schema") != SCHEMA or about.get("key") != key:
                return None
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a mapping)
            progress = Progress.from_plain(json.loads(about["progress"]))
    except (SafetensorError, OSError, ValueError, KeyError, TypeError):
        return None
    parts: dict[str, dict[str, Tensor]] = {"weights": {}, "averages": {}}
    for name, value in tensors.items():
        part, _, rest = name.partition(".")
        parts[part][rest] = value
    return progress, parts["weights"], parts["averages"]
