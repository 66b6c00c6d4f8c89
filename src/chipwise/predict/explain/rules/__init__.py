"""The rules, one file per subject. ``RULES`` lists them; packages add rules as ``chipwise.rules`` entry points."""

from chipwise.core.tables import Table

_HERE = "chipwise.predict.explain.rules"
_SUBJECTS = {
    "precision": ("activation_precision", "kv_precision", "layer_precision", "weight_precision"),
    "sizes": (
        "aligned_width",
        "head_size",
        "hidden_size",
        "small_vocabulary",
        "tied_embeddings",
        "vocabulary",
        "wave_quantisation",
    ),
    "attention": ("kv_heads", "kv_heads_by_layer", "latent_attention", "replicated_kv", "window"),
    "blocks": ("depth", "grouped_experts", "parallel_blocks", "plain_ffn", "weight_sharing"),
    "serving": ("batch", "fused_chains", "graphs", "prefill_chunks", "prefix_sharing", "runtime_fusion"),
    "chips": ("checkpointing", "fits", "other_chip", "power", "tensor_parallel"),
}
_FILE_OF = {name: subject for subject, names in _SUBJECTS.items() for name in names}
RULES = Table(
    kind="rule", group="chipwise.rules", rows={name: f"{_HERE}.{_FILE_OF[name]}:{name}" for name in sorted(_FILE_OF)}
)
