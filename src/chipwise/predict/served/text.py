"""Lowers the parts of text models outside their layers: token table, per-layer inputs, and head."""

from __future__ import annotations

from collections.abc import Iterator

from chipwise.model.ops.embedding import EmbeddingOp, SampleOp
from chipwise.model.ops.norm import NormOp
from chipwise.predict.served.setting import PlacedOp, Setting, Step


def stem(setting: Setting, step: Step) -> Iterator[PlacedOp]:
    """Look-up of each token's row in the table."""
    formats, arch = setting.formats, setting.arch
    rows = -(-arch.vocab_size // setting.plan.tp)
    table = formats.head if arch.tie_embeddings else formats.table
    op = EmbeddingOp(tokens=step.tokens, width=arch.d_model, rows=rows, weights=table, activations=formats.activations)
    yield PlacedOp(place="embedding", op=op)


def layer_inputs(setting: Setting, step: Step) -> Iterator[PlacedOp]:
    """Per-layer token embeddings, if there are any: a second table, a projection, and a gate in each layer."""
    arch, formats, width, tokens = setting.arch, setting.formats, setting.arch.stem.layer_inputs, step.tokens
    depth = len(arch.layers)
    if not width:
        return
    yield PlacedOp(
        place="layer_inputs.table",
        op=EmbeddingOp(
            tokens=tokens,
            width=width * depth,
            rows=arch.vocab_size,
            weights=formats.table,
            activations=formats.activations,
        ),
    )
    yield setting.matmul("project", tokens, arch.d_model, width * depth).inside("layer_inputs")
    norm = NormOp(rows=tokens * depth, width=width, activations=formats.activations)
    yield PlacedOp(place="layer_inputs.norm", op=norm)
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
    """Logits of the last position or of all positions, and the choice of a token; nothing for an encoder."""
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
