import dataclasses
import json
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file

from chipwise.errors import InputError, SpecError, TrainingDiverged
from chipwise.model.arch.arch import ArchSpec, uniform
from chipwise.model.arch.feed_forward import FeedForward
from chipwise.model.arch.layer import Layer
from chipwise.model.arch.mixers import Attention
from chipwise.model.walk.module import build
from chipwise.training.data.tokens import TokenData
from chipwise.training.loop.evaluate import load_model
from chipwise.training.loop.progress import Update
from chipwise.training.loop.trainer import train
from chipwise.training.loop.worker import read_job, training_pool
from chipwise.training.supernet import trainer as shared
from chipwise.training.supernet.job import SupernetJob
from chipwise.training.supernet.score import score
from chipwise.training.supernet.sliced import add_gradients, extract, part_of, with_weights
from chipwise.training.supernet.trainer import SupernetRecipe, SupernetResult, train_supernet
from chipwise.training.supernet.whole import whole_of

RECIPE = SupernetRecipe(window_tokens=24, batch_windows=4, warmup_steps=5)
Clock = Callable[[], float]


class KilledError(Exception):
    pass


def ticking() -> Clock:
    ticks = iter(range(10**6))
    return lambda: next(ticks) / 16


@pytest.fixture
def clock() -> Clock:
    """Each look at the clock is 1/16 s after the one before: so long takes a step."""
    return ticking()


def small(d: int, depth: int, *, heads: int = 2, kv_heads: int = 1, width: int = 48, **more) -> ArchSpec:
    return uniform(
        vocab_size=300, d_model=d, depth=depth, heads=heads, kv_heads=kv_heads, head_size=16, ffn_width=width, **more
    )


@pytest.fixture(scope="session")
def designs() -> list[ArchSpec]:
    return [small(32, 2), small(16, 1, heads=1, gated=False), small(24, 2, heads=4, kv_heads=2, width=32)]


def run(designs, data: TokenData, folder: Path, clock: Clock, budget: float = 1.0, **more) -> SupernetResult:
    more = {"recipe": RECIPE, "seed": 1, **more}
    return train_supernet(designs, {300: data}, cpu_budget_s=budget, folder=folder, clock=clock, **more)


def test_the_whole_is_as_large_as_its_largest_parts(designs: list[ArchSpec]) -> None:
    whole = whole_of(designs)
    assert (whole.d_model, len(whole.layers), whole.vocab_size) == (32, 2, 300)
    assert whole.layers[0].attention == Attention(heads=4, kv_heads=2, head_size=16)
    assert whole.layers[1].ffn == FeedForward(width=48, gated=True)
    odd = Layer(attention=Attention(heads=3, kv_heads=3, head_size=16), ffn=None)
    both = whole_of([designs[2], dataclasses.replace(designs[0], layers=(odd,))])
    assert both.layers[0].attention == Attention(heads=6, kv_heads=3, head_size=16)  # the least multiple of 3 from 4
    with pytest.raises(InputError, match="at least one design"):
        whole_of([])
    with pytest.raises(InputError, match="agree in norm"):
        whole_of([designs[0], dataclasses.replace(designs[0], norm="layernorm")])


def test_gradients_of_parts_are_those_of_autograd(designs: list[ArchSpec]) -> None:
    whole = whole_of(designs)
    tokens = torch.randint(0, 300, (2, 9), generator=torch.Generator().manual_seed(0))
    for arch in designs:
        weights = {name: p.detach().double() for name, p in build(whole, seed=0).named_parameters()}
        leaves = {name: value.clone().requires_grad_() for name, value in weights.items()}
        with_weights(arch, part_of(arch, whole, leaves), lambda model: model(tokens)[0].pow(2).sum()).backward()
        parts = {name: part.detach().requires_grad_() for name, part in part_of(arch, whole, weights).items()}
        with_weights(arch, parts, lambda model: model(tokens)[0].pow(2).sum()).backward()
        found = {name: torch.zeros_like(value) for name, value in weights.items()}
        add_gradients(arch, whole, parts, found)
        for name, leaf in leaves.items():
            expected = torch.zeros_like(leaf) if leaf.grad is None else leaf.grad
            torch.testing.assert_close(found[name], expected)


def test_training_makes_every_part_better_and_scores_are_those_of_the_extracted_models(
    designs: list[ArchSpec], data: TokenData, tmp_path: Path, clock: Clock
) -> None:
    result = run(designs, data, tmp_path, clock, budget=3.0)
    assert 48 <= result.steps <= 72  # 3 s of steps of 1/16 s, charged by their work and never more than they took
    assert result.tokens == result.steps * 4 * 4 * 24
    weights = load_file(result.weights)
    assert sum(value.size for value in weights.values()) == result.whole.parameters()
    scores = score(result.weights, result.whole, designs, data, dtype=torch.float32)
    untrained = math.log2(300) / data.bytes_per_token
    for arch, bits in zip(designs, scores, strict=True):
        alone = data.quality(load_model(arch, extract(arch, result.whole, weights)))
        assert bits == pytest.approx(alone.bits_per_byte, rel=1e-6)
        assert bits < 0.8 * untrained
    with pytest.raises(InputError, match="no tokenised text for vocabulary sizes"):
        score(weights, result.whole, [designs[0].of_vocabulary(299)], data)


def test_text_is_needed_for_every_vocabulary(
    designs: list[ArchSpec], data: TokenData, tmp_path: Path, clock: Clock
) -> None:
    with pytest.raises(InputError, match=r"no tokenised text for vocabulary sizes \[290\]"):
        run([*designs, designs[0].of_vocabulary(290)], data, tmp_path, clock)


