"""The decoder's torch module: its tables, and its cache."""

from __future__ import annotations

from itertools import pairwise

import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from chipwise.model.arch.arch import ArchSpec, uniform
from chipwise.model.walk.module import build
from support.block_suite import random_tokens, shaken
from support.models import arch_specs


def test_rotary_tables_are_kept_for_each_device() -> None:
    model = build(uniform(vocab_size=20, d_model=8, depth=1, heads=2, kv_heads=1, ffn_width=8), seed=0)
    devices = [torch.device(name) for name in ("cpu", "meta", "cpu")]
    tables = [model._rotary(4, device) for device in devices]
    assert [[table.device for table in pair] for pair in tables] == [[device] * 2 for device in devices]
    assert tables[0] is tables[2]


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True)
@given(arch=arch_specs(), first=st.integers(1, 4))
def test_a_cache_that_grows_gives_the_logits_of_one_full_pass(arch: ArchSpec, first: int) -> None:
    """A prompt in one pass, then two tokens, then one by one: keys, values and convolution states are carried over."""
    model, tokens = shaken(arch, seed=0), random_tokens(arch, length=9, batch=2)
    ends = [0, first, first + 2, *range(first + 3, 10)]
    with torch.inference_mode():
        wanted = model(tokens)[0]
        past, found = None, []
        for begin, end in pairwise(ends):
            logits, past = model(tokens[:, begin:end], past)
            assert past.tokens == end
            found.append(logits)
    torch.testing.assert_close(torch.cat(found, dim=1), wanted, atol=1e-4, rtol=1e-4)
