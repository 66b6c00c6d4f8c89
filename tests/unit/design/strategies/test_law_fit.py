"""A law refitted: the constants of made-up trainings are found again, and one training fixes the level."""

import math
from dataclasses import replace

import numpy as np
import pytest

from chipwise.errors import SpecError
from chipwise.training.laws.law_fit import Errors, LawTrainings, read_trainings, updated
from chipwise.training.laws.laws import CONSTANTS, shipped
from chipwise.training.laws.shapes import Shapes


def made(law, count: int, *, level: float = 0.0, seed: int = 0) -> LawTrainings:
    rng = np.random.default_rng(seed)
    depth, width = rng.integers(4, 60, count).astype(float), 64.0 * rng.integers(4, 32, count)
    layers = 15 * depth * width**2
    shapes = Shapes(least=layers, most=layers, width=width, depth=depth)
    tokens = np.exp(rng.uniform(math.log(1e10), math.log(3e11), count))
    nats = law.nats_per_token(shapes, tokens) * np.exp(level + 0.002 * rng.standard_normal(count))
    return LawTrainings(shapes=shapes, tokens=tokens, nats_per_token=nats)


def test_one_training_fixes_the_level_and_leaves_the_rest() -> None:
    law, one = shipped(), made(shipped(), 1, level=-0.1)
    after = updated(law, one, source="one")
    assert after.constants[0] - law.constants[0] == pytest.approx(-0.1, abs=0.01)
    assert math.sqrt(after.covariance[0, 0]) < 0.6 * math.sqrt(law.covariance[0, 0])
    shape = Shapes(least=3e8, most=3e8, width=1024, depth=20)
    before, now = law.loss(shape, 1e11), after.loss(shape, 1e11)
    assert now.high / now.low < 1 + (before.high / before.low - 1) / 3
    assert law.difference(shape, shape, 1e11) == after.difference(shape, shape, 1e11)


def test_many_trainings_of_another_law_are_learnt() -> None:
    law = shipped()
    other = replace(
        law, constants=law.constants + 0.7 * np.sqrt(np.diag(law.covariance)) * (-1) ** np.arange(len(CONSTANTS))
    )
    held = updated(law, made(other, 60), source="sixty")
    unseen = made(other, 20, seed=1)
    off = np.log(held.nats_per_token(unseen.shapes, unseen.tokens) / unseen.nats_per_token)
    was = np.log(law.nats_per_token(unseen.shapes, unseen.tokens) / unseen.nats_per_token)
    assert np.abs(off).max() < 0.01 < 0.3 * np.abs(was).max()
    _, low, high = held.expect(unseen.shapes, unseen.tokens)
    assert ((low < unseen.nats_per_token) & (unseen.nats_per_token < high)).mean() >= 0.85


def test_checkpoints_of_one_training_are_not_many_trainings() -> None:
    law = shipped()
    shape = Shapes(least=np.full(50, 3e8), most=np.full(50, 3e8), width=np.full(50, 1024.0), depth=np.full(50, 20.0))
    same = LawTrainings(shapes=shape, tokens=np.full(50, 1e11), nats_per_token=law.nats_per_token(shape, 1e11))
    many = made(law, 50)
    spreads = [math.sqrt(updated(law, trainings, source="x").covariance[0, 0]) for trainings in (same, many)]
    assert spreads[1] < spreads[0]
    floor = law.scatter  # however many checkpoints, the shape's own error stays
    change = law.sensitivities(shape, 1e11)[0]
    after = updated(law, same, source="x").covariance
    assert math.sqrt(change @ after @ change) > 0.9 * floor


