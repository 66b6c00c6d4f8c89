"""Functions that time or train one network of a user's module; worker processes import them."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from chipwise.deploy.graphs import export_module
from chipwise.deploy.graphs.sessions import clock_for, opened
from chipwise.design.modules.user_module import UserModule, read_module
from chipwise.design.strategies.executors import Outcome
from chipwise.design.strategies.strategy import Rows
from chipwise.errors import InputError, TrainingDiverged

if TYPE_CHECKING:
    from torch import nn

WARM_UP, LEAST_RUNS, LEAST_S = 5, 30, 0.15


@dataclass(frozen=True, slots=True)
class Latency:
    """Processor seconds of one pass in ONNX Runtime with one thread; time spent waiting does not count."""

    p50: float
    p99: float


def price_row(row: Rows, *, file: str, folder: str, seed: int) -> Outcome:
    """Builds an untrained network, and measures its latency in seconds and its number of parameters."""
    user = _module(file)
    module = _built(user, row, seed)
    latency = latency_of(user, module, Path(folder) / f"{'-'.join(map(str, row))}.onnx", keep=False)
    return Outcome(objectives=[latency.p50, float(parameters_of(module))])


def weights_of(row: Rows, folder: str | Path) -> Path:
    """Path of a network's weights after its first training."""
    return Path(folder) / f"{'-'.join(map(str, row))}.safetensors"


def train_row(row: Rows, *, file: str, cpu_s: float, seed: int, folder: str) -> Outcome:
    """Trains a network for ``cpu_s`` CPU seconds and writes its weights to ``folder``; returns the validation loss."""
    user = _module(file)
    module = _built(user, row, seed)
    loss = _trained(user, module, cpu_s)
    _save(module, weights_of(row, folder))
    return Outcome(objectives=[loss])


def finish_row(row: Rows, *, file: str, cpu_s: float, seed: int, folder: str, started: str) -> Outcome:
    """Continues a network's training, and writes its weights and ONNX graph.

    Returns the validation loss, latency (P50 and P99), parameters, and the result of the user's ``test`` if it exists.
    """
    from safetensors.torch import load_file

    user = _module(file)
    module = _built(user, row, seed)
    if Path(started).exists():
        module.load_state_dict(load_file(started))
    loss = _trained(user, module, cpu_s)
    module.eval()
    score = [] if user.test is None else [float(user.test(module))]
    _save(module, Path(folder) / "model.safetensors")
    latency = latency_of(user, module, Path(folder) / "model.onnx", keep=True)
    return Outcome(objectives=[loss, latency.p50, latency.p99, float(parameters_of(module)), *score])


def latency_of(user: UserModule, module: nn.Module, path: Path, *, keep: bool) -> Latency:
    """Exports a network and times it in ONNX Runtime."""
    feed = export_module(module, user.inputs(), path)
    try:
        session = opened(path, threads=1)
    finally:
        if not keep:
            path.unlink(missing_ok=True)
    for _ in range(WARM_UP):
        session.run(None, feed)
    clock, seconds = clock_for(1), list[float]()
    begun = time.monotonic()
    while len(seconds) < LEAST_RUNS or time.monotonic() - begun < LEAST_S:
        before = clock()
        session.run(None, feed)
        seconds.append(clock() - before)
    return Latency(float(np.median(seconds)), float(np.quantile(seconds, 0.99)))


def parameters_of(module: nn.Module) -> int:
    """Number of a network's parameters, without buffers."""
    return sum(parameter.numel() for parameter in module.parameters())


def _save(module: nn.Module, path: Path) -> None:
    from safetensors.torch import save_file

    save_file({name: value.contiguous().clone() for name, value in module.state_dict().items()}, path)


@lru_cache(maxsize=4)
def _module(file: str) -> UserModule:
    return read_module(file)


def _built(user: UserModule, row: Rows, seed: int) -> nn.Module:
    import torch

    torch.set_num_threads(1)
    torch.manual_seed(seed)
    module = user.build(user.chosen(row))
    if not isinstance(module, torch.nn.Module):
        raise InputError(f"build returned {type(module).__name__}; it must return a torch.nn.Module")
    return module


def _trained(user: UserModule, module: nn.Module, cpu_s: float) -> float:
    loss = float(user.train(module, cpu_s))
    if not math.isfinite(loss):
        raise TrainingDiverged(f"train returned a loss of {loss}; it must be finite")
    return loss
