"""A deployable design: an architecture and the number formats of its matrices."""

from __future__ import annotations

from dataclasses import dataclass

from chipwise.core.digest import digest
from chipwise.core.fields import check_fields, later
from chipwise.errors import SpecError
from chipwise.model.arch.arch import ArchSpec
from chipwise.model.arch.formats import WeightFormats, matrix_of, read_formats
from chipwise.model.kinds.ranking.stem import FUSIONS

USUALLY_FUSED = ("qkv",)


@dataclass(frozen=True, slots=True, kw_only=True)
class Design:
    """A deployable design: an architecture and the number formats of its matrices.

    ``weights`` is the format of every projection and the head, or a text with several formats (see ``formats.py``:
    ``int4/int8 head:int8``, ``fp32 0.up:int8``). The patch matrix has the head's format unless the text names it. The
    token table, norms and biases stay FP32, so a quantised tied head is a second copy of the table (except in GGUF
    files, whose token table has the head's format). Layers that share weights share their format.

    ``fused`` names the groups of operators that a ranking model's graph fuses (see ``FUSIONS``). Fusing does not
    change the model's outputs. Other models have no such choice.
    """

    arch: ArchSpec
    weights: str = "fp32"
    fused: tuple[str, ...] = later(USUALLY_FUSED)

    def __post_init__(self) -> None:
        check_fields(self)
        if unknown := set(self.fused) - set(FUSIONS):
            raise SpecError(f"{min(unknown)!r} is not one of {', '.join(FUSIONS)}", field="fused")
        object.__setattr__(self, "fused", tuple(name for name in FUSIONS if name in self.fused))
        known = self.arch.stem.fusions
        if self.fused != USUALLY_FUSED and not known:
            raise SpecError("only ranking models can fuse operators", field="fused")
        formats = self.formats
        for i, layer in enumerate(self.arch.layers):
            if layer.shares is not None and formats.layers[i] != formats.layers[layer.shares]:
                raise SpecError(
                    f"layer {i} uses the weights of layer {layer.shares}, so its format must be "
                    f"{formats.layers[layer.shares]}, not {formats.layers[i]}",
                    field="weights",
                )
        for name, _ in formats.matrices:
            number, inside, _ = name.partition(".")
            owner = self.arch.layers[int(number)].shares if inside else None
            if owner is not None:
                raise SpecError(
                    f"layer {number} uses layer {owner}'s weights; state the format of layer {owner}", field="weights"
                )
        object.__setattr__(self, "weights", str(formats))  # canonical spelling

    @property
    def formats(self) -> WeightFormats:
        """The formats of each layer and of the head."""
        return read_formats(self.weights, len(self.arch.layers))

    def format_of(self, name: str) -> str:
        """The format of the weight ``name`` (a name in the torch module's state dict)."""
        matrix = matrix_of(name)
        return "fp32" if matrix is None else self.formats.of(matrix)

    @property
    def digest(self) -> str:
        """Digest of the architecture, the formats and the fusions."""
        written = [] if self.fused == USUALLY_FUSED else [self.fused]
        return digest([self.arch.digest, self.weights, *written])
