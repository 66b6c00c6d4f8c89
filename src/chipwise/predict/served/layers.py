"""Lowers the layers of a model (blocks and norms) to operators. A group of equal layers is lowered only once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from chipwise.errors import Unsupported
from chipwise.model.arch.feed_forward import FeedForward, MixtureOfExperts
from chipwise.model.arch.layer import Layer
from chipwise.model.arch.mixers import Attention, GatedDelta, LatentAttention, Mamba2, Mixer, ShortConv
from chipwise.predict.served import feed_forward, mixers
from chipwise.predict.served.formats import Formats
from chipwise.predict.served.setting import PlacedOp, Setting, Step


def stack(layers: tuple[Layer, ...], setting: Setting, step: Step, *, own_formats: bool = False) -> Iterator[PlacedOp]:
    """The operators of ``layers``, where each group of equal layers is lowered once.

    With ``own_formats``, layers may differ in their number formats; otherwise all have the formats of ``setting``.
    """
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
    """The operators of each block and its norm. The outputs of parallel blocks are added before the all-reduce."""
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
    raise Unsupported(f"{type(block).__name__} blocks of {setting.arch.name} cannot be estimated on data sheets")


@dataclass(frozen=True, slots=True, kw_only=True)
class Alike:
    """A group of equal layers: its name in breakdowns, the layers' numbers, and how many have separate weights."""

    name: str
    numbers: tuple[int, ...]
    owned: int
    layer: Layer

    @property
    def count(self) -> int:
        """Number of layers in the group."""
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
"""Cache with the identity of the tuple of layers as key: hashing a hundred layers takes longer than lowering one."""


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
