"""Threads share a step: same gradient, same weights again."""

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from chipwise.model.arch.arch import ArchSpec
from chipwise.model.walk.module import build
from chipwise.training.data.recipe import Recipe
from chipwise.training.data.tokens import TokenData
from chipwise.training.loop.threads import GradientThreads
from chipwise.training.loop.trainer import train


@pytest.mark.parametrize(("entries", "threads"), [(4, 2), (5, 2), (7, 3), (2, 4), (1, 2)])
def test_gradient_is_that_of_the_whole_batch(arch: ArchSpec, data: TokenData, entries: int, threads: int) -> None:
    model = build(arch, seed=0)
    batch = data.batch(arch, Recipe(window_tokens=24, batch_windows=entries), 0, seed=3)
    data.loss(model, batch, torch.float32).backward()
    wanted = {name: p.grad for name, p in model.named_parameters()}
    helpers = GradientThreads(threads)
    loss = helpers.backward(model, lambda some: data.loss(model, some, torch.float32), batch)
    helpers.close()
    assert float(loss) == pytest.approx(float(data.loss(model, batch, torch.float32).detach()), rel=1e-6)
    for name, p in model.named_parameters():
        np.testing.assert_allclose(p.grad, wanted[name], rtol=1e-4, atol=1e-6, err_msg=name)


def test_an_error_in_a_thread_is_not_lost(arch: ArchSpec, data: TokenData) -> None:
    model, helpers = build(arch, seed=0), GradientThreads(2)
    batch = data.batch(arch, Recipe(window_tokens=24, batch_windows=4), 0, seed=3)

    def loss(some) -> torch.Tensor:
        if not torch.equal(some[0], batch[0][:2]):
            raise MemoryError("second half")
        return data.loss(model, some, torch.float32)

    with pytest.raises(MemoryError, match="second half"):
        helpers.backward(model, loss, batch)
    helpers.close()


def test_a_training_in_two_threads_repeats_and_learns_as_one_in_one(
    arch: ArchSpec, data: TokenData, tmp_path: Path
) -> None:
    def trained(name: str, threads: int):
        recipe = Recipe(window_tokens=24, batch_windows=4, warmup_steps=5)
        return train(arch, data, steps=60, seed=1, folder=tmp_path / name, recipe=recipe, threads=threads)

    one, two, again = trained("one", 1), trained("two", 2), trained("again", 2)
    first, second = load_file(two.weights), load_file(again.weights)
    assert all(np.array_equal(first[name], second[name]) for name in first)
    assert two.loss == again.loss == pytest.approx(one.loss, rel=0.02)
