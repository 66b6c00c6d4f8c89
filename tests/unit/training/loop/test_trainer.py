import dataclasses
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from chipwise.errors import InputError, SpecError, TrainingDiverged
from chipwise.model.arch.arch import ArchSpec
from chipwise.training.data.recipe import Recipe
from chipwise.training.data.tokens import TokenData, windows_of
from chipwise.training.loop import trainer
from chipwise.training.loop.evaluate import load_model
from chipwise.training.loop.trainer import TrainResult, train, trained_again

RECIPE = Recipe(window_tokens=24, batch_windows=4, warmup_steps=5)
Clock = Callable[[], float]


class KilledError(Exception):
    pass


def run(arch: ArchSpec, data: TokenData, folder: Path, clock: Clock, budget: float = 0.5, **more) -> TrainResult:
    more = {"recipe": RECIPE, "seed": 1, **more}
    return train(arch, data, cpu_budget_s=budget, folder=folder, clock=clock, **more)


def test_a_budget_of_half_a_second_is_32_steps_of_a_64th(
    arch: ArchSpec, data: TokenData, tmp_path: Path, clock: Clock
) -> None:
    result = run(arch, data, tmp_path, clock)
    assert result.steps == 32
    assert result.tokens == 32 * 4 * 24
    assert result.cpu_s == result.spent_cpu_s == 0.5


def test_a_last_step_that_ends_late_is_not_more_than_all_of_the_budget(
    arch: ArchSpec, data: TokenData, tmp_path: Path, clock: Clock
) -> None:
    """A budget of a step and a half: two steps of 1/64 s are made."""
    shares: list[float] = []
    result = run(arch, data, tmp_path, clock, budget=1.5 / 64, on_progress=lambda update: shares.append(update.share))
    assert result.steps == 2
    assert shares == [1.0]


def test_training_learns_and_its_weights_give_the_reported_quality(
    arch: ArchSpec, data: TokenData, tmp_path: Path, clock: Clock
) -> None:
    result = run(arch, data, tmp_path, clock, budget=2.0)
    weights = load_file(result.weights)
    assert sum(value.size for value in weights.values()) == arch.parameters()
    assert all(value.dtype == np.float32 for value in weights.values())
    again = data.quality(load_model(arch, weights))
    assert again.bits_per_byte == pytest.approx(result.loss, rel=5e-3)  # judged in bf16 where that is faster
    untrained = math.log2(300) / data.bytes_per_token  # bits per byte of a guess among all tokens
    assert result.loss < 0.6 * untrained
    assert result.curve[-1][3] == result.loss
    assert [point[0] for point in result.curve] == sorted(point[0] for point in result.curve)


def test_equal_seeds_give_equal_weights(arch: ArchSpec, data: TokenData, tmp_path: Path) -> None:
    def ticking() -> Clock:
        ticks = iter(range(10**6))
        return lambda: next(ticks) / 64

    first, second, other = (
        run(arch, data, tmp_path / str(i), ticking(), budget=0.2, seed=seed) for i, seed in enumerate((1, 1, 2))
    )
    assert first.loss == second.loss
    assert first.loss != other.loss


def test_a_finished_training_is_not_repeated(arch: ArchSpec, data: TokenData, tmp_path: Path, clock: Clock) -> None:
    first = run(arch, data, tmp_path, clock)
    again = run(arch, data, tmp_path, clock)
    assert again == dataclasses.replace(first, spent_cpu_s=0.0)


@pytest.mark.parametrize("damage", [b"", b"not weights", None])
def test_final_weights_that_cannot_be_read_are_trained_again(
    arch: ArchSpec, data: TokenData, tmp_path: Path, clock: Clock, damage: bytes | None
) -> None:
    first = run(arch, data, tmp_path, clock)
    weights, path = load_file(first.weights), Path(first.weights)
    path.write_bytes(path.read_bytes()[:-4] if damage is None else damage)
    again = run(arch, data, tmp_path, clock)
    assert again.loss == first.loss
    assert again.spent_cpu_s == 0.25  # the second half, from the state before the decay
    for name, value in load_file(again.weights).items():
        np.testing.assert_array_equal(value, weights[name])


