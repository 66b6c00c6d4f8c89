"""Reference designs of ranking, with the proportions of SASRec and HSTU.

SASRec has softmax attention with heads that together are as wide as the model, a ReLU feed-forward of the model's
width, embedding tables as wide as the model, and candidates scored by similarity. HSTU has pointwise attention without
a feed-forward; its tables and scores are those of SASRec. All designs have one to four layers. Width, depth, heads and
format vary.

References:
    Kang and McAuley 2018, Self-Attentive Sequential Recommendation, arXiv:1808.09781: 2 layers of width 50, one head.
    Zhai et al. 2024, Actions Speak Louder than Words, arXiv:2402.17152, section 4.1.1: SASRec and HSTU of 2 layers of
        width 50 with one head, and larger ones of 4 to 8 layers and 2 heads.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from chipwise.model.kinds.ranking.choices import RankingSpace
from chipwise.model.kinds.tables import FULL
from chipwise.model.space.space_spec import NO_FFN, SpaceSpec
from chipwise.training.tasks.one_pass import inputs_of
from chipwise.training.tasks.references import STEP, alike

HEADS = (1, 2)
DEEPEST = 4  # most layers in the small published models; HSTU-large has 8, but a width of only 50


def proportions(spec: SpaceSpec) -> Iterator[dict[str, object]]:
    """Yields designs as mappings of choices to values; widths are up to 1.5 times the space's largest."""
    own = {"vocab_size": inputs_of(spec, RankingSpace).outputs, "table": FULL, "score": "similarity"}
    widths = range(STEP, int(max(spec.d_model) * 1.5) + 1, STEP)
    for weights, (mixing, ffn) in itertools.product(spec.formats, (("attention", "relu"), ("hstu", NO_FFN))):
        for d_model, depth, heads in itertools.product(widths, range(1, DEEPEST + 1), HEADS):
            if d_model % (8 * heads) == 0:
                layer = {"heads": heads, "kv_heads": heads, "ffn": ffn, "ffn_width": d_model}
                yield alike(layer, d_model, depth, d_model // heads, weights) | own | {"mixing": mixing}