def test_a_larger_budget_goes_on_and_a_finished_one_is_not_repeated(
    designs: list[ArchSpec], data: TokenData, tmp_path: Path, clock: Clock
) -> None:
    one = designs[:1]  # all steps are the same work, so each is charged what it took
    half = run(one, data, tmp_path, clock, budget=0.5)
    assert half.steps == 8
    assert run(one, data, tmp_path, clock, budget=0.5) == dataclasses.replace(half, spent_cpu_s=0.0)
    assert run(one, data, tmp_path, clock, budget=1.0).spent_cpu_s == 1.0 - 4 / 16  # from where the rate began to fall


def test_a_killed_training_ends_with_the_weights_of_one_that_was_not(
    designs: list[ArchSpec], data: TokenData, tmp_path: Path
) -> None:
    def kill(update: Update) -> None:
        raise KilledError

    alike = [designs[0], small(32, 2, activation="relu")]  # equal work, so steps are charged alike after a kill
    whole = run(alike, data, tmp_path / "whole", ticking(), budget=1.5)
    with pytest.raises(KilledError):
        run(alike, data, tmp_path / "parts", ticking(), budget=1.5, on_progress=kill, checkpoint_every_s=0.3)
    parts = run(alike, data, tmp_path / "parts", ticking(), budget=1.5)
    assert parts.spent_cpu_s < whole.spent_cpu_s
    for name, value in load_file(whole.weights).items():
        np.testing.assert_allclose(load_file(parts.weights)[name], value, atol=1e-5)


def test_a_broken_checkpoint_of_the_fall_costs_the_fall_alone(
    designs: list[ArchSpec], data: TokenData, tmp_path: Path, clock: Clock
) -> None:
    def kill(update: Update) -> None:
        if update.cpu_s > 1.7:
            raise KilledError

    with pytest.raises(KilledError):
        run(designs[:1], data, tmp_path, clock, budget=2.0, on_progress=kill, checkpoint_every_s=0.3)
    (branch,) = tmp_path.glob("decay-*")
    branch.write_bytes(branch.read_bytes()[:1000])
    result = run(designs[:1], data, tmp_path, clock, budget=2.0)
    assert result.steps == 32
    assert result.spent_cpu_s == 1.0  # from the state that was kept when half of the budget was spent


def fail_at(monkeypatch: pytest.MonkeyPatch, calls: set[int]) -> None:
    real, count = shared.head_loss, iter(range(10**6))
    monkeypatch.setattr(
        shared, "head_loss", lambda *a, **k: real(*a, **k) * (math.nan if next(count) in calls else 1.0)
    )


def test_one_divergence_is_survived_and_two_are_an_error(
    designs: list[ArchSpec], data: TokenData, tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail_at(monkeypatch, {20})
    result = run(designs, data, tmp_path / "once", clock, budget=1.5)
    assert all(np.isfinite(value).all() for value in load_file(result.weights).values())
    fail_at(monkeypatch, {10, 20})
    with pytest.raises(TrainingDiverged, match="even at half the learning rate"):
        run(designs, data, tmp_path / "twice", clock, budget=2.0)


def test_recipes_that_train_nothing_are_refused() -> None:
    with pytest.raises(SpecError, match="at least 1"):
        SupernetRecipe(designs=0)


def test_training_goes_on_from_given_weights(
    designs: list[ArchSpec], data: TokenData, tmp_path: Path, clock: Clock
) -> None:
    result = run(designs, data, tmp_path / "shared", clock, budget=2.0)
    inherited = {
        name: np.ascontiguousarray(v)
        for name, v in extract(designs[0], result.whole, load_file(result.weights)).items()
    }
    path = tmp_path / "start.safetensors"
    save_file(inherited, path)
    more = {"cpu_budget_s": 0.5, "seed": 1, "recipe": RECIPE, "clock": clock}
    warm = train(designs[0], data, folder=tmp_path / "a", start=path, **more)
    cold = train(designs[0], data, folder=tmp_path / "a", **more)  # the same folder: another training
    assert cold.spent_cpu_s == cold.cpu_s
    assert warm.loss < cold.loss
    again = train(designs[0], data, folder=tmp_path / "b", start=inherited, **more)
    assert again.loss == warm.loss
    with pytest.raises(InputError, match=r"different architecture: embedding\.weight"):
        train(designs[1], data, folder=tmp_path / "c", start=path, **more)


def test_shared_weights_are_trained_by_a_worker_that_may_be_killed(
    designs: list[ArchSpec], tokens_path: Path, data: TokenData, tmp_path: Path
) -> None:
    job = SupernetJob(
        archs=(*designs, designs[0]),
        tokens=(str(tokens_path),),
        folder=str(tmp_path),
        cpu_budget_s=2.0,
        seed=1,
        recipe={"window_tokens": 24, "batch_windows": 2, "warmup_steps": 5, "decay_share": 0.6},
    )
    line = json.loads(json.dumps(job.to_data()))
    assert read_job(line) == job
    with pytest.raises(InputError, match="not a job"):
        read_job({**line, "order": [9]})
    with training_pool(1) as pool:
        pool.submit(job.to_data())
        alive = True
        for event in pool.events():
            if (
                alive and event.kind == "progress" and event.data["cpu_s"] > 0.9
            ):  # the state before the decay was kept at 0.8
                alive = False  # reports that were on their way must not end the worker that takes its place
                worker = pool._workers[0].process
                worker.kill()
                worker.wait()
            if event.kind == "failed":
                assert "killed by signal 9" in event.data["message"]
        pool.submit(job.to_data())
        ended = [event for event in pool.events() if event.kind != "progress"]
    assert ended[-1].kind == "result"
    assert ended[-1].data["spent_cpu_s"] < 1.5  # of 2: what came before the decay was not repeated
    whole = whole_of(designs)
    assert len(score(ended[-1].data["weights"], whole, designs, data)) == 3
