"""A small convolutional network for Fashion-MNIST, designed for this machine: the search chooses from ``CHOICES`` and
calls the functions of this file to build and train networks, and to test the winner.

pip install 'chipwise[search]'
apt install dataset-fashion-mnist
chipwise search --model convnet.py --latency "<= 60 us" --cpu "5 min"
"""

from __future__ import annotations

import gzip
import time
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

IMAGES = Path("/usr/share/datasets/fashion-mnist")
VALIDATION = 5_000  # taken from the 60,000 training images
BATCH = 128
CHUNK = 1_000  # images per pass in validation

# A network is a stem, stages of blocks that halve the image, and a linear layer on the mean of the last positions.
CHOICES = {
    "width": [8, 12, 16, 24, 32],  # channels of the stem
    "growth": [1.5, 2.0],  # factor on the channels from stage to stage
    "stages": [1, 2, 3],
    "blocks": [1, 2, 3],  # in each stage
    "block": ["plain", "separable", "inverted"],  # one convolution; depthwise and 1x1; MobileNetV2's, expanded fourfold
    "kernel": [3, 5],
    "stride": [1, 2],  # stride of the stem
    "residual": [False, True],
    "activation": ["relu", "hardswish"],
    "rate": [0.002, 0.006, 0.015],  # peak learning rate
}


def inputs() -> tuple[Tensor, ...]:
    """One image, which the exported network receives."""
    return (torch.zeros(1, 1, 28, 28),)


def build(choices: dict) -> nn.Module:
    """Builds the network that one combination of choices describes."""
    act = nn.ReLU if choices["activation"] == "relu" else nn.Hardswish
    width = choices["width"]
    layers: list[nn.Module] = [*_conv(1, width, 3, choices["stride"]), act()]
    for _ in range(choices["stages"]):
        wider = round(width * choices["growth"] / 4) * 4
        for i in range(choices["blocks"]):
            layers.append(Block(width, wider, 2 if i == 0 else 1, choices, act))
            width = wider
    module = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 10))
    module.rate = choices["rate"]
    return module


class Block(nn.Module):
    """One block, with a shortcut where input and output have the same shape."""

    def __init__(self, inner: int, outer: int, stride: int, choices: dict, act: type[nn.Module]) -> None:
        super().__init__()
        kernel = choices["kernel"]
        if choices["block"] == "plain":
            layers = [*_conv(inner, outer, kernel, stride), act()]
        elif choices["block"] == "separable":
            layers = [*_conv(inner, inner, kernel, stride, inner), act(), *_conv(inner, outer, 1), act()]
        else:
            wide = 4 * inner
            layers = [*_conv(inner, wide, 1), act(), *_conv(wide, wide, kernel, stride, wide), act()]
            layers += _conv(wide, outer, 1)
        self.layers = nn.Sequential(*layers)
        self.residual = choices["residual"] and stride == 1 and inner == outer

    def forward(self, x: Tensor) -> Tensor:
        """Feature maps (B, C, Y, X) after the block."""
        return x + self.layers(x) if self.residual else self.layers(x)


def _conv(inner: int, outer: int, kernel: int, stride: int = 1, groups: int = 1) -> list[nn.Module]:
    convolution = nn.Conv2d(inner, outer, kernel, stride, kernel // 2, groups=groups, bias=False)
    return [convolution, nn.BatchNorm2d(outer)]


def train(module: nn.Module, cpu_s: float) -> float:
    """Trains for ``cpu_s`` CPU seconds with AdamW; returns the cross-entropy on the validation images."""
    images, labels = _images("train")
    seen, known = images[VALIDATION:], labels[VALIDATION:]
    optimiser = torch.optim.AdamW(module.parameters(), lr=module.rate, weight_decay=0.02)
    begun, done = time.process_time(), 0.0
    module.train()
    while done < 1:
        chosen = torch.randint(len(seen), (BATCH,))
        batch = seen[chosen]
        if torch.rand(()) < 0.5:
            batch = batch.flip(-1)
        for group in optimiser.param_groups:
            group["lr"] = module.rate * min(done / 0.1 + 0.01, 1.0) * (1 - done) + 1e-5
        loss = F.cross_entropy(module(batch), known[chosen], label_smoothing=0.05)
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        optimiser.step()
        done = (time.process_time() - begun) / cpu_s
    return _judged(module, images[:VALIDATION], labels[:VALIDATION])[0]


def test(module: nn.Module) -> float:
    """Returns the accuracy on the test images, which :func:`train` never reads."""
    return _judged(module, *_images("t10k"))[1]


@torch.no_grad()
def _judged(module: nn.Module, images: Tensor, labels: Tensor) -> tuple[float, float]:
    """Returns cross-entropy and accuracy on ``images``."""
    module.eval()
    logits = torch.cat([module(part) for part in images.split(CHUNK)])
    return float(F.cross_entropy(logits, labels)), float((logits.argmax(1) == labels).float().mean())


@lru_cache(maxsize=2)
def _images(part: str) -> tuple[Tensor, Tensor]:
    """Images (n, 1, 28, 28) with mean 0 and variance 1, and labels (n,)."""
    pixels = np.frombuffer(gzip.decompress((IMAGES / f"{part}-images-idx3-ubyte.gz").read_bytes()), np.uint8, offset=16)
    labels = np.frombuffer(gzip.decompress((IMAGES / f"{part}-labels-idx1-ubyte.gz").read_bytes()), np.uint8, offset=8)
    images = torch.from_numpy(pixels.astype(np.float32)).view(-1, 1, 28, 28)
    return (images - 72.9) / 90.0, torch.from_numpy(labels.astype(np.int64))
