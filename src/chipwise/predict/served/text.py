"""Lowers the parts of text models outside their layers: the token table, per-layer embeddings, and the head."""

from __future__ import annotations

from collections.abc import Iterator

from chipwise.model.ops.embedding import SampleOp
from chipwise.predict.served.setting import PlacedOp, Setting, Step


def stem(setting: Setting, step: Step) -> Iterator[PlacedOp]:
    """The operator that looks up each token's row in the table."""
    formats, arch = setting.formats, setting.arch
    rows = -(-arch.vocab_size // setting.plan.tp)
    table = formats.head if arch.tie_embeddings else formats.table
    yield setting.table("embedding", step.tokens, arch.d_model, rows, weights=table)


def layer_inputs(setting: Setting, step: Step) -> Iterator[PlacedOp]:
    """The operators of per-layer embeddings, if any: a second table, a projection, and a gate in each layer."""
    arch, width, tokens = setting.arch, setting.arch.stem.layer_inputs, step.tokens
    depth = len(arch.layers)
    if not width:
        return
    yield setting.table("layer_inputs.table", tokens, width * depth, arch.vocab_size)
    yield setting.matmul("project", tokens, arch.d_model, width * depth).inside("layer_inputs")
    yield setting.norm_of("layer_inputs.norm", tokens * depth, width)
    yield setting.elementwise("add", "add", tokens * width * depth).inside("layer_inputs")
    each = (
        setting.matmul("gate", tokens, arch.d_model, width),
        setting.elementwise("gate_mul", "gelu_tanh_mul", tokens * width),
        setting.matmul("out", tokens, width, arch.d_model),
        *setting.norm(tokens),
    )
    for part in each:
        yield part.inside("layer_inputs", depth)


def ends(setting: Setting, step: Step) -> Iterator[PlacedOp]:
    """The operators after the layers: logits of the last position or of all, and sampling; none for encoders."""
    arch, plan = setting.arch, setting.plan
    rows = step.tokens if step.every_logit else step.batch
    if not arch.head.writes:
        return
    multiple = setting.runtime.vocabulary_multiple
    vocabulary = -(-(-(-arch.vocab_size // multiple) * multiple) // plan.tp)
    yield setting.head_matmul("logits", rows, arch.d_model, vocabulary)
    yield from setting.collective("all_gather", rows * vocabulary * plan.tp, plan.tp)
    if arch.causal:
        sample = SampleOp(rows=rows, vocabulary=arch.vocab_size, activations=setting.formats.activations)
        yield PlacedOp(place="sample", op=sample)
