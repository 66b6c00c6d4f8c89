"""Lowers a model on several devices to the kernels that one device runs in a pass, fused as the runtime does.

Sizes may be arrays, so that one lowering serves all requests of a table that share model, plan and formats.
Equal layers are lowered once and counted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

from chipwise.errors import Unsupported
from chipwise.model.arch.ends import Pooler, States
from chipwise.model.arch.feed_forward import FeedForward, MixtureOfExperts
from chipwise.model.arch.layer import Layer
from chipwise.model.arch.mixers import Attention, GatedDelta, LatentAttention, Mamba2, Mixer, ShortConv
from chipwise.model.kinds.denoiser.denoiser import Denoiser
from chipwise.model.kinds.question.question import image_of
from chipwise.model.kinds.ranking.stem import RankingStem
from chipwise.model.kinds.sentence.stem import SentenceStem
from chipwise.model.kinds.sound.stem import SoundStem
from chipwise.model.ops.collective import CollectiveOp
from chipwise.model.ops.embedding import EmbeddingOp, SampleOp
from chipwise.model.ops.norm import NormOp
from chipwise.predict.served import feed_forward, images, mixers, ranking, sentence, sound, towers
from chipwise.predict.served.formats import Formats
from chipwise.predict.served.setting import PlacedOp, Setting, Step

STEMS: Mapping[type, Callable[[Setting, Step], Iterator[PlacedOp]]] = {
    RankingStem: ranking.stem,
    SentenceStem: sentence.stem,
    SoundStem: lambda setting, step: sound.stem(setting.arch.stem_as(SoundStem), setting, step.batch),
}
"""What makes positions of requests, by the class of the stem; tokens and images are lowered below."""


def lower_pass(setting: Setting, step: Step) -> tuple[PlacedOp, ...]:
    """The kernels of one pass on one device of each pipeline stage, in order.

    Raises:
        Unsupported: A block cannot be lowered.
    """
    if isinstance(setting.arch.head, Denoiser):
        raise Unsupported(
            f"{setting.arch.name} is a denoiser; denoisers can only be priced on a calibrated machine (--device "
            f"here), published diffusion models by their names (chipwise estimate DiT-XL/2)"
        )
    return tuple(_parts(setting, step))


def _parts(setting: Setting, step: Step) -> Iterator[PlacedOp]:
    arch, plan = setting.arch, setting.plan
    for tower, read in zip(arch.towers, step.towers, strict=False):  # empty for text-only requests
        yield from _tower(towers.tower_setting(tower, setting), read)
    if arch.encoder and step.encode:
        encoding = replace(step, query_tokens=step.encoder_tokens, past_tokens=0)
        reader = setting if arch.encoder_width == arch.d_model else replace(setting, arch=arch.encoding())
        if arch.encoder_stem is None:
            yield _embedding(reader, encoding).inside("encoder")
        else:
            for part in sound.stem(arch.encoder_stem, reader, encoding.batch):
                yield part.inside("encoder.stem")
        for part in (*_stack(arch.encoder, reader, encoding), *reader.norm(encoding.tokens)):
            yield part.inside("encoder")
    if arch.reads_tokens:
        yield _embedding(setting, step)
    elif (own := STEMS.get(type(arch.stem))) is not None:
        for part in own(setting, step):
            yield part.inside("stem")
    else:
        image = image_of(arch.stem)
        for part in images.patches(image, setting, step):
            yield part.inside("stem")
        if arch.stem.asks:
            of_image = replace(step, query_tokens=image.tokens)
            normed = setting.norm(step.batch * arch.image_tokens) if arch.crosses else ()
            for part in (*towers.project(setting, of_image), *normed):
                yield part.inside("projector")
        for place, stage, narrow, taken in images.stages(image, setting, step):
            for part in _stack(narrow.arch.layers, narrow, taken):
                yield part.inside(place)
            width = images.width_after(image, setting, place)
            for part in images.merge(narrow, taken, into=width, norm_after=stage.norm_after):
                yield part.inside(place)
    if arch.embedding_norm:
        for part in setting.norm(step.tokens):
            yield part.inside("embedding")
    if arch.stem.layer_inputs:
        yield from _layer_inputs(setting, step)
    yield from _stack(arch.layers, setting, step, own_formats=True)
    rows = step.tokens if step.every_logit or isinstance(arch.head, States) or not arch.reads_tokens else step.batch
    if arch.final_norm:
        for part in setting.norm(rows):
            yield part.inside("head")
    if isinstance(arch.head, Pooler):
        yield setting.plain_matmul("pooler", step.batch, arch.d_model, arch.d_model, bias=True).inside("head")
    if isinstance(arch.stem, RankingStem):
        for part in ranking.scores(arch.stem, setting, step):
            yield part.inside("head")
    elif not arch.reads_tokens:
        for part in images.ends(setting, step):
            yield part.inside("head")
    if not arch.head.writes:
        return
    multiple = setting.runtime.vocabulary_multiple
    vocabulary = -(-(-(-arch.vocab_size // multiple) * multiple) // plan.tp)
    yield setting.head_matmul("logits", rows, arch.d_model, vocabulary).inside("head")
    for part in setting.collective("all_gather", rows * vocabulary * plan.tp, plan.tp):
        yield part.inside("head")
    if arch.causal:
        sample = SampleOp(rows=rows, vocabulary=arch.vocab_size, activations=setting.formats.activations)
        yield PlacedOp(place="head.sample", op=sample)
    if plan.pp > 1:
        payload = setting.activation_bytes(step.tokens * arch.d_model)
        send = CollectiveOp(collective="p2p", payload_bytes=payload, devices=2, activations=setting.formats.activations)
        yield PlacedOp(place="stages.send", op=send, count=plan.pp - 1)


def _tower(setting: Setting, step: Step) -> Iterator[PlacedOp]:
    """A tower's pass and its projector."""
    for part in lower_pass(setting, step):
        yield part.inside(towers.place_of(setting.arch))
    for part in towers.project(setting, step):
        yield part.inside("projector").inside(towers.place_of(setting.arch))


