"""Every block's four forms agree, alone and mixed."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import strategies as st

from chipwise.api.testing.specs import toy_arch
from chipwise.model.arch.arch import ArchSpec
from chipwise.model.arch.feed_forward import FeedForward
from chipwise.model.arch.layer import Layer
from chipwise.model.published.read import resolve
from support import block_suite
from support.block_suite import BlockSuite
from support.models import attentions, feed_forwards, llama_like_specs


class TestModels(BlockSuite):
    """Layers that all differ, lack a block, or share weights."""


class TestLlamaLike(BlockSuite):
    def archs(self) -> st.SearchStrategy[ArchSpec]:
        return llama_like_specs()


class TestAttentionAlone(BlockSuite):
    def archs(self) -> st.SearchStrategy[ArchSpec]:
        return attentions().map(lambda block: toy_arch(layers=(Layer(attention=block, ffn=None),)))


class TestFeedForwardAlone(BlockSuite):
    def archs(self) -> st.SearchStrategy[ArchSpec]:
        return feed_forwards().map(lambda block: toy_arch(layers=(Layer(attention=None, ffn=block),)))


def test_learned_positions_go_on_where_no_layer_attends() -> None:
    """Nothing is kept of each token then, so the cache itself must know how many there were."""
    layer = Layer(attention=None, ffn=FeedForward(width=24))
    arch = toy_arch(layers=(layer,), positions="learned")
    block_suite.check_cache(arch)
    block_suite.check_export(arch)


def test_a_wrong_count_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The suite can fail: a spec that forgets a norm, an operator that forgets a factor of two."""
    monkeypatch.setattr(ArchSpec, "parameters", lambda self: 1)
    with pytest.raises(AssertionError):
        block_suite.check_parameters(toy_arch())
    monkeypatch.setattr(block_suite, "dense_flops", lambda graph: graph.work().flops // 2)
    with pytest.raises(AssertionError):
        block_suite.check_flops(toy_arch())


@pytest.mark.parametrize("name", ["gpt2", "SmolLM2-135M", "Qwen2.5-0.5B", "Qwen3-0.6B", "gemma-3-270m"])
def test_flops_of_one_layer_of_known_models(name: str) -> None:
    arch = resolve(name)
    small = dataclasses.replace(arch.of_vocabulary(64), layers=arch.layers[:1], max_tokens=64)
    block_suite.check_flops(small)
