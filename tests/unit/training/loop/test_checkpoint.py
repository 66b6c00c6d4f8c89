import torch

from chipwise.training.loop.checkpoint import fingerprint


def test_weights_have_one_identity_as_arrays_and_as_tensors() -> None:
    weights = {"a": torch.tensor([[1.0, 2.0]]), "b": torch.tensor([3.0])}
    arrays = {name: value.numpy() for name, value in reversed(weights.items())}
    assert fingerprint(weights) == fingerprint(arrays)
    swapped = {"a": torch.tensor([[2.0, 1.0]]), "b": torch.tensor([3.0])}  # the same sum
    assert fingerprint(swapped) != fingerprint(weights)
    assert fingerprint({**weights, "a": weights["a"].T}) != fingerprint(weights)
