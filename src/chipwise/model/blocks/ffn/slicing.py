"""Slices feed-forwards: the first values of the width are kept; a plain feed-forward drops the gate."""

from __future__ import annotations

from chipwise.errors import SpecError
from chipwise.model.arch.feed_forward import FeedForward


def slice_feed_forward(sub: FeedForward, whole: FeedForward) -> None:
    """Checks that ``sub`` can be cut from ``whole``: each weight is the first part of the weight with the same name.

    Raises:
        SpecError: ``sub`` is wider than ``whole``, or gated where ``whole`` has no gate.
    """
    if sub.width > whole.width:
        raise SpecError(f"{sub.width} is more than the whole's {whole.width}", field="width")
    if sub.groups != whole.groups:
        raise SpecError(f"{sub.groups} groups are not cut from the whole's {whole.groups}", field="groups")
    if sub.gated and not whole.gated:
        raise SpecError("the whole has no gate to cut one from", field="gated")
