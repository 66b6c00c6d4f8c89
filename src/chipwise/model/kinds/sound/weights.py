"""Names and shapes of a speech recogniser's weights outside its layers."""

from __future__ import annotations

from chipwise.model.arch.arch import ArchSpec
from chipwise.model.blocks.weights import Shapes, linear, norm
from chipwise.model.kinds.sound.stem import SoundStem


def frames(arch: ArchSpec) -> Shapes:
    """Weights of the matrices over frames, and of the position table."""
    stem = arch.stem_as(SoundStem)
    for i, (into, out) in enumerate(stem.matrices(arch.d_model)):
        yield from linear(f"stem.frames.{i}", out, into, bias=True)
    yield "positions.weight", (arch.max_tokens, arch.d_model)


def characters(arch: ArchSpec) -> Shapes:
    """Weights of the final norm and of the matrix over characters."""
    yield from norm(arch, "norm")
    yield from linear("head", arch.outputs, arch.d_model, bias=True)
