"""Reference designs of denoisers, with the proportions of DiT.

The designs have attention over all patches, a GELU feed-forward of four times the width, adaLN-zero, a plain flow with
equal Euler steps, and no guidance if the space allows this. The heads together are as wide as the model. Guidance takes
two passes per step, so with a limit on time the model would have to be half as large. Patch, latents, steps, width,
depth, heads and format vary.

References:
    Peebles and Xie 2023, arXiv:2212.09748, table 1: width divided by depth is 32 (S), 64 (B), 43 (L) and 41 (XL),
        heads are 64 wide (XL: 72).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

from chipwise.model.kinds.denoiser.denoiser import UNGUIDED, UNSHIFTED
from chipwise.model.kinds.image.choices import GUIDANCE, LATENTS, PIXELS, SHIFT, SOLVER, ImageSpace
from chipwise.model.space.space_spec import SpaceSpec
from chipwise.training.tasks.one_pass import inputs_of
from chipwise.training.tasks.references import deit_proportions

ASPECT = (12, 64)  # width over depth; DiT starts at 32, narrower models have less
FEWEST = 4  # fewest steps of a plain flow; with fewer, images are blurred


def proportions(spec: SpaceSpec) -> Iterator[dict[str, object]]:
    """Yields designs with DiT's proportions for a space, each as a mapping of choices to values.

    The designs use those numbers of steps in the space that are at least ``FEWEST``. If there are none, they use all
    numbers of steps in the space.
    """
    image = inputs_of(spec, ImageSpace)
    enough = [steps for steps in image.steps if steps >= FEWEST] or list(image.steps)
    for choices in deit_proportions(spec, aspect=ASPECT):
        for factor, steps in itertools.product(image.latents, enough):
            values = choices["patch"] ** image.axes * image.channels * factor
            if choices["d_model"] < values:  # too narrow for the values of a noisy patch
                continue
            if image.size // factor % choices["patch"]:
                continue
            own: dict[str, object] = {} if image.latents == (PIXELS,) else {LATENTS: factor}
            own |= {} if image.guidance == (UNGUIDED,) else {GUIDANCE: min(image.guidance)}
            own |= {} if image.solver == ("euler",) else {SOLVER: min(image.solver)}  # euler if the space lists it
            own |= {} if image.shift == (UNSHIFTED,) else {SHIFT: min(image.shift, key=lambda x: abs(math.log(x)))}
            yield {**choices, "pooling": "mean", "steps": steps, "training": "flow"} | own
