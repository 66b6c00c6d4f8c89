"""Trains the bounded networks (see ``kernels/bounded.py``) and writes the files that chipwise ships. Needs torch."""

from __future__ import annotations

import datetime
import importlib.metadata
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from chipwise.core.arrays import Float32Array
from chipwise.errors import MissingExtra
from chipwise.predict.kernels.bounded import Network


def train(
    inputs: Float32Array,
    targets: npt.NDArray[np.float64],
    *,
    identity: slice,
    bound: float,
    seed: int,
    hidden: int = 32,
    epochs: int = 30,
    batch: int = 2048,
    forget: float = 0.3,
    members: int = 1,
) -> Network:
    """Trains a network that predicts ``targets`` (logarithms), by mean absolute error.

    The columns ``identity`` identify a row's device. At each step they are set to zero in some of the rows (a share
    ``forget``), so that the network also predicts for unidentified devices. ``members`` networks are trained, with
    seeds from ``seed`` on, and joined into one that predicts their mean, because a single network's prediction for
    unusual hardware depends on its random start.
    """
    try:
        import torch
    except ImportError as error:
        raise MissingExtra("torch", "tables", of="chipwise-fitting") from error
    keep = inputs.min(axis=0) < inputs.max(axis=0)
    mean, scale = inputs.mean(axis=0), np.where(keep, inputs.std(axis=0), 1.0)
    mean[identity], scale[identity] = 0.0, 1.0
    x_RI = torch.from_numpy(((inputs - mean) / scale).astype(np.float32))
    y_R = torch.from_numpy(np.asarray(targets, dtype=np.float32))
    width = x_RI.shape[1]
    batch = min(batch, len(y_R))
    steps = max(1, epochs * (len(y_R) // batch))

    def member(number: int) -> list[Float32Array]:
        generator = torch.Generator().manual_seed(number)
        layers = [
            torch.randn(rows + 1, columns, generator=generator) / np.sqrt(rows + 1)
            for rows, columns in ((width, hidden), (hidden, hidden), (hidden, 1))
        ]
        layers[2] = layers[2] * 0.1
        parameters = [layer.requires_grad_(True) for layer in layers]
        optimiser = torch.optim.AdamW(parameters, lr=4e-3, weight_decay=1e-3)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, max_lr=8e-3, total_steps=steps)
        for _ in range(steps):
            chosen = torch.randint(len(y_R), (batch,), generator=generator)
            x = x_RI[chosen]
            x[torch.rand(batch, generator=generator) < forget, identity] = 0.0
            out = torch.tanh(x @ layers[0][:-1] + layers[0][-1])
            out = torch.tanh(out @ layers[1][:-1] + layers[1][-1])
            out = bound * torch.tanh(out @ layers[2][:-1] + layers[2][-1])[:, 0]
            loss = (out - y_R[chosen]).abs().mean()
            optimiser.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimiser.step()
            schedule.step()
        return [layer.detach().numpy().astype(np.float32) for layer in layers]

    first, second, third = _joined([member(seed + i) for i in range(members)])
    return Network(
        mean=mean.astype(np.float32),
        scale=scale.astype(np.float32),
        first=first,
        second=second,
        third=third,
        low=inputs.min(axis=0),
        high=np.where(_is_identity(width, identity), 1.0, inputs.max(axis=0)).astype(np.float32),
        bound=bound,
    )


def _joined(members: list[list[Float32Array]]) -> tuple[Float32Array, Float32Array, Float32Array]:
    """Joins several networks of three layers into one network of three layers, which predicts their mean."""
    firsts, seconds, thirds = zip(*members, strict=True)
    hidden = firsts[0].shape[1]
    between = np.zeros((len(members) * hidden + 1, len(members) * hidden), dtype=np.float32)
    for i, second in enumerate(seconds):
        own = slice(i * hidden, (i + 1) * hidden)
        between[own, own], between[-1, own] = second[:-1], second[-1]
    last = np.concatenate([*(third[:-1, 0] for third in thirds), np.sum(thirds, axis=0)[-1]]) / len(members)
    return np.concatenate(firsts, axis=1), between, last.astype(np.float32)


def write(kind: str, out: Path, facts: Mapping[str, Any], networks: Mapping[str, Network]) -> None:
    """Writes KIND.json and KIND.npz (weights in half precision) to ``out``."""
    stated = {"provenance": provenance(), **facts}
    (out / f"{kind}.json").write_text(json.dumps(stated, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    arrays: dict[str, Any] = {}
    for fold, network in networks.items():
        for part in ("mean", "scale", "first", "second", "third", "low", "high"):
            exact = part in ("mean", "scale", "low", "high")
            arrays[f"{fold}/{part}"] = getattr(network, part).astype(np.float32 if exact else np.float16)
    if arrays:
        np.savez_compressed(out / f"{kind}.npz", **arrays)


def provenance() -> dict[str, str]:
    """Returns the origin of the figures: package, version, licence, date and command."""
    return {
        "package": f"aiconfigurator-core {importlib.metadata.version('aiconfigurator-core')} (Apache-2.0)",
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "command": "chipwise fit --from aiconfigurator",
    }


def version(name: str) -> list[int]:
    """Returns the numbers in the name of a version, as a sort key."""
    return [int(part) for part in "".join(c if c.isdigit() else " " for c in name).split()]


def _is_identity(width: int, identity: slice) -> npt.NDArray[np.bool_]:
    marks = np.zeros(width, dtype=bool)
    marks[identity] = True
    return marks
