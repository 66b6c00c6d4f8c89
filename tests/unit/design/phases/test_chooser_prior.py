"""The supernet prior: what it is worth before and after trainings, and where it sends the search."""

from __future__ import annotations

import numpy as np
import pytest
from toy_run import SPACE, make_chooser

from chipwise.design.phases.choosing import Observation
from chipwise.design.phases.supernet_prior import TRUST, WEIGHT, SupernetPrior
from chipwise.design.strategies.encoding import Encoder
from chipwise.design.strategies.quality_model import QualityModel


def depth(rows) -> np.ndarray:
    return SPACE.values(rows, "depth").astype(float)


@pytest.fixture(scope="module")
def prior() -> tuple[SupernetPrior, np.ndarray]:
    chooser = make_chooser()
    rows = chooser.spread(200, 60)[1]
    residuals = 0.1 * depth(rows)
    return SupernetPrior(chooser.problem, Encoder(chooser.problem, seed=0), rows, residuals, seed=0), rows


def test_the_word_is_read_between_the_rows_that_were_scored(prior) -> None:
    said, rows = prior
    others = make_chooser().pool
    centre = 0.1 * depth(rows).mean()
    np.testing.assert_allclose(said(others), 0.1 * depth(others) - centre, atol=0.02)


def test_trust_begins_as_stated_and_follows_trainings(prior) -> None:
    """With x the prior and y what trainings gave, both less their means: (x·y + b t) / (x·x + b)."""
    said, rows = prior
    seen = rows[:20]
    x = said(seen) - said(seen).mean()
    belief = WEIGHT * (0.1 * depth(rows)).var()
    for slope in (1.0, 0.0, -3.0):
        expected = max(0.0, (slope * (x @ x) + belief * TRUST) / (x @ x + belief))
        assert said.trust(seen, slope * said(seen) + 0.7) == pytest.approx(expected, rel=1e-6)
    assert said.trust(seen[:0], []) == pytest.approx(TRUST)


def test_a_word_that_says_nothing_is_not_trusted() -> None:
    chooser = make_chooser()
    rows = chooser.pool[:30]
    flat = SupernetPrior(chooser.problem, Encoder(chooser.problem, seed=0), rows, np.full(30, 0.3), seed=0)
    assert flat.trust(rows, depth(rows)) == 0.0
    np.testing.assert_allclose(flat(chooser.pool), 0.0, atol=1e-6)


def test_first_trainings_go_where_shared_weights_say_and_beliefs_follow_them() -> None:
    plain, told = make_chooser(), make_chooser()
    rows = told.spread(200, 60)[1]
    told.set_supernet_prior(rows, told.law(rows) * np.exp(0.5 * depth(rows)))
    first = told.next(30, [], [])
    assert depth(first).mean() < depth(plain.next(30, [], [])).mean()
    trained = [
        Observation(row=row.tolist(), spent=9.0, tokens=9000, loss=float(np.exp(0.5 * depth(row[None]))[0]))
        for row in told.pool[[0, 20, 40]]
    ]
    ask = told.pool
    believed, _ = told.expected(trained, ask)
    flat, _ = plain.expected(trained, ask)
    truth = np.exp(0.5 * depth(ask))
    assert np.corrcoef(believed, truth)[0, 1] > np.corrcoef(flat, truth)[0, 1]


def test_a_proxy_run_takes_what_the_law_prefers_and_no_training_changes_that() -> None:
    own = make_chooser()
    first = own.propose_by_law(3, [], [])
    best = own.pool[np.argmin(own.law(own.pool))]
    assert first[0].tolist() == best.tolist()
    bad = [Observation(row=row.tolist(), spent=9.0, tokens=9000, loss=9.0) for row in first]
    taken = [row.tolist() for row in first]
    second = own.propose_by_law(3, bad, taken)
    assert second.tolist() == own.propose_by_law(3, [], taken).tolist()
    assert not {tuple(row) for row in second.tolist()} & {tuple(row) for row in taken}


def test_scores_are_asked_of_designs_that_were_trained_half_of_them_the_hopeful() -> None:
    chooser = make_chooser()
    trained, scored = chooser.spread(40, 10)
    assert {tuple(row) for row in scored.tolist()} <= {tuple(row) for row in trained.tolist()}
    assert len({tuple(row) for row in scored.tolist()}) == 10
    best = np.sort(chooser.law(trained))[:5]
    np.testing.assert_allclose(np.sort(chooser.law(scored))[:5], best)


def test_the_same_trainings_are_learnt_once_and_others_anew(monkeypatch) -> None:
    chooser, fits = make_chooser(), []
    fit = QualityModel.fit
    monkeypatch.setattr(QualityModel, "fit", lambda self, *a, **k: fits.append(1) or fit(self, *a, **k))
    trained = [
        Observation(row=row.tolist(), spent=9.0, tokens=9000, loss=2.0 - i / 10)
        for i, row in enumerate(chooser.pool[[0, 20, 40]])
    ]
    ask = chooser.pool[:5]
    first = chooser.expected(trained, ask)
    np.testing.assert_array_equal(chooser.expected(list(trained), ask), first)
    assert len(fits) == 1
    chooser.expected(trained[:2], ask)
    np.testing.assert_array_equal(chooser.expected(trained, ask), first)
    assert len(fits) == 3
