"""Rules for cutting models: which rows and columns of a larger model's weights form a smaller model's weights.

Widths and vocabularies keep their first values (a smaller vocabulary is a prefix of a larger one); convolutions keep
the nearest taps. Query heads stay with their KV heads (``attention/slicing.py``). Layers are chosen evenly over the
depth. Properties without weights (activations, windows) may differ freely. If layers share weights in the
smaller model, all of them use the weights that the first of them gets.
"""

from __future__ import annotations

from chipwise.errors import SpecError
from chipwise.model.arch.arch import ArchSpec
from chipwise.model.arch.feed_forward import FeedForward
from chipwise.model.arch.layer import Layer
from chipwise.model.arch.mixers import Attention
from chipwise.model.blocks.attention.slicing import slice_attention
from chipwise.model.blocks.cut import Cut, Index, first
from chipwise.model.blocks.ffn.slicing import slice_feed_forward
from chipwise.model.kinds.table import form_of
from chipwise.model.walk.weights import weight_shapes


def cuts(sub: ArchSpec, whole: ArchSpec) -> dict[str, Cut]:
    """Maps the name of each weight of ``sub`` to the slice of a weight of ``whole`` that becomes this weight.

    Raises:
        SpecError: ``sub`` does not fit into ``whole``; the error names the field.
        Unsupported: chipwise does not build one of the models.
    """
    for name in ("norm", "norm_place", "positions", "norm_bias"):
        if getattr(sub, name) != getattr(whole, name):
            raise SpecError(f"{getattr(sub, name)} differs from the larger model's {getattr(whole, name)}", field=name)
    form_of(sub).check_cut(sub, whole)
    shapes, axes = weight_shapes(whole), _axes(sub, whole)
    owners = _owners(sub, whole)
    found: dict[str, Cut] = {}
    for name, shape in weight_shapes(sub).items():
        source = _source(name, owners)
        if source == "head.weight" and whole.tie_embeddings:
            source = "embedding.weight"
        if source not in shapes:
            raise SpecError(f"the larger model has no {source}, so the smaller model cannot have one", field=name)
        if any(small > large for small, large in zip(shape, shapes[source], strict=True)):
            raise SpecError(
                f"shape {shape} does not fit into the larger model's weight of shape {shapes[source]}", field=name
            )
        chosen = axes.get(name, {})
        found[name] = Cut(source, tuple(chosen.get(axis, first(size)) for axis, size in enumerate(shape)))
    return found


def kept_layers(depth: int, whole_depth: int) -> list[int]:
    """Numbers of the layers to keep in a model cut to ``depth`` layers: first, last, and evenly spaced ones between.

    >>> kept_layers(3, 6), kept_layers(4, 6), kept_layers(1, 6)
    ([0, 3, 5], [0, 2, 3, 5], [0])
    """
    if depth > whole_depth:
        raise SpecError(f"{depth} layers are more than the larger model's {whole_depth}", field="layers")
    if depth == 1:
        return [0]
    return [(2 * i * (whole_depth - 1) + depth - 1) // (2 * (depth - 1)) for i in range(depth)]


def _owners(sub: ArchSpec, whole: ArchSpec) -> dict[int, int]:
    """Maps each layer of ``sub`` with its own weights to the layer of ``whole`` that provides them, both as numbers."""
    kept = kept_layers(len(sub.layers), len(whole.layers))
    shares = [whole.layers[number].shares for number in kept]
    return {i: kept[i] if shares[i] is None else shares[i] for i, _ in sub.owned_layers()}  # type: ignore[misc]


def _source(name: str, owners: dict[int, int]) -> str:
    stack, _, rest = name.partition(".")
    number, _, rest = rest.partition(".")
    if stack not in ("layers", "positions", "modulations") or not number.isdecimal():
        return name
    return f"{stack}.{owners[int(number)]}.{rest}"


def _axes(sub: ArchSpec, whole: ArchSpec) -> dict[str, dict[int, Index]]:
    """Maps each weight's name and axis to the indices to keep. Axes that are not listed keep their first values."""
    axes: dict[str, dict[int, Index]] = {}
    owners = _owners(sub, whole)
    for i, layer in sub.owned_layers():
        try:
            for name, chosen in _layer(layer, whole.layers[owners[i]]).items():
                place = f"positions.{i}.weight" if name == "attention.positions" else f"layers.{i}.{name}"
                axes[place] = chosen
        except SpecError as error:
            raise error.inside(field=f"layers[{i}]") from None
    sources = {name: _source(name, owners) for name in weight_shapes(sub)}
    return axes | form_of(sub).cut_axes(sub, whole, sources)


def _layer(layer: Layer, whole: Layer) -> dict[str, dict[int, Index]]:
    axes: dict[str, dict[int, Index]] = {}
    if isinstance(layer.attention, Attention) and isinstance(whole.attention, Attention):
        try:
            axes = {
                f"attention.{name}": chosen
                for name, chosen in slice_attention(layer.attention, whole.attention).items()
            }
        except SpecError as error:
            raise error.inside(field="attention") from None
    if isinstance(layer.ffn, FeedForward) and isinstance(whole.ffn, FeedForward):
        try:
            slice_feed_forward(layer.ffn, whole.ffn)
        except SpecError as error:
            raise error.inside(field="ffn") from None
    for name in ("attention_conv", "ffn_conv"):
        taps, most = getattr(layer, name), getattr(whole, name)
        if 0 < taps < most:
            axes[f"{name}.weight"] = {2: slice(most - taps, most)}  # the last taps are those of the nearest positions
    return axes
