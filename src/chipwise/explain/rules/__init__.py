"""The rules: one small file each. ``RULES`` is the table; others add theirs by entry points ``chipwise.rules``."""

from __future__ import annotations

from chipwise.core.tables import Table

RULES = Table(
    kind="rule",
    group="chipwise.rules",
    rows={},
)
