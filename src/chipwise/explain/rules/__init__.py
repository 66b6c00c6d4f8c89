"""The rules: one small file each. ``RULES`` is the table; others add theirs by entry points ``chipwise.rules``."""

from __future__ import annotations

from chipwise.core.tables import Table

_HERE = "chipwise.explain.rules"
RULES = Table(
    kind="rule",
    group="chipwise.rules",
    rows={
        name: f"{_HERE}.{name}:rule"
        for name in (
            "aligned_width",
            "batch",
            "depth",
            "fits",
            "head_size",
            "kv_heads",
            "kv_precision",
            "other_chip",
            "plain_ffn",
            "runtime_fusion",
            "tensor_parallel",
            "tied_embeddings",
            "vocabulary",
            "weight_precision",
            "weight_sharing",
            "window",
        )
    },
)
