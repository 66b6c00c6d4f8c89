"""Training bounded networks, and the errors that a fit reports."""

from __future__ import annotations

import numpy as np
import pytest

from chipwise.predict.kernels.bounded import Network
from chipwise_fitting.report import conformal, errors


def test_errors_by_pencil() -> None:
    found = errors([1.0, 2.0, 4.0], [1.1, 1.0, 4.0])
    assert found["mape"] == pytest.approx(100 * (0.1 + 0.5 + 0.0) / 3)
    assert found["median"] == pytest.approx(10)
    assert found["bias"] == pytest.approx(0)


def test_nine_of_ten_truths_lie_within_the_conformal_width() -> None:
    misses = np.random.default_rng(1).normal(size=2000) * 0.3
    width = conformal(np.exp(misses), np.ones(2000))
    assert np.mean(np.abs(misses) <= width) == pytest.approx(0.9, abs=0.002)


def test_training_finds_a_function_and_keeps_its_bound() -> None:
    pytest.importorskip("torch")
    from chipwise_fitting.bounded_training import train

    random = np.random.default_rng(2)
    inputs = np.column_stack([random.uniform(-1, 1, 4000), random.integers(0, 2, 4000)]).astype(np.float32)
    targets = 0.3 * inputs[:, 0] + 0.2 * inputs[:, 1]
    model = train(inputs, targets, identity=slice(1, 2), bound=1.0, seed=0, epochs=60, forget=0.0)
    assert np.abs(model(inputs) - targets).mean() < 0.02
    assert np.all(np.abs(model(inputs * 100)) <= 1.0)


def test_networks_trained_side_by_side_answer_as_one_with_the_mean_of_their_sums() -> None:
    from chipwise_fitting.bounded_training import _joined

    random = np.random.default_rng(3)
    shapes = ((4, 5), (6, 5), (6, 1))  # three inputs, five hidden, each with a row of biases
    members = [[random.normal(size=shape).astype(np.float32) for shape in shapes] for _ in range(2)]
    x = random.normal(size=(7, 3)).astype(np.float32)
    sums = []
    for first, second, third in members:
        hidden = np.tanh(np.tanh(x @ first[:-1] + first[-1]) @ second[:-1] + second[-1])
        sums.append((hidden @ third[:-1] + third[-1])[:, 0])
    one, two, three = _joined(members)
    ones, wide = np.ones(3, dtype=np.float32), np.full(3, 99, dtype=np.float32)
    joined = Network(mean=0 * ones, scale=ones, first=one, second=two, third=three, low=-wide, high=wide, bound=2.0)
    assert joined(x) == pytest.approx(2 * np.tanh(np.mean(sums, axis=0)), rel=1e-4)


def test_every_device_weighs_the_same_in_a_conformal_width() -> None:
    # 98 rows of one device are exact, two of another are off by a half: with rows alone they would not count.
    truth, devices = np.exp([0.0] * 98 + [0.5, 0.5]), ["a"] * 98 + ["b"] * 2
    assert conformal(truth, np.ones(100)) == 0
    assert conformal(truth, np.ones(100), devices=devices) == pytest.approx(0.5)
