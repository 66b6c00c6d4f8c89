"""What the chooser believes and hands to the acquisition: units, covariances, soft limits."""

from __future__ import annotations

import dataclasses
import functools

import numpy as np
import pytest
from toy_run import SPACE, SPEC, metrics, two_bytes

from chipwise.design.phases import choosing
from chipwise.design.phases.choosing import Chooser, Observation
from chipwise.design.phases.screening import screen
from chipwise.design.strategies.acquisition import expected_improvement

SOFT = dataclasses.replace(SPEC, constraints={"tpot_p99": {"limit": "<= 64 us", "penalty": 0.5}})


def make_chooser(spec=SPEC) -> Chooser:
    screened = screen(SPACE, metrics, spec.limits, seed=0, draws=500)
    return Chooser(
        SPACE,
        screened,
        metrics,
        spec.goals,
        spec.limits,
        final=9.0,
        bytes_per_token=two_bytes,
        seed=0,
    )


def trainings(chooser: Chooser, *, level: float = 2.0) -> list[Observation]:
    """Eight trainings around ``level`` bits per byte, with a trend in width and a scatter of 2 %."""
    rng = np.random.default_rng(1)
    rows = chooser.pool[rng.permutation(len(chooser.pool))[:8]]
    width = SPACE.values(rows, "d_model")
    quality = level * (1 + 8.0 / width) * np.exp(0.02 * rng.standard_normal(8))
    return [Observation(row.tolist(), 9.0, 9_000, float(bits)) for row, bits in zip(rows, quality, strict=True)]


@pytest.mark.parametrize("spec", [SPEC, SOFT], ids=["hard", "soft"])
def test_the_diagonal_of_the_covariance_is_the_variance(spec) -> None:
    """The acquisition subtracts one from the other."""
    chooser = make_chooser(spec)
    index = np.arange(0, len(chooser.pool), 3)
    belief = chooser.belief(trainings(chooser), chooser.pool)
    np.testing.assert_allclose(np.sqrt(np.diag(belief.covariance(index))), belief.std[index], rtol=1e-6)


def test_beliefs_are_the_logarithms_of_what_is_expected() -> None:
    """A deviation s of the logarithm is one of s times the loss."""
    chooser = make_chooser()
    seen = trainings(chooser)
    rows = chooser.pool[:12]
    belief = chooser.belief(seen, rows)
    expected, deviation = chooser.expected(seen, rows)
    np.testing.assert_allclose(np.exp(belief.mean), expected)
    np.testing.assert_allclose(belief.std, deviation / expected)


def test_a_loss_far_above_the_best_promises_little_however_unsure() -> None:
    """Losses of 5 and 0.35, each unsure by a factor of 1.6, against a best of 0.3: as factors one is 5.9 deviations
    away and one 0.3; as normal values of their own, the one was 1.9 away and promised the more."""
    found = expected_improvement(np.log([5.0, 0.35]), np.full(2, np.log(1.6)), np.log(np.array(0.3)))
    assert found[0] < 1e-6 < found[1]


def test_the_acquisition_judges_by_factors(monkeypatch) -> None:
    """Ten times the loss everywhere, trainings included, is the same choice."""
    picks = []
    for level in (1.0, 10.0):
        chooser = make_chooser()
        law = functools.partial(constant, 2.0 * level)
        monkeypatch.setattr(Chooser, "_law", lambda self, seen, law=law: law)
        seen = [Observation(each.row, each.spent, each.tokens, level * each.loss) for each in trainings(chooser)]
        picks.append(chooser.next(4, seen, [item.row for item in seen]).tolist())
    assert picks[0] == picks[1]


def constant(loss: float, rows, tokens=None) -> np.ndarray:
    return np.full(len(rows), loss)


def test_the_acquisition_gets_everything_in_one_unit(monkeypatch) -> None:
    chooser, handed = make_chooser(SOFT), []
    original = choosing.most_informative

    def spy(mean, std, covariance, observed, count, **rest):
        index = np.arange(len(mean))
        handed.append((mean[:, 0], std[:, 0], np.sqrt(np.diag(covariance(index, 0))), observed[:, 0]))
        return original(mean, std, covariance, observed, count, **rest)

    monkeypatch.setattr(choosing, "most_informative", spy)
    seen = trainings(chooser, level=3.0)
    chooser.next(2, seen, [item.row for item in seen])
    ((mean, std, root, front),) = handed
    np.testing.assert_allclose(root, std, rtol=1e-6)
    # 3 bits per byte and more, as they count
    assert mean.min() > np.log(2.5)
    assert front.min() > np.log(2.5)


def test_doubling_bits_per_byte_moves_every_belief_alike() -> None:
    """A unit's scale is no information: what is believed of twice the bits is twice what was believed."""
    once, twice = (
        make_chooser().belief(trainings(make_chooser(), level=level), make_chooser().pool) for level in (1.5, 3.0)
    )
    # the scaling law's floor does not scale exactly, hence the tolerance
    np.testing.assert_allclose(twice.mean - once.mean, np.log(2.0), atol=0.25)
    np.testing.assert_allclose(twice.std, once.std, rtol=0.25)


def test_soft_limits_count_as_factors() -> None:
    """At three times a soft limit of 50 % a bit counts as two; how sure the belief is stays."""
    plain, soft = make_chooser(), make_chooser(SOFT)
    seen = trainings(plain)
    rows = soft.pool
    over = np.maximum(metrics(rows)["tpot_p99"] / 64e-6 - 1, 0)
    mean, std = soft.expected(seen, rows)
    belief = soft.belief(seen, rows)
    np.testing.assert_allclose(np.exp(belief.mean), mean * (1 + 0.5 * over), rtol=1e-9)
    np.testing.assert_allclose(belief.std, std / mean, rtol=1e-9)
    assert over.max() > 1


def bound_by_launches(rows):
    """The same space on another machine: seconds follow depth and feed-forwards alone; counts and limits as before."""
    seconds = 1e-6 * (SPACE.values(rows, "depth") + 5.0 * (rows.sum(axis=1) % 3))
    return {name: seconds if name.startswith(("ttft", "tpot")) else value for name, value in metrics(rows).items()}


def test_what_was_timed_does_not_move_proposals_that_no_time_decides() -> None:
    """Limits that all candidates keep and objectives that are counted: any machine proposes the same."""
    spec = dataclasses.replace(
        SPEC,
        constraints={"tpot_p99": {"limit": "<= 1 s", "penalty": 0.1}, "ttft_p99": "<= 1 s"},
        objectives={"bits_per_byte": "minimize", "parameters": "minimize"},
    )

    def batches(of) -> list[list[list[int]]]:
        screened = screen(SPACE, of, spec.limits, seed=0, draws=500)
        chooser = Chooser(
            SPACE,
            screened,
            of,
            spec.goals,
            spec.limits,
            final=9.0,
            bytes_per_token=two_bytes,
            seed=0,
        )
        seen = trainings(make_chooser(spec))
        return [chooser.next(3, seen[:count], [item.row for item in seen[:count]]).tolist() for count in (0, 4, 8)]

    assert batches(bound_by_launches) == batches(metrics)
