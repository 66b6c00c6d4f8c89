"""Input and output of a speech recogniser as ONNX nodes: spectrograms in, logits of every position out."""

from __future__ import annotations

from chipwise.model.arch.mixers import Attention
from chipwise.model.blocks.attention.onnx_encoder import add_heads
from chipwise.model.blocks.nodes import Nodes, Stream
from chipwise.model.blocks.onnx_graph import reshaped
from chipwise.model.kinds.sound.frames.onnx import add_characters, add_frames
from chipwise.model.kinds.sound.stem import SoundStem


def _stem(s: Stream) -> None:
    s.x = add_frames(s.graph, s.arch, s.arch.stem_as(SoundStem))


def attend(s: Stream, layer: int, block: Attention, x: str, key: str, last: bool) -> str:
    """Attention over the whole sound, or within chunks (by a reshape, which moves no values)."""
    d, place = s.arch.d_model, f"layers.{layer}.attention"
    if block.chunk is None:
        return add_heads(s.graph, block, layer=layer, x=x, d_model=d, mask=None)
    x = reshaped(s.graph, x, [-1, block.chunk, d], f"{place}.stretches")
    heads = add_heads(s.graph, block, layer=layer, x=x, d_model=d, mask=None)
    return reshaped(s.graph, heads, [-1, s.arch.max_tokens, block.query_width], f"{place}.whole")


def _metadata(s: Stream) -> dict[str, object]:
    """Metadata: shape of the spectrogram."""
    stem = s.arch.stem_as(SoundStem)
    return {"encodes": "characters", "image": list(stem.shape), "seconds": stem.seconds, "kv": []}


NODES = Nodes(
    stem=_stem,
    attend=attend,
    head=lambda s: add_characters(s.graph, s.arch, s.norm("norm")),
    metadata=_metadata,
    logits="all",
)
