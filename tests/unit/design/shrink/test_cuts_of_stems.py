"""Cuts of models with stems: orders that change nothing, slices that are models, layers without blocks left out."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch

from chipwise.core.files import build
from chipwise.design.shrink.forward import Bound
from chipwise.design.shrink.importance import gather, importance_order, reordered, repaired
from chipwise.design.shrink.sizes import (
    compact,
    cut_arch,
    cut_weights,
    labels,
    reorder,
    whole_sizes,
)
from chipwise.model.arch.arch import ArchSpec
from chipwise.model.space.designs import design_of
from chipwise.model.space.space_spec import SpaceSpec
from chipwise.model.walk.module import build as fresh
from chipwise.model.walk.module import module_of
from chipwise.model.walk.weights import weight_shapes

Named = dict[str, torch.Tensor]
LAYER = {"heads": [3], "ffn": ["gelu"], "ffn_width": [32]}
COMMON = {"d_model": [24], "depth": [3], "head_size": [8], "layers": "alike", "weights": ["fp32"]}
IMAGE = {"size": 16, "classes": 5, "channels": 3, "patch": [4], "stem": ["conv8"], "pooling": ["first"]}
SOUND = {**IMAGE, "axes": 1, "channels": 16, "size": 40, "pooling": ["mean"], "stem": ["patches"]}
ASKED = {"size": 16, "channels": 3, "classes": 5, "question": 4, "words": 9, "patch": [4], "merge": ["join"]}
RANKED = {"items": 20, "history": 4, "candidates": 6, "tags": 3, "bag": 2, "table": ["w8"], "score": ["scores"]}
SPACES: dict[str, dict[str, Any]] = {
    "images": {**COMMON, "norm": "layernorm", "image": IMAGE, "layer": LAYER},
    "sound": {**COMMON, "norm": "layernorm", "image": SOUND, "layer": LAYER},
    "questions": {**COMMON, "norm": "layernorm", "image": ASKED, "layer": LAYER},
    "crossing": {**COMMON, "norm": "layernorm", "image": {**ASKED, "image_in": ["cross"]}, "layer": LAYER},
    "sasrec": {**COMMON, "ranking": {**RANKED, "mixing": ["attention"]}, "layer": {**LAYER, "ffn": ["relu"]}},
    "hstu": {**COMMON, "ranking": {**RANKED, "mixing": ["hstu"]}, "layer": {**LAYER, "ffn": ["none"]}},
}


@pytest.fixture(scope="module", params=list(SPACES))
def model(request) -> tuple[ArchSpec, Named]:
    space = build(SpaceSpec, SPACES[request.param])
    from chipwise.model.space.search_space import SearchSpace

    rows = SearchSpace(space)
    arch = design_of(rows.choices(rows.sample(1, np.random.default_rng(0))[0]), spec=space, name=request.param).arch
    generator = torch.Generator().manual_seed(1)
    state = fresh(arch, seed=0).state_dict()
    return arch, {name: value + 0.1 * torch.randn(value.shape, generator=generator) for name, value in state.items()}


def inputs(arch: ArchSpec) -> tuple[torch.Tensor, ...]:
    """Five images, sounds, questions about images, or requests."""
    generator = torch.Generator().manual_seed(2)
    if arch.reads == "request":
        ids = torch.randint(1, 20, (5, 10, 1), generator=generator)
        return (torch.cat((ids, torch.randint(0, 3, (5, 10, 2), generator=generator)), dim=-1),)
    image = torch.randn((5, *arch.stem.shape), generator=generator)
    return (image,) if not arch.stem.asks else (image, torch.randint(1, 9, (5, 4), generator=generator))


class _Batches:
    """One batch as the examples that importance is computed on."""

    def passes(self, arch: ArchSpec, weights: Named) -> Any:
        yield None, lambda: Bound(arch, weights)(*inputs(arch))


def any_order(arch: ArchSpec) -> dict[str, np.ndarray]:
    generator = np.random.default_rng(5)
    order = {}
    for i, layer in enumerate(arch.layers):
        heads, size = generator.permutation(layer.attention.heads), layer.attention.head_size
        order[f"layers.{i}.heads"] = heads
        for kind in ("query", "kv"):
            order[f"layers.{i}.{kind}"] = (heads[:, None] * size + np.arange(size)).ravel()
        if layer.ffn is not None:
            order[f"layers.{i}.ffn"] = generator.permutation(layer.ffn.width)
    return order


def test_another_order_gives_the_same_outputs(model) -> None:
    arch, weights = model
    changed = reorder(weights, any_order(arch))
    before, after = Bound(arch, weights)(*inputs(arch)), Bound(arch, changed)(*inputs(arch))
    assert (after - before).abs().max() < 1e-5 * before.abs().max()
    assert any(not torch.equal(changed[name], value) for name, value in weights.items())


def test_axes_have_the_lengths_of_their_labels(model) -> None:
    arch, _ = model
    block = arch.layers[0].attention
    for name, shape in weight_shapes(arch).items():
        for label, length in zip(labels(name), shape, strict=False):
            kind = None if label is None else label.rpartition(".")[2]
            known = {"query": block.query_width, "kv": block.kv_width, "heads": block.heads}
            assert kind is None or length == (known | {"ffn": 32})[kind], name


def test_a_cut_is_the_model_that_its_spec_describes(model) -> None:
    arch, weights = model
    whole = whole_sizes(arch)
    sizes = dataclasses.replace(whole, heads=(1, 2, 0), neurons=tuple(min(16, n) for n in whole.neurons[:2]) + (0,))
    sub, part = cut_arch(arch, sizes), cut_weights(arch, sizes, weights)
    assert {name: tuple(value.shape) for name, value in part.items()} == weight_shapes(sub)
    assert sub.parameters() == sum(value.numel() for value in part.values())
    found = Bound(sub, part)(*inputs(arch))
    smaller, left = compact(sub, part)
    assert len(smaller.layers) == (3 if arch.crosses else 2)  # cross-attention is kept whole
    alone = module_of(smaller)
    alone.load_state_dict({name: value.clone() for name, value in left.items()})
    torch.testing.assert_close(alone(*inputs(arch)), found, atol=1e-5, rtol=1e-5)


def test_what_is_left_stands_in_for_what_was_cut(model) -> None:
    """Of a block cut in half the repaired outputs are nearer to the original's than those that were only cut."""
    arch, weights = model
    found = gather(arch, weights, _Batches())
    order = importance_order(arch, weights, found)
    weights, found = reorder(weights, order), reordered(found, order)
    wanted = Bound(arch, weights)(*inputs(arch))
    sizes = whole_sizes(arch).with_block(1, "attention", 2)

    def error(of: Named) -> float:
        given = Bound(cut_arch(arch, sizes), cut_weights(arch, sizes, of))(*inputs(arch))
        return float((given - wanted).square().mean())

    assert 0 < error(repaired(arch, weights, found, sizes)) < error(weights)
