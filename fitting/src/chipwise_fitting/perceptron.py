"""Trains the networks of ``kernels/perceptron.py``. Needs torch."""

from __future__ import annotations

import itertools

import numpy as np
import numpy.typing as npt

from chipwise.core.arrays import Float32Array
from chipwise.errors import MissingExtra
from chipwise.predict.kernels.perceptron import Perceptron

BATCH = 1024
RATE = 3e-3
CORNER = 0.02  # errors below this count squared; it is about the noise of repeated measurements


def train(
    inputs: Float32Array,
    targets: npt.NDArray[np.float64],
    weights: npt.NDArray[np.float64],
    *,
    identity: slice,
    hidden: tuple[int, ...],
    epochs: int,
    bound: float,
    seed: int,
    forget: float = 0.0,
) -> Perceptron:
    """Trains a network that predicts ``targets``, by Huber's loss on logarithms.

    Args:
        inputs: (rows, inputs).
        targets: (rows,) logarithms of measured over physics.
        weights: (rows,) weights in the loss.
        identity: Columns that identify a device or design: not standardised, and set to zero in the share ``forget`` of
            the rows of a step, so that the network also predicts for unidentified ones.
        hidden: Widths of the hidden layers.
        epochs: Passes over the rows.
        bound: Largest correction.
        seed: Random seed of the first weights and the order of rows.
        forget: See ``identity``.

    Raises:
        MissingExtra: torch is not installed.
    """
    try:
        import torch
    except ImportError as error:
        raise MissingExtra("torch", "tables", of="chipwise-fitting") from error
    generator = torch.Generator().manual_seed(seed)
    mean, scale = inputs.mean(axis=0), inputs.std(axis=0)
    scale = np.where(scale > 1e-6, scale, 1.0)
    mean[identity], scale[identity] = 0.0, 0.5
    x_RI = torch.from_numpy(((inputs - mean) / scale).astype(np.float32))
    y_R = torch.from_numpy(np.clip(targets, -bound, bound).astype(np.float32))
    w_R = torch.from_numpy((weights / weights.mean()).astype(np.float32))
    widths = (inputs.shape[1], *hidden, 1)
    layers = []
    for wide, narrow in itertools.pairwise(widths):
        layer = (torch.rand(wide + 1, narrow, generator=generator) * 2 - 1) / np.sqrt(wide)
        layers.append(layer.requires_grad_(True))
    optimiser = torch.optim.AdamW(layers, lr=RATE, weight_decay=1e-4)
    steps = epochs * -(-len(y_R) // BATCH)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, RATE, total_steps=steps, pct_start=0.1)
    for _ in range(epochs):
        order = torch.randperm(len(y_R), generator=generator)
        for chosen in torch.split(order, BATCH):
            x = x_RI[chosen]
            if forget:
                x[torch.rand(len(chosen), generator=generator) < forget, identity] = 0.0
            for layer in layers[:-1]:
                x = torch.nn.functional.silu(torch.addmm(layer[-1], x, layer[:-1]))
            answer = torch.addmm(layers[-1][-1], x, layers[-1][:-1])[:, 0]
            loss = torch.nn.functional.smooth_l1_loss(answer, y_R[chosen], reduction="none", beta=CORNER)
            optimiser.zero_grad()
            (loss * w_R[chosen]).mean().backward()  # type: ignore[no-untyped-call]
            optimiser.step()
            schedule.step()
    return Perceptron(
        mean=mean.astype(np.float32),
        scale=scale.astype(np.float32),
        low=inputs.min(axis=0),
        high=inputs.max(axis=0),
        layers=tuple(layer.detach().numpy().astype(np.float32) for layer in layers),
        bound=bound,
    )
