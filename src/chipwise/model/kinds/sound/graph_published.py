"""Input and output of a pretrained audio encoder as ONNX nodes: sound in, states or logits of positions out."""

from __future__ import annotations

from chipwise.model.blocks.attention.onnx_encoder import with_key_biases
from chipwise.model.blocks.nodes import Nodes, Stream
from chipwise.model.kinds.sound.hearing.onnx import add_sound
from chipwise.model.kinds.sound.stem import Ctc, SoundStem


def _stem(s: Stream) -> None:
    s.x = add_sound(s.graph, s.arch, s.arch.stem_as(SoundStem))


def _head(s: Stream) -> None:
    """``logits`` (B, positions, characters), or ``states`` (B, positions, D) if the model has no head."""
    x, graph, arch = s.end(), s.graph, s.arch
    stem = arch.stem_as(SoundStem)
    length: int | str = stem.tokens if stem.position_rows else "positions"
    if isinstance(arch.head, Ctc):
        graph.projection("logits", x, parts=["head"], key="head", k=arch.d_model, widths=[arch.outputs], bias=True)
        graph.output("logits", ["batch", length, arch.outputs])
    else:
        graph.node("Identity", [x], "states")
        graph.output("states", ["batch", length, arch.d_model])


def _metadata(s: Stream) -> dict[str, object]:
    """Metadata: shape of the output, and the length of a typical sound.

    ``gives`` is the shape of a request's output, which is dynamic in the graph if sounds may have any length.
    """
    stem = s.arch.stem_as(SoundStem)
    ctc = isinstance(s.arch.head, Ctc)
    shape = stem.shape if stem.channels > 1 else (stem.frames,)
    given = [stem.tokens, s.arch.outputs if ctc else s.arch.d_model]
    known = {"image": list(shape), "seconds": stem.seconds, "gives": given}
    return {"encodes": "characters" if ctc else "sound", "kv": [], **known}


NODES = Nodes(stem=_stem, head=_head, metadata=_metadata, logits="all", weights=with_key_biases)