def test_a_table_of_trainings(tmp_path) -> None:
    path = tmp_path / "runs.csv"
    path.write_text(
        "width,depth,parameters,tokens,loss_nats,bits_per_byte,bytes_per_token\n"
        "1024,28,543482880,350G,2.7034,,\n512,12,98710016,20G,,0.95,4.5\n"
    )
    held = read_trainings(path)
    assert len(held) == 2
    assert held.tokens.tolist() == [350e9, 20e9]
    assert held.shapes.columns()[:4, 0] == pytest.approx([543482880 - 2 * 50_304 * 1024] * 2 + [1024, 28])
    assert held.nats_per_token[1] == pytest.approx(0.95 * 4.5 * math.log(2))


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("1024,28,1000,1T,2.7", "parameters"),
        ("1024,28,5e8,lots,2.7", "row 2"),
        ("1024,0,5e8,1T,2.7", "depth"),
        ("1024,28,5e8,1T,nan", "loss_nats"),
    ],
)
def test_a_bad_row_is_named(tmp_path, line, message) -> None:
    path = tmp_path / "runs.csv"
    path.write_text(f"width,depth,parameters,tokens,loss_nats\n{line}\n")
    with pytest.raises(SpecError, match=message):
        read_trainings(path)


def test_known_models_name_their_shapes(tmp_path) -> None:
    path = tmp_path / "runs.csv"
    path.write_text("model,tokens,loss_nats\ngpt2,300G,3.0\n")
    held = read_trainings(path)
    assert held.shapes.columns()[2:4, 0].tolist() == [768, 12]
    assert CONSTANTS[0] == "level"


def test_errors_are_inverted_as_the_whole_matrix_is() -> None:
    errors = Errors(member=np.eye(3)[[0, 0, 1, 2, 2, 2]], scatter=0.4, noise=0.3)
    whole = 0.16 * errors.member @ errors.member.T + 0.09 * np.eye(6)
    right = np.arange(12.0).reshape(6, 2)
    assert errors.solve(right) == pytest.approx(np.linalg.solve(whole, right))


def test_at_the_most_probable_constants_belief_and_trainings_pull_alike() -> None:
    """The gradient of the posterior is nothing there, in deviations of each constant."""
    law = shipped()
    trainings = made(replace(law, constants=law.constants + 0.5 * np.sqrt(np.diag(law.covariance))), 30)
    after = updated(law, trainings, source="x")
    change = after.sensitivities(trainings.shapes, trainings.tokens)
    off = np.log(trainings.nats_per_token / after.nats_per_token(trainings.shapes, trainings.tokens))
    pull = change.T @ Errors.of(law, trainings).solve(off)
    belief = np.linalg.solve(law.covariance, after.constants - law.constants)
    assert np.abs((pull - belief) * np.sqrt(np.diag(after.covariance))).max() < 0.05


def test_a_mask_selects_trainings_with_their_shapes() -> None:
    trainings = made(shipped(), 6)
    chosen = np.array([True, False, True, False, False, True])
    kept = trainings.where(chosen)
    assert len(kept) == 3
    assert kept.tokens.tolist() == trainings.tokens[chosen].tolist()
    assert kept.nats_per_token.tolist() == trainings.nats_per_token[chosen].tolist()
    assert kept.shapes.columns().tolist() == trainings.shapes.columns()[:, chosen].tolist()


def test_a_table_states_what_a_model_does_not(tmp_path) -> None:
    """A vocabulary of its own, a share of the feed-forwards and queries a key; else 0.8 of the layers and two."""
    path = tmp_path / "runs.csv"
    path.write_text(
        "width,depth,parameters,tokens,loss_nats,vocab_size,ffn_share,queries_per_kv\n"
        "100,5,1000000,1G,3,1000,,\n100,5,1000000,1G,3,1000,9,4\n"
    )
    held = read_trainings(path).shapes.columns()
    layers = 1_000_000 - 2 * 100 * 1000
    assert held[:, 0] == pytest.approx([layers, layers, 100, 5, 0.8 * layers / (5 * 100**2), 2, 1, 16])
    assert held[:, 1] == pytest.approx([layers, layers, 100, 5, 9, 4, 1, 16])


def test_a_model_without_parameters_for_its_layers_is_refused(tmp_path) -> None:
    path = tmp_path / "runs.csv"
    path.write_text(
        "width,depth,parameters,tokens,loss_nats,vocab_size\n100,5,200001,1G,3,1000\n100,5,200000,1G,3,1000\n"
    )
    with pytest.raises(SpecError, match=r"row 3: .*too few: embeddings and head of width 100 leave none for layers"):
        read_trainings(path)
