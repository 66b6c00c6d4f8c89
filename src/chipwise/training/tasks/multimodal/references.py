"""Reference designs of decoders with image tokens, with the proportions of LLaVA and SmolVLM.

The designs have plain patches, one token per patch (LLaVA) or per four merged patches (SmolVLM), a projection with two
matrices, image tokens before the words, and a standard transformer: heads that together are as wide as the model, and a
GELU feed-forward of four times the width.

References:
    Liu et al. 2023, Improved Baselines with Visual Instruction Tuning, arXiv:2310.03744; Marafioti et al. 2025,
    SmolVLM, arXiv:2504.05299.
"""

from __future__ import annotations

from collections.abc import Iterator

from chipwise.model.kinds.image.choices import IMAGE_IN, JOIN, NO_MERGE, PREFIX, ImageSpace
from chipwise.model.space.space_spec import SpaceSpec
from chipwise.training.tasks.one_pass import inputs_of
from chipwise.training.tasks.references import deit_proportions


def proportions(spec: SpaceSpec) -> Iterator[dict[str, object]]:
    """Yields designs as mappings of choices to values: one token per patch, then merged patches where possible."""
    size = inputs_of(spec, ImageSpace).size
    for choices in deit_proportions(spec):
        choices["pooling"] = "last"
        for merge in (NO_MERGE, JOIN):
            if merge == NO_MERGE or (size // choices["patch"]) % 2 == 0:
                yield choices | {"merge": merge, IMAGE_IN: PREFIX}
