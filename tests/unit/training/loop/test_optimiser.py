import pytest
import torch
from torch import nn

from chipwise.training.loop.adamw import AVERAGES, AdamW
from chipwise.training.loop.optimiser import Optimiser, orthogonalise


@pytest.mark.parametrize("shape", [(3, 16, 16), (2, 16, 40), (2, 40, 16)])
def test_orthogonalising_keeps_directions_and_levels_singular_values(shape: tuple[int, ...]) -> None:
    matrices = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    result = orthogonalise(matrices, rounds=8)
    u, _, v = torch.linalg.svd(matrices, full_matrices=False)
    levelled = u.mT @ result @ v.mT  # diagonal where the singular vectors are kept
    diagonal = torch.diagonal(levelled, dim1=-2, dim2=-1)
    assert diagonal.min() > 0.6
    assert diagonal.max() < 1.3
    assert (levelled - torch.diag_embed(diagonal)).abs().max() < 0.05


def test_a_matrix_of_zeros_stays_finite() -> None:
    assert torch.equal(orthogonalise(torch.zeros(1, 4, 6)), torch.zeros(1, 4, 6))


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleDict({"0": nn.Linear(6, 6), "1": nn.Linear(6, 6)})
        self.embedding = nn.Embedding(5, 6)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        return self.layers["1"](torch.relu(self.layers["0"](x)))


def steps(model: Model, optimiser: Optimiser, count: int) -> float:
    loss = torch.tensor(0.0)
    for _ in range(count):
        loss = (model(torch.arange(5)) - torch.eye(5, 6)).square().mean()
        model.zero_grad()
        loss.backward()
        optimiser.step(1.0)
    return loss.item()


def make() -> tuple[Model, Optimiser]:
    model = Model()
    return model, Optimiser(model, matrix_rate=0.02, table_rate=0.01, weight_decay=0.0)


def test_it_learns() -> None:
    model, optimiser = make()
    first = steps(model, optimiser, 1)
    assert steps(model, optimiser, 60) < 0.2 * first


def test_a_loaded_state_goes_on_as_if_never_stopped() -> None:
    straight, optimiser = make()
    steps(straight, optimiser, 7)
    first, saved = make()
    steps(first, saved, 4)
    second, loaded = make()
    second.load_state_dict(first.state_dict())
    loaded.load(saved.state())
    steps(second, loaded, 3)
    for a, b in zip(straight.parameters(), second.parameters(), strict=True):
        assert torch.allclose(a, b, atol=1e-6)


def test_weight_decay_shrinks_matrices_of_layers_alone() -> None:
    model = Model()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    optimiser = Optimiser(model, matrix_rate=0.1, table_rate=0.1, weight_decay=0.5)
    for p in model.parameters():
        p.grad = torch.zeros_like(p)
    optimiser.step(1.0)
    for name, value in model.state_dict().items():
        shrunk = 0.95 if name.startswith("layers.") and value.ndim == 2 else 1.0  # 1 − 0.1 · 0.5
        assert torch.allclose(value, before[name] * shrunk, atol=1e-6), name


def test_table_decay_shrinks_the_other_matrices_alone() -> None:
    model = Model()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    optimiser = Optimiser(model, matrix_rate=0.1, table_rate=0.2, weight_decay=0.0, table_decay=0.5)
    for p in model.parameters():
        p.grad = torch.zeros_like(p)
    optimiser.step(1.0)
    shrunk = []
    for name, value in model.state_dict().items():
        table = value.ndim > 1 and not name.startswith("layers.")
        shrunk.append(table)
        assert torch.allclose(value, before[name] * (0.9 if table else 1.0), atol=1e-6), name  # 1 − 0.2 · 0.5
    assert set(shrunk) == {True, False}


@pytest.mark.parametrize(("decay", "fused"), [(0.1, True), (0.0, False)])
def test_adamw_steps_as_torch_does_also_after_it_was_restored(decay: float, fused: bool) -> None:
    """Without decay it is Adam. The fourth of five steps is the first of one that took over the averages."""
    ours, torchs = (nn.Parameter(torch.linspace(-1, 1, 12).view(3, 4).clone()) for _ in range(2))
    made = AdamW(betas=(0.7, 0.95), eps=1e-10, fused=fused)
    kind = torch.optim.AdamW if decay else torch.optim.Adam
    other = kind([torchs], lr=0.01, betas=(0.7, 0.95), eps=1e-10, weight_decay=decay, fused=fused)
    for number in range(5):
        if number == 3:
            averages, made = made.averages["a"], AdamW(betas=(0.7, 0.95), eps=1e-10, fused=fused)
            made.put("a", ours, [averages[name].clone() for name in AVERAGES])
        grad = torch.sin(torch.arange(12.0) + number).view(3, 4)
        ours.grad, torchs.grad = grad.clone(), grad.clone()
        made.step([("a", ours)], lr=0.01, weight_decay=decay)
        other.step()
    assert torch.equal(ours, torchs)
