"""The law fitted to tables of trainings: made-up constants are found again, and left-out shapes set the interval."""

import csv
import gzip
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from chipwise.errors import InputError
from chipwise.training.laws.law_fit import Errors, LawTrainings, updated
from chipwise.training.laws.laws import CONSTANTS, shipped
from chipwise.training.laws.shapes import Shapes
from chipwise_fitting.law import (
    CHECKPOINTS,
    NOISES,
    SCATTERS,
    calibrated,
    fit_law,
    fitted,
    for_any_text,
    likelihood,
    log_determinant,
    read,
    shape_numbers,
    thinned,
)

SHAPES = [(256, 20), (256, 60), (512, 6), (512, 16), (1024, 4), (1024, 12), (1024, 40), (2048, 8), (2048, 24)]


def truth():
    law = shipped()
    return replace(law, constants=law.constants * np.where(np.arange(len(CONSTANTS)) == 0, 0, 1))


def table(folder: Path, *, scatter: float, seed: int = 0, checkpoints: int = 60) -> None:
    rng = np.random.default_rng(seed)
    with gzip.open(folder / "made.csv.gz", "wt", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(("width", "depth", "parameters", "tokens", "loss_nats"))
        for width, depth in SHAPES:
            parameters = 15 * depth * width**2 + 2 * 50_304 * width
            own = scatter * rng.standard_normal()
            for tokens in np.linspace(2e9, 300e9, checkpoints):
                shape = Shapes(least=15 * depth * width**2, most=15 * depth * width**2, width=width, depth=depth)
                nats = truth().nats_per_token(shape, tokens)[0] * np.exp(own + 0.001 * rng.standard_normal())
                writer.writerow((width, depth, parameters, tokens, nats))


def test_thinned_trainings_keep_every_shape_and_its_last(tmp_path) -> None:
    table(tmp_path, scatter=0)
    whole, few = read(tmp_path), thinned(read(tmp_path))
    assert len(whole) == 60 * len(SHAPES)
    counts = np.bincount(shape_numbers(few))
    assert len(counts) == len(SHAPES)
    assert counts.max() <= CHECKPOINTS
    assert few.tokens.max() == pytest.approx(300e9)
    assert few.tokens.min() >= 8e9


def test_a_law_is_found_again_where_it_is_true(tmp_path) -> None:
    table(tmp_path, scatter=0)
    few = thinned(read(tmp_path))
    law = fit_law(few)
    numbers = shape_numbers(few)
    for number in range(len(SHAPES)):
        other = fit_law(few.where(numbers != number))
        mine = few.where(numbers == number)
        assert other.nats_per_token(mine.shapes, mine.tokens) == pytest.approx(mine.nats_per_token, rel=0.01)
    assert law.constants[CONSTANTS.index("text_exponent")] == pytest.approx(0.575, abs=0.02)


def test_shapes_that_scatter_more_make_wider_intervals(tmp_path) -> None:
    laws = []
    for scatter in (0.001, 0.02):
        table(tmp_path, scatter=scatter)
        laws.append(fit_law(thinned(read(tmp_path))))
    assert laws[1].scatter > 3 * laws[0].scatter
    assert 0.008 < laws[1].scatter < 0.05


def test_the_level_of_any_text_lies_between_two_labs(tmp_path) -> None:
    table(tmp_path, scatter=0)
    few: LawTrainings = thinned(read(tmp_path))
    law = fit_law(few)
    level = for_any_text(law, few)
    assert level.constants[0] != 0
    assert level.covariance[0, 0] == pytest.approx(4 * level.constants[0] ** 2 * 0.75)  # (2 s)² / 2 · 3/2
    assert level.constants[1:].tolist() == law.constants[1:].tolist()


def test_a_folder_without_trainings_is_refused(tmp_path) -> None:
    with pytest.raises(InputError, match="loss_nats"):
        read(tmp_path)


def test_errors_are_looked_for_in_small_steps() -> None:
    """Scatter and noise are the likeliest of a grid: no value of it is far from the next."""
    for grid in (SCATTERS, NOISES):
        steps = np.array(grid[1:]) / grid[:-1]
        assert (steps > 1).all()
        assert (steps <= 2).all()


def several(law, shapes: int, *, scatter: float, noise: float, seed: int = 0) -> LawTrainings:
    """Five checkpoints of each of so many shapes: an error that they share, and one of each."""
    rng = np.random.default_rng(seed)
    depth, width = rng.integers(4, 60, shapes).astype(float), 64.0 * rng.integers(4, 32, shapes)
    depth, width = np.repeat(depth, 5), np.repeat(width, 5)
    layers = 15 * depth * width**2
    repeated = Shapes(least=layers, most=layers, width=width, depth=depth)
    rng = np.random.default_rng(seed)
    tokens = np.exp(rng.uniform(math.log(1e10), math.log(3e11), 5 * shapes))
    errors = np.repeat(scatter * rng.standard_normal(shapes), 5) + noise * rng.standard_normal(5 * shapes)
    nats = law.nats_per_token(repeated, tokens) * np.exp(errors)
    return LawTrainings(shapes=repeated, tokens=tokens, nats_per_token=nats)


@pytest.mark.parametrize(("scatter", "noise"), [(0.0025, 0.004), (0.01, 0.005)])
def test_a_fit_finds_the_law_and_how_far_shapes_and_trainings_are_off(scatter: float, noise: float) -> None:
    """From a vague prior; the interval holds what it should of shapes that were not seen."""
    law = shipped()
    vague = replace(
        law, constants=law.constants + 0.5 * np.sqrt(np.diag(law.covariance)), covariance=9 * law.covariance
    )
    trainings = several(law, 40, scatter=scatter, noise=noise)
    found = fitted(vague, trainings, source="made up")
    assert found.source == "made up"
    assert found.scatter == pytest.approx(scatter, rel=0.5)
    assert found.noise == pytest.approx(noise, rel=0.5)
    assert found.tokens == (trainings.tokens.min(), trainings.tokens.max())
    assert found.layer_parameters == (trainings.shapes.least.min(), trainings.shapes.most.max())
    unseen = several(law, 60, scatter=scatter, noise=noise, seed=1)
    off = np.log(found.nats_per_token(unseen.shapes, unseen.tokens) / law.nats_per_token(unseen.shapes, unseen.tokens))
    assert np.abs(off).mean() < scatter + noise
    _, low, high = found.expect(unseen.shapes, unseen.tokens)
    inside = (low < unseen.nats_per_token) & (unseen.nats_per_token < high)
    assert 0.8 <= inside.mean() <= 0.99


def test_leaving_a_shape_out_by_hand() -> None:
    """Three shapes of which only the level is unknown: each is foretold by the two others, and misses by so much."""
    law = replace(shipped(), scatter=0.03, noise=0.04)  # together 0.05 a training
    tight = np.diag([1e2] + [1e-16] * (len(CONSTANTS) - 1))
    prior = replace(law, covariance=tight)
    shapes = Shapes(least=np.array([1e8, 4e8, 2e9]), most=np.array([1e8, 4e8, 2e9]), width=1024.0, depth=20.0)
    tokens = np.array([1e11, 1e11, 2e11])
    errors = np.array([0.02, -0.05, 0.09])
    trainings = LawTrainings(
        shapes=shapes, tokens=tokens, nats_per_token=law.nats_per_token(shapes, tokens) * np.exp(errors)
    )
    fit = updated(prior, trainings, source="three")
    found = calibrated(fit, prior, trainings)
    misses = [errors[i] - np.delete(errors, i).mean() for i in range(3)]
    z2 = np.mean(np.square(misses)) / (0.05**2 / 2 + 0.05**2)
    factor = (1 + (1.644854**2 + 1) / 12) * math.sqrt(z2)
    assert found.scatter / law.scatter == pytest.approx(factor, rel=1e-3)
    assert found.noise / law.noise == pytest.approx(factor, rel=1e-3)
    assert fit.covariance[0, 0] == pytest.approx(0.05**2 / 3, rel=1e-3)
    assert found.covariance[0, 0] == pytest.approx(factor**2 * 0.05**2 / 3, rel=1e-3)
    assert found.covariance[3, 3] == pytest.approx(fit.covariance[3, 3], rel=1e-6)  # nothing was learnt of it


def test_the_likelihood_by_hand() -> None:
    """Restricted: -1/2 of misfit, log determinant of the errors, and log determinant of the curvature."""
    errors = Errors(member=np.eye(2)[[0, 0, 1]], scatter=0.4, noise=0.3)
    whole = 0.16 * errors.member @ errors.member.T + 0.09 * np.eye(3)
    off, change, believed = np.array([0.1, -0.3, 0.2]), np.array([[1.0, 0.5], [0.0, 2.0], [1.0, 1.0]]), 3 * np.eye(2)
    curvature = change.T @ np.linalg.solve(whole, change) + believed
    expected = off @ np.linalg.solve(whole, off) + np.linalg.slogdet(whole)[1] + np.linalg.slogdet(curvature)[1]
    assert log_determinant(errors) == pytest.approx(np.linalg.slogdet(whole)[1])
    assert likelihood(errors, off, change, believed) == pytest.approx(-expected / 2)