def _embedding(setting: Setting, step: Step) -> PlacedOp:
    formats, arch = setting.formats, setting.arch
    rows = -(-arch.vocab_size // setting.plan.tp)
    table = formats.head if arch.tie_embeddings else formats.table
    op = EmbeddingOp(tokens=step.tokens, width=arch.d_model, rows=rows, weights=table, activations=formats.activations)
    return PlacedOp(place="embedding", op=op)


def _layer_inputs(setting: Setting, step: Step) -> Iterator[PlacedOp]:
    """Per-layer token embeddings: a second table, a projection, and a gate in each layer."""
    arch, formats, width, tokens = setting.arch, setting.formats, setting.arch.stem.layer_inputs, step.tokens
    depth = len(arch.layers)
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


def _stack(layers: tuple[Layer, ...], setting: Setting, step: Step, *, own_formats: bool = False) -> Iterator[PlacedOp]:
    for whole in alike(layers):
        for group, asked in _by_format(whole, layers, setting) if own_formats else [(whole, setting)]:
            for name, parts in _layer(group.layer, asked, step):
                for part in parts:
                    yield part.inside(f"{group.name}.{name}", group.count, group.owned)


def _by_format(group: Alike, layers: tuple[Layer, ...], setting: Setting) -> Iterator[tuple[Alike, Setting]]:
    """Splits a group of layers by the formats of their matrices."""
    formats = setting.formats
    if not formats.wide_layers and not formats.layers:
        yield group, setting
        return
    parts: dict[Formats, list[int]] = {}
    for number in group.numbers:
        parts.setdefault(formats.of_layer(number), []).append(number)
    for found, numbers in parts.items():
        yield _group(numbers, layers), setting if found == formats else replace(setting, formats=found)


def _layer(layer: Layer, setting: Setting, step: Step) -> Iterator[tuple[str, Iterator[PlacedOp]]]:
    """The blocks with their norms. Parallel blocks are summed on each device, before the all-reduce."""
    both = setting.arch.norm_place == "both"
    if layer.first_ffn is not None:
        yield "first_ffn", setting.norm(step.tokens)
        yield "first_ffn", feed_forward.feed_forward(layer.first_ffn, setting, step.tokens)
    joined = layer.parallel and layer.attention is not None and layer.ffn is not None
    if layer.attention is not None:
        if layer.attention_norm:
            yield "attention", setting.norm(step.tokens)
        if layer.attention_conv:
            yield "attention", iter([mixers.conv(setting, step, setting.arch.d_model, layer.attention_conv)])
        mixed = _mixer(layer.attention, setting, step)
        yield "attention", (part for part in mixed if part.op.kind != "all_reduce") if joined else mixed
        if layer.scale:
            yield "attention", iter([setting.elementwise("scale", "mul", step.tokens * setting.arch.d_model)])
        if both:
            yield "attention", setting.norm(step.tokens)
    if layer.cross is not None:
        yield "cross", setting.norm(step.tokens)
        yield "cross", mixers.cross_attention(layer.cross, setting, step)
    if layer.conv is not None:
        yield "conv", setting.norm(step.tokens)
        yield "conv", mixers.conv_module(layer.conv, setting, step)
    if layer.ffn is not None:
        if layer.ffn_norm:
            yield "ffn", setting.norm(step.tokens)
        if layer.ffn_conv:
            yield "ffn", iter([mixers.conv(setting, step, setting.arch.d_model, layer.ffn_conv)])
        if joined:
            yield "ffn", iter([setting.elementwise("join", "add", step.tokens * setting.arch.d_model)])
        if isinstance(layer.ffn, MixtureOfExperts):
            yield "ffn", feed_forward.mixture(layer.ffn, setting, step.tokens)
        elif isinstance(layer.ffn, FeedForward):
            yield "ffn", feed_forward.feed_forward(layer.ffn, setting, step.tokens)
        if layer.scale:
            yield "ffn", iter([setting.elementwise("scale", "mul", step.tokens * setting.arch.d_model)])
        if both:
            yield "ffn", setting.norm(step.tokens)
    if layer.last_norm:
        yield "last", setting.norm(step.tokens)


def _mixer(block: Mixer, setting: Setting, step: Step) -> Iterator[PlacedOp]:
    if isinstance(block, Attention):
        return mixers.attention(block, setting, step)
    if isinstance(block, LatentAttention):
        return mixers.latent_attention(block, setting, step)
    if isinstance(block, GatedDelta):
        return mixers.gated_delta(block, setting, step)
    if isinstance(block, Mamba2):
        return mixers.mamba2(block, setting, step)
    if isinstance(block, ShortConv):
        return mixers.short_conv(block, setting, step)
    raise Unsupported(f"{type(block).__name__} blocks of {setting.arch.name} cannot be priced")


@dataclass(frozen=True, slots=True, kw_only=True)
class Alike:
    """A group of equal layers: its name in breakdowns, the layers' numbers, and how many own their weights."""

    name: str
    numbers: tuple[int, ...]
    owned: int
    layer: Layer

    @property
    def count(self) -> int:
        """Number of layers."""
        return len(self.numbers)


def alike(layers: tuple[Layer, ...]) -> tuple[Alike, ...]:
    """Groups of equal layers."""
    known = _ALIKE.get(id(layers))
    if known is None or known[0] is not layers:
        if len(_ALIKE) > 4096:
            _ALIKE.clear()
        known = _ALIKE[id(layers)] = (layers, tuple(_alike(layers)))
    return known[1]


_ALIKE: dict[int, tuple[tuple[Layer, ...], tuple[Alike, ...]]] = {}
"""Cached by identity, since hashing a hundred layers takes longer than lowering one."""


def _alike(layers: tuple[Layer, ...]) -> Iterator[Alike]:
    groups: dict[Layer, list[int]] = {}
    for i, layer in enumerate(layers):
        groups.setdefault(replace(layer, shares=None), []).append(i)
    for numbers in groups.values():
        yield _group(numbers, layers)


def _group(numbers: list[int], layers: tuple[Layer, ...]) -> Alike:
    first, last = numbers[0], numbers[-1]
    spread = f"{first}" if first == last else f"{first}-{last}"
    every = "" if len(numbers) == last - first + 1 else f" ({len(numbers)} of them)"
    owned = sum(layers[i].shares is None for i in numbers)
    return Alike(name=f"layers {spread}{every}", numbers=tuple(numbers), owned=owned, layer=layers[first])
