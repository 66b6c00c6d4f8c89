"""Tables of position biases, and which row of a table each pair of positions uses.

Positions of a grid are numbered row by row. Results are NumPy arrays, because both torch and ONNX need them.

References:
    Tables of biases: Liu et al. 2021, Swin Transformer, arXiv:2103.14030, section 3.2. Three additional biases for a
        class token: Bao et al. 2021, BEiT, arXiv:2106.08254.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from chipwise.model.kinds.image.stem import ImageStem


def bias_rows(stem: ImageStem) -> int:
    """Number of rows in an image's table of position biases: one for each distance between two positions.

    A distance is a signed offset along each axis, so a grid of g by g patches has (2g - 1)² of them. A class token adds
    three rows: from the token, to the token, and from the token to itself.

    >>> (
    ...     bias_rows(ImageStem(image_size=28, patch=4, prefix_tokens=0)),
    ...     bias_rows(ImageStem(image_size=28, patch=4)),
    ... )
    (169, 172)
    """
    return int((2 * stem.grid - 1) ** stem.axes) + 3 * (stem.prefix_tokens > 0)


def bias_places(stem: ImageStem) -> npt.NDArray[np.int64]:
    """The row of the table for each pair of positions of an image and its class token, (T, T)."""
    side = stem.grid
    axes = np.meshgrid(*[np.arange(side)] * stem.axes, indexing="ij")
    found = np.zeros((side**stem.axes,) * 2, np.int64)
    for axis in axes:
        flat = axis.ravel()
        found = found * (2 * side - 1) + flat[:, None] - flat + side - 1
    if not stem.prefix_tokens:
        return found
    rows = bias_rows(stem)
    whole = np.full((len(found) + 1,) * 2, rows - 1, np.int64)
    whole[0, 1:], whole[1:, 0], whole[1:, 1:] = rows - 3, rows - 2, found
    return whole
