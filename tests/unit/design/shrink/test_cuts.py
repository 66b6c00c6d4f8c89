"""Cuts of pretrained models: orders that change nothing, slices that are models, what is left stands in."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from small_models import VOCABULARY, bert_folder, decoder_folder, some_tokens

from chipwise.api.testing.specs import toy_arch
from chipwise.deploy.export.hf import load_pretrained
from chipwise.deploy.export.onnx import random_weights
from chipwise.design.shrink.forward import states, watching
from chipwise.design.shrink.importance import gather, importance_order, matrix_inputs, reordered, repaired
from chipwise.design.shrink.sizes import (
    Sizes,
    compact,
    cut_arch,
    cut_weights,
    labels,
    reorder,
    require_cuttable,
    whole_sizes,
)
from chipwise.design.shrink.texts import Texts
from chipwise.errors import SpecError, Unsupported
from chipwise.model.arch.arch import ArchSpec
from chipwise.model.arch.ends import Pooler
from chipwise.model.arch.formats import matrix_of
from chipwise.model.kinds.encoder.form import ENCODER, without_head
from chipwise.model.kinds.encoder.module import Encoder
from chipwise.model.kinds.text.module import Transformer
from chipwise.model.walk.module import matrix_inputs as module_inputs
from chipwise.model.walk.weights import weight_shapes

Named = dict[str, torch.Tensor]


@pytest.fixture(scope="module", params=["bert", "llama", "qwen2"])
def model(request, tmp_path_factory) -> tuple[ArchSpec, Named]:
    folder = tmp_path_factory.mktemp(request.param)
    (bert_folder(folder) if request.param == "bert" else decoder_folder(folder, request.param))
    arch, weights = load_pretrained(folder)
    if isinstance(arch.head, Pooler):
        arch = without_head(arch)
    return arch, {n: torch.from_numpy(v) for n, v in weights.items() if not n.startswith("pooler")}


def texts(count: int = 40) -> Texts:
    generator = np.random.default_rng(3)
    lengths = generator.integers(3, 20, count)
    starts = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    return Texts(tokens=generator.integers(4, len(VOCABULARY), starts[-1]), starts=starts)


def any_order(arch: ArchSpec, weights: Named) -> dict[str, np.ndarray]:
    """Heads (whole, with their query heads) and neurons in an order at random."""
    generator = np.random.default_rng(5)
    order = {}
    for i, layer in enumerate(arch.layers):
        heads = generator.permutation(layer.attention.kv_heads)
        wide = layer.attention.query_width // layer.attention.kv_heads
        order[f"layers.{i}.query"] = (heads[:, None] * wide + np.arange(wide)).ravel()
        size = layer.attention.head_size
        order[f"layers.{i}.kv"] = (heads[:, None] * size + np.arange(size)).ravel()
        order[f"layers.{i}.ffn"] = generator.permutation(layer.ffn.width)
    return order


def test_every_axis_has_the_length_of_its_label(model) -> None:
    arch, _ = model
    first = arch.layers[0]
    lengths = {}
    for i in range(len(arch.layers)):
        lengths |= {f"layers.{i}.query": first.attention.query_width, f"layers.{i}.kv": first.attention.kv_width}
        lengths[f"layers.{i}.ffn"] = first.ffn.width
    for name, shape in weight_shapes(arch).items():
        for label, length in zip(labels(name), shape, strict=False):
            assert label is None or lengths[label] == length, name


def test_another_order_computes_the_same(model) -> None:
    arch, weights = model
    tokens, mask = some_tokens()
    order = any_order(arch, weights)
    before = states(arch, weights, tokens, mask)
    changed = reorder(weights, order)
    assert (states(arch, changed, tokens, mask) - before)[mask].abs().max() < 1e-5
    assert any(not torch.equal(changed[name], value) for name, value in weights.items())


def test_a_cut_is_the_model_that_its_spec_describes(model) -> None:
    """Run on views of the whole's weights or built on its own: the same states, and exactly its own weights."""
    arch, weights = model
    whole = whole_sizes(arch)
    sizes = dataclasses.replace(whole, heads=(1, *whole.heads[1:]), neurons=(16, *whole.neurons[1:-1], 0))
    sub, part = cut_arch(arch, sizes), cut_weights(arch, sizes, weights)
    assert {name: tuple(v.shape) for name, v in part.items()} == weight_shapes(sub)
    assert sub.parameters() == sum(value.numel() for value in part.values())
    alone = Encoder(sub) if ENCODER.builds(sub) else Transformer(sub)
    alone.load_state_dict({name: value.clone() for name, value in part.items()})
    tokens, mask = some_tokens()
    expected = alone(tokens, mask) if ENCODER.builds(sub) else alone.hidden(tokens)[0]
    assert (states(sub, part, tokens, mask) - expected)[mask].abs().max() < 1e-6


