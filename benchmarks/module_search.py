"""A search over a user's networks against random search and a hand-drawn MobileNet, with equal CPU time.

    python benchmarks/module_search.py --room FOLDER --seeds 0 1 2 --cpu 120 --out benchmarks/module-search-DATE.csv
    python benchmarks/module_search.py --room FOLDER --times    # all files in alternating rounds, CPU time of a thread

The networks are those of ``chipwise init convnet`` (Fashion-MNIST; Debian's dataset-fashion-mnist). ``search`` is
``chipwise.search_module``. ``random`` draws networks, times each, trains the first four within the limit for a
thirteenth of the budget each, and the best of them anew for the rest. ``mobilenet`` is a MobileNetV2 drawn by hand for
28 x 28 pixels and 60 µs, the only one of ten drawings that kept the limit when they were timed; it is trained for the
whole budget. All use the example's training. On a busy machine times of rows differ by more than networks do; compare
those of ``--times``.
"""

from __future__ import annotations

import argparse
import json
import time
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import nn

import chipwise
import resumable_rows
from chipwise.deploy.graphs.sessions import clock_for, opened
from chipwise.design.modules.evaluating import finish_row, latency_of, parameters_of, price_row, train_row
from chipwise.design.modules.user_module import read_module

EXAMPLE = Path(chipwise.__file__).parent / "cli" / "examples" / "convnet.py"
LIMIT_S = 60e-6
FIRST, PARTS = 4, 13  # networks that random search trains first, for this part of the budget each
ROUNDS = 200
COLUMNS = (
    "method", "seed", "cpu_s", "accuracy", "loss", "promised_us", "low_us", "high_us", "measured_us", "parameters",
    "network",
)  # fmt: skip


