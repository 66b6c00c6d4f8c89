"""Cuts a smaller feed-forward out of a larger one: it keeps the first hidden values, and drops an unused gate."""

from __future__ import annotations

from chipwise.errors import SpecError
from chipwise.model.arch.feed_forward import FeedForward


def slice_feed_forward(sub: FeedForward, whole: FeedForward) -> None:
    """Checks that ``sub`` can be cut from ``whole``: each weight of ``sub`` is the start of a weight of ``whole``.

    Raises:
        SpecError: ``sub`` is wider than ``whole``, has other groups, or has a gate that ``whole`` lacks.
    """
    if sub.width > whole.width:
        raise SpecError(f"{sub.width} is more than the larger model's {whole.width}", field="width")
    if sub.groups != whole.groups:
        raise SpecError(f"{sub.groups} groups cannot be cut from the larger model's {whole.groups}", field="groups")
    if sub.gated and not whole.gated:
        raise SpecError(
            "the larger model's feed-forward has no gate, so the smaller model's cannot have one", field="gated"
        )