def test_gradients_reach_the_whole_through_a_cut(model) -> None:
    arch, weights = model
    leaves = {name: value.clone().requires_grad_() for name, value in weights.items()}
    sizes = whole_sizes(arch).with_block(0, "ffn", 16)
    tokens, mask = some_tokens()
    states(cut_arch(arch, sizes), cut_weights(arch, sizes, leaves), tokens, mask).square().sum().backward()
    grad = leaves["layers.0.ffn.up.weight"].grad
    assert grad[:16].abs().sum() > 0
    assert grad[16:].abs().sum() == 0


def test_layers_without_blocks_are_dropped_and_nothing_changes(model) -> None:
    arch, weights = model
    sizes = whole_sizes(arch).with_block(0, "ffn", 0).with_block(0, "attention", 0)
    sub, part = cut_arch(arch, sizes), cut_weights(arch, sizes, weights)
    small, renamed = compact(sub, part)
    assert len(small.layers) == len(arch.layers) - 1
    assert set(renamed) == set(weight_shapes(small))
    tokens, mask = some_tokens()
    assert torch.equal(states(small, renamed, tokens, mask), states(sub, part, tokens, mask))


def test_what_adds_nothing_comes_last(model) -> None:
    """A neuron and a head whose output weights are zero are the least important."""
    arch, weights = model
    changed = {name: value.clone() for name, value in weights.items()}
    block = arch.layers[0].attention
    wide = block.query_width // block.kv_heads
    changed["layers.0.ffn.down.weight"][:, 7] = 0
    changed["layers.0.attention.out.weight"][:, :wide] = 0
    order = importance_order(arch, changed, gather(arch, changed, texts()))
    assert order["layers.0.ffn"][-1] == 7
    assert list(order["layers.0.query"][-wide:]) == list(range(wide))
    assert list(order["layers.0.kv"][-block.head_size :]) == list(range(block.head_size))
    for label, entries in order.items():
        assert sorted(entries) == list(range(len(entries))), label