def test_missing_final_weights_are_restored_by_their_name(
    arch: ArchSpec, data: TokenData, tmp_path: Path, clock: Clock
) -> None:
    path = Path(run(arch, data, tmp_path, clock, precision="fp32").weights)
    weights = load_file(path)
    path.unlink()
    again = trained_again(arch, data, path, seed=1, precision="fp32", recipe=RECIPE, clock=clock)
    assert again == path
    for name, value in load_file(again).items():
        np.testing.assert_array_equal(value, weights[name])
    with pytest.raises(InputError, match="not the name"):
        trained_again(arch, data, tmp_path / "other.safetensors", seed=1)


def test_a_training_that_is_continued_keeps_its_precision(
    arch: ArchSpec, data: TokenData, tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    for measured, budget in (("bf16", 0.5), ("fp32", 1.0)):
        monkeypatch.setattr(trainer, "fastest_precision", lambda measured=measured: measured)
        result = run(arch, data, tmp_path, clock, budget=budget)
        assert result.dtype == "bf16"
    assert result.spent_cpu_s == 1.0 - 16 / 64
    other = run(arch, data, tmp_path, clock, budget=1.0, precision="fp32")
    assert (other.dtype, other.spent_cpu_s) == ("fp32", 1.0)  # another training


def test_a_larger_budget_goes_on_from_the_state_before_the_decay(
    arch: ArchSpec, data: TokenData, tmp_path: Path, clock: Clock
) -> None:
    small = run(arch, data, tmp_path, clock, budget=0.5)
    large = run(arch, data, tmp_path, clock, budget=1.0)
    assert large.cpu_s == 1.0
    assert large.steps == 64
    assert large.spent_cpu_s == 1.0 - 16 / 64  # the small one kept its state when half of its budget was spent
    assert large.loss < small.loss


@pytest.mark.parametrize("stage", [0.4, 0.9])
def test_a_killed_training_goes_on_where_its_last_checkpoint_was(
    arch: ArchSpec, data: TokenData, tmp_path: Path, clock: Clock, stage: float
) -> None:
    def kill(update: trainer.Update) -> None:
        if update.cpu_s >= stage * 3.0:
            raise KilledError

    with pytest.raises(KilledError):
        run(arch, data, tmp_path, clock, budget=3.0, on_progress=kill, checkpoint_every_s=0.5)
    result = run(arch, data, tmp_path, clock, budget=3.0)
    assert result.cpu_s == 3.0
    assert result.steps == 192
    assert result.spent_cpu_s <= 3.0 - stage * 3.0 + 0.6
    assert not list(tmp_path.glob("decay-*"))


def test_resuming_changes_nothing_but_the_waiting(arch: ArchSpec, data: TokenData, tmp_path: Path) -> None:
    def ticking() -> Clock:
        ticks = iter(range(10**6))
        return lambda: next(ticks) / 64

    def kill(update: trainer.Update) -> None:
        raise KilledError

    whole = run(arch, data, tmp_path / "whole", ticking(), budget=1.5)
    with pytest.raises(KilledError):
        run(arch, data, tmp_path / "parts", ticking(), budget=1.5, on_progress=kill, checkpoint_every_s=0.3)
    parts = run(arch, data, tmp_path / "parts", ticking(), budget=1.5)
    assert parts.steps == whole.steps
    assert parts.loss == pytest.approx(whole.loss, rel=1e-3)


@pytest.mark.parametrize("content", [b"", b"not a checkpoint", b"\x10\0\0\0\0\0\0\0{}"])
def test_a_broken_checkpoint_costs_a_restart_not_the_run(
    arch: ArchSpec, data: TokenData, tmp_path: Path, clock: Clock, content: bytes
) -> None:
    (tmp_path / "stable.safetensors").write_bytes(content)
    assert run(arch, data, tmp_path, clock).steps == 32


def test_the_state_of_another_training_is_not_taken_up(
    arch: ArchSpec, data: TokenData, tmp_path: Path, clock: Clock
) -> None:
    run(arch, data, tmp_path, clock, budget=0.5, seed=1)
    other = run(arch, data, tmp_path, clock, budget=1.0, seed=2)
    assert other.spent_cpu_s == other.cpu_s


def fail_at(monkeypatch: pytest.MonkeyPatch, steps: set[int]) -> None:
    real, calls = TokenData.loss, iter(range(10**6))

    def loss(*args, **kwargs) -> torch.Tensor:
        value = real(*args, **kwargs)
        return value * math.nan if next(calls) in steps else value

    monkeypatch.setattr(TokenData, "loss", loss)


def test_one_divergence_is_survived_at_a_lower_rate(
    arch: ArchSpec, data: TokenData, tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail_at(monkeypatch, {30})
    result = run(arch, data, tmp_path, clock, budget=1.0)
    assert math.isfinite(result.loss)
    assert all(np.isfinite(value).all() for value in load_file(result.weights).values())


def test_a_second_divergence_is_reported_with_its_step(
    arch: ArchSpec, data: TokenData, tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail_at(monkeypatch, set(range(12, 10**4)))
    with pytest.raises(TrainingDiverged, match=r"step \d+.*lower the recipe's rates"):
        run(arch, data, tmp_path, clock, budget=1.0)


def test_impossible_requests_are_refused(arch: ArchSpec, data: TokenData, tmp_path: Path, clock: Clock) -> None:
    for budget in (0.0, -1.0, math.inf, math.nan):
        with pytest.raises(InputError, match="budget"):
            run(arch, data, tmp_path, clock, budget=budget)
    with pytest.raises(InputError, match="301 tokens"):
        run(arch.of_vocabulary(301), data, tmp_path, clock)
    with pytest.raises(SpecError, match="decay_share"):
        Recipe(decay_share=0.0)


def test_every_epoch_shows_each_window_once() -> None:
    tokens = np.arange(1000, dtype=np.uint16)
    windows = (1000 - 1) // 10 - 1
    starts = [int(windows_of(tokens, 10, 1, step, 0)[0][0, 0]) for step in range(windows)]
    assert len(set(starts)) == windows
    assert {start % 10 for start in starts} == {starts[0] % 10}
    inputs, targets = windows_of(tokens, 10, 4, 3, 0)
    assert torch.equal(inputs + 1, targets)  # in this stream each token is followed by the next number
    assert torch.equal(inputs, windows_of(tokens, 10, 4, 3, 0)[0])


def test_a_disturbed_step_is_charged_like_an_undisturbed_one(arch: ArchSpec, data: TokenData, tmp_path: Path) -> None:
    def disturbed(look: int) -> float:
        step = (look + 1) // 2  # a step lies between looks 2n and 2n + 1; every seventh is held up for half a second
        return look / 64 + step // 7 * 0.5

    looks = iter(range(10**6))
    result = run(arch, data, tmp_path, lambda: disturbed(next(looks)), budget=1.0)
    assert result.steps == 64
    assert result.spent_cpu_s > 4.0


def test_rates_hold_at_one_width_and_fall_by_the_root_of_wider() -> None:
    recipe = Recipe(matrix_rate=0.01, table_rate=0.024, rate_width=128)
    assert recipe.rates(128) == (0.01, 0.024)
    assert recipe.rates(32) == pytest.approx((0.02, 0.048))  # √(128 / 32) = 2
    assert recipe.rates(512) == pytest.approx((0.005, 0.012))
    assert dataclasses.replace(recipe, rate_width=None).rates(512) == (0.01, 0.024)
