"""The law fitted to tables of trainings: made-up constants are found again, and left-out shapes set the interval."""

import csv
import gzip
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from chipwise.errors import InputError
from chipwise.training.laws.law_fit import LawTrainings
from chipwise.training.laws.laws import CONSTANTS, shipped
from chipwise.training.laws.shapes import Shapes
from chipwise_fitting.law import CHECKPOINTS, fit_law, for_any_text, read, shape_numbers, thinned

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