def test_moments_by_hand(model) -> None:
    """The statistics of a block are those of what its last matrix is given, padding not counted."""
    arch, weights = model
    some = texts(5)
    found = gather(arch, weights, some)
    rows = []
    for number in range(5):
        tokens, mask = some.padded([number])
        kept = []
        with torch.no_grad(), watching(arch, {"layers.1.ffn.down": lambda given, _out, kept=kept: kept.append(given)}):
            states(arch, weights, tokens, mask)
        rows.append(kept[0][0])
    inner = torch.cat(rows)
    assert len(inner) == len(some.tokens)
    torch.testing.assert_close(found.means["layers.1.ffn"], inner.mean(0), atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(found.moments["layers.1.ffn"], inner.T @ inner / len(inner), atol=1e-5, rtol=1e-4)


def test_twins_stand_in_for_each_other(model) -> None:
    """Where the second half of the neurons repeats the first, the first half repaired gives what all gave."""
    arch, weights = model
    changed = {name: value.clone() for name, value in weights.items()}
    half = arch.layers[0].ffn.width // 2
    for name, value in changed.items():
        if labels(name)[:1] == ("layers.0.ffn",):
            value[half:] = value[:half]
    sizes = whole_sizes(arch).with_block(0, "ffn", half)
    found = gather(arch, changed, texts())
    tokens, mask = some_tokens()
    expected = states(arch, changed, tokens, mask)

    def error(start: Named) -> float:
        cut = states(cut_arch(arch, sizes), cut_weights(arch, sizes, start), tokens, mask)
        return float((cut - expected)[mask].abs().max())

    assert error(repaired(arch, changed, found, sizes)) < 0.02 * error(changed)


def test_statistics_follow_the_order_of_the_weights(model) -> None:
    arch, weights = model
    found = gather(arch, weights, texts())
    order = importance_order(arch, weights, found)
    moved, again = reordered(found, order), gather(arch, reorder(weights, order), texts())
    for place, value in again.moments.items():
        torch.testing.assert_close(moved.moments[place], value, atol=1e-4, rtol=1e-3)
    assert again.influence == pytest.approx(found.influence, abs=1e-5)


def test_sizes_that_no_model_has_are_refused_by_name(model) -> None:
    arch, _ = model
    whole = whole_sizes(arch)
    with pytest.raises(SpecError, match=r"neurons\[1\]: must lie between 0 and 64, not 65"):
        cut_arch(arch, whole.with_block(1, "ffn", 65))
    with pytest.raises(SpecError, match=r"heads: has 1 layers"):
        cut_arch(arch, Sizes(heads=(1,), neurons=whole.neurons))


def test_poolers_and_shared_layers_are_not_cut(model) -> None:
    arch, _ = model
    with pytest.raises(Unsupported, match="pooler"):
        require_cuttable(dataclasses.replace(arch, head=Pooler()))
    shared = dataclasses.replace(arch.layers[0], shares=0)
    with pytest.raises(Unsupported, match="share weights"):
        require_cuttable(dataclasses.replace(arch, layers=(arch.layers[0], shared)))


def test_convolutions_follow_their_blocks() -> None:
    """A decoder of ours with short convolutions: in another order it computes the same; a block takes its own along."""
    layer = dataclasses.replace(toy_arch().layers[0], attention_conv=3, ffn_conv=2)
    arch = toy_arch(layers=(layer, layer))
    weights = {name: torch.from_numpy(value) for name, value in random_weights(arch, seed=0).items()}
    tokens = torch.from_numpy(np.random.default_rng(0).integers(0, 20, (2, 7)))
    mask = torch.ones_like(tokens, dtype=torch.bool)
    order = any_order(arch, weights)
    after = states(arch, reorder(weights, order), tokens, mask)
    expected = states(arch, weights, tokens, mask)
    torch.testing.assert_close(after, expected, atol=1e-5, rtol=1e-4)
    sizes = whole_sizes(arch).with_block(0, "ffn", 0)
    sub, part = cut_arch(arch, sizes), cut_weights(arch, sizes, weights)
    assert sub.layers[0].ffn_conv == 0
    assert sub.layers[0].attention_conv == 3
    assert {name: tuple(value.shape) for name, value in part.items()} == weight_shapes(sub)


def test_inputs_of_matrices_are_those_of_each_text_alone(model) -> None:
    """Padding is left out: second moments of the inputs are those of passes over single texts without padding."""
    arch, weights = model
    held = texts(12)

    def alone(module: torch.nn.Module) -> None:
        for number in range(len(held)):
            module(torch.from_numpy(held.tokens[held.starts[number] : held.starts[number + 1]])[None])

    wanted = module_inputs(arch, {name: value.numpy() for name, value in weights.items()}, alone)
    found = matrix_inputs(arch, weights, held)
    names = [name for name in weights if matrix_of(name) is not None]
    assert set(names) <= set(found)
    for name in names:
        theirs = wanted(name)
        assert found[name].shape == theirs.shape
        assert np.allclose(found[name].T @ found[name], theirs.T @ theirs, rtol=1e-3, atol=1e-2), name
