"""What operators are worth: changes of the loss that finished trainings show, known before a run trains anything.

A run without trainings of its own would try operators at random, in trainings so short that most of their differences
are noise. These constants say which operators to begin with, and how much is left for first trainings to find.

The constants of text are fitted by ``benchmarks/real/operators.py`` to 64 trainings of medical definitions (widths 64
to 256, 1 to 4 layers, vocabularies of 1,024 to 4,096), at equal sizes, tokens and recipe, after 45,000, 136,000 and
410,000 tokens. Later points are single pairs of trainings (``benchmarks/real/convolutions.csv``): width 96 with four
layers after 1.2 million tokens, with one layer after two million; and the reference design of ``examples/clinic.yaml``
after ten CPU-minutes (five million tokens), which was with them 2 % worse, about what their time costs, on a busy
machine. Between points changes are interpolated over the logarithm of the tokens. What they cost was measured on a
processor with AMX; where matrix products take longer, convolutions take a smaller part of the time (3 % on one with
AVX2 that trains eight times as slowly). One head of keys instead of as many as of queries loses more than its
parameters explain after eight million tokens (``benchmarks/real/heads.csv``); after 410,000 it does not show
(0.000 ± 0.009).
Operators whose change is below two standard
errors are left out (activations and gates of the feed-forward, layers that share weights). No other task has these
operators, so with text left out nothing is known of them: what activations and gates change in the other tasks ranks
texts of equal size with a Kendall's tau of -0.01.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

SPREAD = 0.03  # standard deviation of the ln of final losses of the designs that are trained first
AGREEMENT = {9: 0.75, 27: 0.65, 54: 0.6}  # by divisor of a full training: correlation of ln loss then and at the end


@dataclass(frozen=True, slots=True, kw_only=True)
class Operator:
    """What a value of a choice changes.

    Attributes:
        loss: Changes of the ln loss at equal size and tokens, by tokens of the training, fewest first.
        seconds: Change of the ln of a training's seconds per token on the machine of ``scaling.PACE``.
        one_layer: The same for designs of one layer, where it is known to differ.
    """

    loss: Mapping[float, float]
    seconds: float
    one_layer: Operator | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorPrior:
    """What is known of operators before any training.

    Attributes:
        operators: By choice and value; what is not listed changes nothing.
        spread: Standard deviation of the ln of final losses that sizes and operators leave.
        agreement: By divisor of a full training: correlation of what they leave then and at the end.
    """

    operators: Mapping[str, Mapping[str, Operator]] = field(default_factory=dict)
    spread: float = SPREAD
    agreement: Mapping[int, float] = field(default_factory=lambda: AGREEMENT)


NOTHING_KNOWN = OperatorPrior()
TEXT = OperatorPrior(
    operators={
        "conv": {  # standard errors 0.008, 0.008 and 0.010 of losses, 0.10 of seconds
            "attention": Operator(loss={45e3: -0.004, 136e3: -0.012, 410e3: -0.019, 5e6: 0.0}, seconds=0.16),
            "both": Operator(
                loss={45e3: -0.010, 136e3: -0.015, 410e3: -0.053, 1.23e6: -0.066, 5e6: 0.0},
                seconds=0.28,
                one_layer=Operator(loss={45e3: -0.010, 136e3: -0.015, 410e3: -0.053, 2.05e6: -0.048}, seconds=0.28),
            ),
        },
        "kv_heads": {"1": Operator(loss={410e3: 0.0, 8e6: 0.005}, seconds=0.0)},
    },
    spread=0.024,
    agreement={9: 0.32, 27: 0.23, 54: 0.18},  # 0.32 after a ninth and 0.45 after a third, continued
)