class Inverted(nn.Module):
    """MobileNetV2's block: expansion, depthwise convolution, projection."""

    def __init__(self, inner: int, outer: int, stride: int, times: int) -> None:
        super().__init__()
        wide = times * inner
        layers = [*_conv(inner, wide, 1), nn.ReLU()] if times > 1 else []
        layers += [*_conv(wide, wide, 3, stride, wide), nn.ReLU(), *_conv(wide, outer, 1)]
        self.layers, self.residual = nn.Sequential(*layers), stride == 1 and inner == outer

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Feature maps (B, C, Y, X) after the block."""
        new: torch.Tensor = self.layers(x)
        return x + new if self.residual else new


def _conv(inner: int, outer: int, kernel: int, stride: int = 1, groups: int = 1) -> list[nn.Module]:
    convolution = nn.Conv2d(inner, outer, kernel, stride, kernel // 2, groups=groups, bias=False)
    return [convolution, nn.BatchNorm2d(outer)]


def mobilenet() -> nn.Module:
    """Stem of 16 channels at half the size, stages of 16, 24 and 32 channels, a head of 96."""
    layers: list[nn.Module] = [*_conv(1, 16, 3, 2), nn.ReLU(), Inverted(16, 16, 1, 1)]
    layers += [Inverted(16, 24, 2, 4), Inverted(24, 24, 1, 4), Inverted(24, 32, 2, 4), *_conv(32, 96, 1), nn.ReLU()]
    module = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(96, 10))
    module.rate = 0.006
    return module


def by_search(room: Path, seed: int, cpu_s: float) -> dict[str, object]:
    """The search of chipwise."""
    limit = f"<= {1e6 * LIMIT_S:.0f} us"
    found = chipwise.search_module(EXAMPLE, latency=limit, cpu=f"{cpu_s:g} s", out=room, seed=seed)
    promised = found.promised["ttft_p50"]
    return {
        "accuracy": found.test, "loss": found.loss, "promised": promised.value, "low": promised.low,
        "high": promised.high, "measured": found.measured["ttft_p50"], "parameters": found.measured["parameters"],
        "network": json.dumps(found.choices), "spent": sum(found.spent_s.values()),
    }  # fmt: skip


def by_chance(room: Path, seed: int, cpu_s: float) -> dict[str, object]:
    """Random search: the best of the first four within the limit."""
    begun, user, random = time.process_time(), read_module(EXAMPLE), np.random.default_rng(seed)
    torch.set_num_threads(1)
    room.mkdir(parents=True, exist_ok=True)
    price = partial(price_row, file=str(EXAMPLE), folder=str(room), seed=seed)
    tried: list[tuple[float, np.ndarray]] = []
    while len(tried) < FIRST:
        row = np.array([random.integers(count) for count in user.cardinalities])
        if price(row).objectives[0] <= LIMIT_S:
            first = train_row(row, file=str(EXAMPLE), cpu_s=cpu_s / PARTS, seed=seed, folder=str(room))
            tried.append((first.objectives[0], row))
    row = min(tried, key=lambda each: each[0])[1]
    left_s = cpu_s - (time.process_time() - begun)
    last = finish_row(row, file=str(EXAMPLE), cpu_s=left_s, seed=seed, folder=str(room), started=str(room / "none"))
    loss, p50, _, parameters, accuracy = last.objectives
    return {
        "accuracy": accuracy, "loss": loss, "measured": p50, "parameters": parameters,
        "network": json.dumps(user.chosen(row)), "spent": time.process_time() - begun,
    }  # fmt: skip


def by_hand(room: Path, seed: int, cpu_s: float) -> dict[str, object]:
    """The MobileNet, trained for the whole budget."""
    user, begun = read_module(EXAMPLE), time.process_time()
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    module = mobilenet()
    loss = user.train(module, cpu_s)
    assert user.test is not None
    (room / "winner").mkdir(parents=True, exist_ok=True)
    spent = time.process_time() - begun
    latency = latency_of(user, module, room / "model.onnx", keep=True)
    return {
        "accuracy": user.test(module), "loss": loss, "measured": latency.p50, "parameters": parameters_of(module),
        "network": "MobileNetV2, 16-24-32", "spent": spent,
    }  # fmt: skip


def together(room: Path) -> None:
    """Prints the median time of each run's file, in alternating rounds."""
    files = sorted([*room.glob("*/winner/model.onnx"), *room.glob("*/model.onnx")])
    sessions = {file: opened(file, threads=1) for file in files}
    feed = {"input": np.zeros((1, 1, 28, 28), np.float32)}
    clock, seconds = clock_for(1), {file: list[float]() for file in files}
    for _ in range(ROUNDS):
        for file, session in sessions.items():
            session.run(None, feed)
            begun = clock()
            session.run(None, feed)
            seconds[file].append(clock() - begun)
    for file in files:
        print(f"{1e6 * float(np.median(seconds[file])):6.1f} us  {file.relative_to(room)}")


METHODS = {"search": by_search, "random": by_chance, "mobilenet": by_hand}


def main() -> None:
    """Adds the rows that are missing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--room", type=Path, required=True, help="folder of runs")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=METHODS)
    parser.add_argument("--cpu", type=float, default=120.0, help="CPU seconds for each run")
    parser.add_argument("--times", action="store_true", help="time the files of all runs, and nothing else")
    parser.add_argument("--out", type=Path, default=Path("module-search.csv"))
    options = parser.parse_args()
    if options.times:
        together(options.room)
        return
    rows = resumable_rows.read(options.out)
    known = {(row["method"], row["seed"]) for row in rows}
    for seed in options.seeds:
        for method in options.methods:
            if (method, str(seed)) in known:
                continue
            found = METHODS[method](options.room / f"{method}-{seed}", seed, options.cpu)
            micro = {
                f"{name}_us": f"{1e6 * float(str(found[name])):.1f}"
                for name in ("promised", "low", "high", "measured")
                if name in found
            }
            row = dict.fromkeys(COLUMNS, "") | micro | {"method": method, "seed": str(seed)}
            row |= {"cpu_s": f"{float(str(found['spent'])):.0f}", "accuracy": f"{float(str(found['accuracy'])):.4f}"}
            row |= {"loss": f"{float(str(found['loss'])):.4f}", "parameters": f"{float(str(found['parameters'])):.0f}"}
            resumable_rows.add(rows, row | {"network": str(found["network"])}, options.out, COLUMNS)


if __name__ == "__main__":
    main()
