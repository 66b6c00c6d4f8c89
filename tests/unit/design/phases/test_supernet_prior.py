"""Shared weights of a run: trained in a worker, asked once, and silent about what cannot be cut from them."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from chipwise.design.phases.supernet_prior import (
    FEWEST_SCORED,
    MOST_SCORED,
    SCORING_S,
    Supernet,
    designs_to_score,
    planned_cpu_s,
)
from chipwise.errors import WorkerError
from chipwise.model.arch.arch import uniform
from chipwise.training.data.text import Corpus
from chipwise.training.data.tokenizer import TokenStore
from chipwise.training.tasks.text.data import TextData
from chipwise.training.trainers.local import LocalTrainer
from chipwise.training.trainers.protocol import Setup


@pytest.fixture(scope="module")
def store(tmp_path_factory) -> TokenStore:
    entries = tuple(f"{i}: pass {i % 7} of core {i % 3} takes {i * 7 % 13} steps." for i in range(1500))
    corpus = Corpus(name="toy", train=entries[150:], validation=entries[:150], source="made up", licence="none")
    store = TokenStore(corpus, tmp_path_factory.mktemp("tokens"), [300])
    store.prepare()
    return store


def arch(width: int, ffn: int = 48):
    return uniform(vocab_size=300, d_model=width, depth=1, heads=2, kv_heads=1, ffn_width=ffn)


def weights(folder: Path, store: TokenStore, budget_s: float = 1.0) -> Supernet:
    run = SimpleNamespace(path=folder)
    return Supernet(run, TextData(store), [arch(32), arch(16), arch(32, 32)], budget_s=budget_s, seed=0)


def test_what_is_trained_is_asked_once_and_what_does_not_fit_is_not_known(store, tmp_path) -> None:
    shared, heard, told = weights(tmp_path, store), [], []
    with pytest.raises(WorkerError, match="must be trained before"):
        shared.scores([arch(32)], lambda done, total: None)
    with LocalTrainer(Setup(on="local", folder=tmp_path, workers=1)) as trainer:
        shared.train(trainer, heard.append)
    assert 0 < heard[-1] <= 1.0
    asked = [arch(32), arch(16), arch(48), arch(32)]
    first = shared.scores(asked, lambda done, total: told.append((done, total)))
    assert told == [(1, 3), (2, 3), (3, 3)]
    assert 0 < first[0] == first[3] < 8
    assert math.isnan(first[2])  # wider than the whole
    again = weights(tmp_path, store).scores(asked, lambda done, total: pytest.fail("asked again"))
    np.testing.assert_array_equal(first, again)


def test_a_training_that_fails_says_why(store, tmp_path) -> None:
    with (
        LocalTrainer(Setup(on="local", folder=tmp_path, workers=1)) as trainer,
        pytest.raises(WorkerError, match=r"the supernet failed: .*positive budget"),
    ):
        weights(tmp_path, store, budget_s=-1.0).train(trainer, lambda update: None)


def test_scores_are_few_where_the_budget_is_small() -> None:
    assert designs_to_score(4.0) == FEWEST_SCORED
    assert designs_to_score(1e6) == MOST_SCORED
    assert planned_cpu_s(100.0) == pytest.approx(100.0 + 80 * SCORING_S)  # a fifth of 100 s holds 80 scores
    assert planned_cpu_s(0.0) == 0.0
