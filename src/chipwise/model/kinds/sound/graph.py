"""Input and output of a speech recogniser as ONNX nodes: it reads spectrograms and outputs logits per position."""

from __future__ import annotations

from chipwise.model.blocks.nodes import Nodes, Stream
from chipwise.model.kinds.sound.frames.onnx import add_characters, add_frames
from chipwise.model.kinds.sound.stem import SoundStem


def _stem(s: Stream) -> None:
    s.x = add_frames(s.graph, s.arch, s.arch.stem_as(SoundStem))


def _metadata(s: Stream) -> dict[str, object]:
    """The metadata entries, with the spectrogram's shape."""
    stem = s.arch.stem_as(SoundStem)
    return {"encodes": "characters", "image": list(stem.shape), "seconds": stem.seconds, "kv": []}


NODES = Nodes(
    stem=_stem,
    head=lambda s: add_characters(s.graph, s.arch, s.norm("norm")),
    metadata=_metadata,
    logits="all",
)
