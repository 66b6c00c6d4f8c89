"""Prior knowledge about operators: how they changed the loss in earlier training runs.

Without this knowledge, a new search would try operators at random, in training runs so short that most differences are
noise. The constants say which operators to try first, and how much losses vary for other reasons.

The constants for text are fitted by ``benchmarks/real/operators.py`` to 64 training runs on medical definitions (widths
64 to 256, 1 to 4 layers, vocabularies of 1,024 to 4,096), at equal sizes, tokens and recipe, after 45,000, 136,000 and
410,000 tokens. Changes after more tokens are from pairs of runs with one seed each, on the same tokens
(``benchmarks/real/convolutions.csv``): one layer after two million tokens, two layers after 4.1 and 8.2 million, four
layers after 1.2 and 4.1 million, and five layers after 8.2 million. Attention over several layers learns eventually
what convolutions do from the start; fewer layers take longer. Convolutions are therefore assumed to change nothing from
5 million tokens on (with two layers: from 10 million). With one layer, their effect is assumed to stay. Between these
numbers of tokens, changes are interpolated over the logarithm of the tokens. With convolutions before both blocks a
training step took 11 to 18 % longer on the processor of ``scaling.PACE`` and 28 % longer on one with AMX; the constant
lies between the two. Where matrix products take longer, convolutions take a smaller part of the time (3 % on a
processor with AVX2 that trains eight times as slowly). If several query heads share a key head, the loss after eight
million tokens is higher than the smaller number of parameters explains: by 0.4 % in two pairs
(``benchmarks/real/heads.csv``) and by 1.1 ± 0.2 % on the mean of 49 long training runs (``text_law.py``); the constant
is the latter. After 410,000 tokens there is no visible difference (0.000 ± 0.009).

The scaling law counts parameters, not layers. The part of the loss that it does not explain depends on the number of
layers (``benchmarks/real/text_law.py``, 66 long training runs on four processors). Models with one layer are worse than
the law expects, by 4.5 % after 3.5 million tokens, 6 % after 9 million and 7 % after 16 million. Models with two layers
are worse by 3 % after four million tokens and agree with the law after nine million. Models with four to six layers are
better by 2.5 % after four million tokens (four layers) and by 0.6 % after eight million.

Operators whose change is below two standard errors are left out (activations and gates of the feed-forward, layers that
share weights). Training runs of other tasks do not help to choose these: the changes that activations and gates make in
other tasks rank text models of equal size with a Kendall's tau of -0.01.

For classifiers of images the effect of a convolution with stride 2 before the patches is known
(``benchmarks/real/stems.csv``). On Fashion-MNIST, after 19 passes over the training images (4.1 million tokens, patches
of 14 pixels), 16 channels lower the ln error rate of validation images by 0.129 and 0.110 in two pairs of runs on the
same images, and a training step takes 1.4 and 1.3 times as long. After up to 650,000 tokens no change is visible
(``benchmarks/real/images.csv``: 0.004 ± 0.043, with patches as a category). Between these numbers of tokens the change
is interpolated, and it is assumed to stay. Runs with 8 channels agree with 16. With 32 channels the error rate is lower
by another 12 to 17 % at equal passes in three comparisons of single runs; the constant assumes 10 %.

For classifiers of spoken words, each frame of a slice beyond four raises the ln error rate by 0.026 after 200,000
tokens (``benchmarks/real/words.csv``: slices of 10 and 20 frames 0.19 ± 0.07 and 0.41 ± 0.08 above those of four).
After 3 to 5 million tokens it is 0.02 (``stems.csv``: 0.12 and 0.31, from runs of equal CPU time). A convolution before
the slices raises it by 0.05 ± 0.05 at first; later the change is 0.00, -0.18 and -0.04 with slices of 4, 10 and 20
frames.

After short training runs, classifiers with one layer are worse than others by 0.08 ± 0.05 (both tables), with equal
parameters, passes and recipe. After 3 to 13 million tokens, image classifiers are worse by 0.09 in three comparisons of
single runs and better by 0.07 in a fourth (``stems.csv``, ``live.csv``); the constant is their mean. That all this
holds for other images and other words is an assumption.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike

from chipwise.core.arrays import Float64Array

SPREAD = 0.03  # standard deviation of the ln of final losses of the designs that are trained first
AGREEMENT = {9: 0.75, 27: 0.65, 54: 0.6}  # key k: correlation of ln losses after 1/k of a full budget and at its end


@dataclass(frozen=True, slots=True, kw_only=True)
class Operator:
    """What one value of a choice changes in a training run.

    Attributes:
        loss: Change of the ln loss at equal size and tokens, for several numbers of training tokens, fewest first.
        seconds: Change of the ln of the training seconds per token on the machine of ``scaling.PACE``.
        shallow: As ``loss``, by number of layers, for designs with so few layers that the changes differ from ``loss``.
    """

    loss: Mapping[float, float]
    seconds: float
    shallow: Mapping[int, Mapping[float, float]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorPrior:
    """What is known about operators before any training run.

    Attributes:
        operators: Effects by choice and value; values that are not listed change nothing.
        grouped: Effect of key heads that several query heads share; None if unknown.
        depths: By number of layers, how much higher the ln loss is than the scaling law expects from the parameters,
            for several numbers of training tokens. Deeper designs than the deepest are treated like it.
        spread: Standard deviation of final ln losses, from which the effects of sizes and operators are removed.
        agreement: Maps k to the correlation between ln losses after 1/k of the training and ln losses at its end, from
            which the same effects are removed.
    """

    operators: Mapping[str, Mapping[str, Operator]] = field(default_factory=dict)
    grouped: Operator | None = None
    depths: Mapping[int, Mapping[float, float]] = field(default_factory=dict)
    spread: float = SPREAD
    agreement: Mapping[int, float] = field(default_factory=lambda: AGREEMENT)


def change_after(known: Mapping[float, float], tokens: ArrayLike) -> Float64Array:
    """Change of the ln loss after ``tokens``, (n,), interpolated over the logarithm of the tokens."""
    return np.asarray(np.interp(np.log(tokens), np.log(list(known)), list(known.values())))


NOTHING_KNOWN = OperatorPrior()
CONVOLUTIONS = {45e3: -0.010, 136e3: -0.015, 410e3: -0.053}  # for any number of layers
TEXT = OperatorPrior(
    operators={
        "conv": {  # standard errors 0.008, 0.008 and 0.010 of losses, 0.10 of seconds
            "attention": Operator(loss={45e3: -0.004, 136e3: -0.012, 410e3: -0.019, 5e6: 0.0}, seconds=0.11),
            "both": Operator(
                loss=CONVOLUTIONS | {1.23e6: -0.066, 4.1e6: -0.008, 5e6: 0.0},
                seconds=0.20,
                shallow={
                    1: CONVOLUTIONS | {2.05e6: -0.048},
                    2: CONVOLUTIONS | {4.1e6: -0.056, 8.2e6: -0.014, 10e6: 0.0},
                },
            ),
        },
    },
    grouped=Operator(loss={410e3: 0.0, 8e6: 0.011}, seconds=0.0),
    depths={
        1: {1.2e6: 0.0, 3.5e6: 0.045, 9.3e6: 0.060, 16e6: 0.074},
        2: {1.2e6: 0.0, 3.8e6: 0.031, 9e6: 0.006},
        3: {1.2e6: 0.0, 9e6: -0.003},
        **{depth: {1.2e6: 0.0, 4.1e6: -0.025, 8.5e6: -0.006} for depth in (4, 5, 6)},
    },
    spread=0.024,
    agreement={9: 0.32, 27: 0.23, 54: 0.18},  # 0.32 after a ninth, 0.45 after a third of continued runs
)
CONV_STEM = Operator(loss={650e3: 0.0, 4.1e6: -0.12}, seconds=0.31)
WIDE_STEM = Operator(loss={650e3: 0.0, 4.1e6: -0.22}, seconds=0.4)
IMAGES = OperatorPrior(
    operators={"stem": dict.fromkeys(("conv8", "conv16"), CONV_STEM) | dict.fromkeys(("conv32", "conv64"), WIDE_STEM)},
    depths={1: {650e3: 0.08, 3e6: 0.05}, 2: {650e3: 0.0}},
)
WORDS = OperatorPrior(
    operators={
        "patch": {
            str(frames): Operator(loss={200e3: 0.026 * (frames - 4), 3e6: 0.02 * (frames - 4)}, seconds=0.0)
            for frames in range(5, 51)
        },
        "stem": dict.fromkeys(("conv32", "conv64"), Operator(loss={200e3: 0.05, 3e6: -0.07}, seconds=0.05)),
    },
    depths={1: {650e3: 0.08}, 2: {650e3: 0.0}},
)
