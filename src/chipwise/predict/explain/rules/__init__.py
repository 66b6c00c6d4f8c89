"""The rules, one small file each, listed in ``RULES``; other packages add theirs by entry points ``chipwise.rules``."""

from __future__ import annotations

from chipwise.core.tables import Table

_HERE = "chipwise.predict.explain.rules"
RULES = Table(
    kind="rule",
    group="chipwise.rules",
    rows={
        name: f"{_HERE}.{name}:rule"
        for name in (
            "activation_precision",
            "aligned_width",
            "batch",
            "checkpointing",
            "depth",
            "fits",
            "fused_chains",
            "graphs",
            "grouped_experts",
            "head_size",
            "hidden_size",
            "kv_heads",
            "kv_heads_by_layer",
            "kv_precision",
            "latent_attention",
            "layer_precision",
            "other_chip",
            "parallel_blocks",
            "plain_ffn",
            "power",
            "prefill_chunks",
            "prefix_sharing",
            "replicated_kv",
            "runtime_fusion",
            "small_vocabulary",
            "tensor_parallel",
            "tied_embeddings",
            "vocabulary",
            "wave_quantisation",
            "weight_precision",
            "weight_sharing",
            "window",
        )
    },
)
