"""Spaces of transcribing models: every row is a design, prices of blocks add up to those of whole models."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from chipwise.core.fields import build
from chipwise.errors import SpecError
from chipwise.model.kinds.sound.stem import SoundStem
from chipwise.model.space.designs import summary
from chipwise.model.space.search_space import SearchSpace
from chipwise.model.space.space_spec import SpaceSpec
from support.space_suite import SpaceSuite

SOUND: dict[str, Any] = {
    "size": 80,
    "classes": 7,
    "channels": 12,
    "stride": [2, 4],
    "window": ["global", "local8", "local10"],
    "module": ["none", "conv5"],
}
FIELDS: dict[str, Any] = {
    "sound": SOUND,
    "d_model": [16, 32],
    "depth": [1, 3],
    "head_size": [8, 16],
    "weights": ["fp32", "int8"],
    "layers": "alike",
    "norm": "layernorm",
    "layer": {"heads": [1, 2], "ffn": ["gelu", "swiglu"], "ffn_width": [24, 48]},
}


def space_of(**changes: Any) -> SearchSpace:
    return SearchSpace(build(SpaceSpec, FIELDS | changes))


class TestSoundSpaces(SpaceSuite):
    """Stretches and modules of convolutions."""

    def spaces(self) -> dict[str, SpaceSpec]:
        return {"alike": space_of().spec}


def test_stretches_divide_their_positions() -> None:
    """80 frames are 40 or 20 positions: 8 divides 40 alone, 10 divides both."""
    space = space_of()
    rows = space.sample(200, np.random.default_rng(1))
    seen = set()
    for row in rows:
        design = space.design(row)
        stem = design.arch.stem
        assert isinstance(stem, SoundStem)
        attention = design.arch.layers[0].attention
        assert attention is not None
        seen.add((stem.tokens, attention.chunk))
        assert stem.seconds == 0.8
    assert seen == {(40, None), (40, 8), (40, 10), (20, None), (20, 10)}
    assert {str(summary(space.design(row))).split(" d")[0] for row in rows} >= {"s2 local8 conv5", "s4 global"}


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"size": 82}, "multiple of 4"),
        ({"window": ["8x8"]}, "unknown window"),
        ({"window": ["local7"]}, "no listed chunk divides 40"),
        ({"module": ["conv4"]}, "odd kernel size"),
        ({"stride": [3]}, "stride"),
        ({"classes": 0}, "classes"),
    ],
)
def test_wrong_choices_are_named(changed: dict[str, Any], said: str) -> None:
    with pytest.raises(SpecError, match=said):
        space_of(sound=SOUND | changed)


def test_a_space_reads_one_kind_of_thing() -> None:
    image = {"size": 8, "classes": 2, "patch": [4]}
    with pytest.raises(SpecError, match="give only one of the fields"):
        space_of(image=image)
    with pytest.raises(SpecError, match="sounds have no vocabulary"):
        space_of(vocab_size=[100])
