"""Names and shapes of a model's weights, as in the torch module's state dict. All stored weights use these names."""

from __future__ import annotations

import math
from itertools import chain

from chipwise.model.arch.arch import ArchSpec
from chipwise.model.arch.formats import matrix_of
from chipwise.model.blocks.weights import Shape, layer_shapes
from chipwise.model.kinds.table import form_of

WORK = "given weights by name"  # the requested action, for messages about models that are not supported


def weight_shapes(arch: ArchSpec) -> dict[str, Shape]:
    """Maps the name of every weight to its shape; matrices are (out, in). Shared and tied weights appear once.

    Raises:
        Unsupported: chipwise does not build the model.
    """
    form = form_of(arch)
    form.require(arch, work=WORK)
    assert form.weights is not None  # a kind that is exported has names for its weights
    stem, head = form.weights
    return dict(chain(stem(arch), layer_shapes(arch), head(arch)))


def matrices_of(arch: ArchSpec) -> list[str]:
    """The matrices that can have separate formats, named as in ``model/arch/formats.py``, largest first.

    Raises:
        Unsupported: chipwise does not build the model.
    """
    sizes: dict[str, int] = {}
    for name, shape in weight_shapes(arch).items():
        matrix = matrix_of(name)
        if matrix is not None:
            sizes[matrix] = sizes.get(matrix, 0) + math.prod(shape)
    if arch.tie_embeddings and arch.head.writes:  # a tied head in a narrow format is stored separately
        sizes["head"] = arch.vocab_size * arch.d_model
    return sorted(sizes, key=lambda name: -sizes[name])
