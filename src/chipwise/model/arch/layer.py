"""A layer as a frozen dataclass: two blocks, each with a residual connection.

This module needs no torch and computes no costs.

``x += attention(norm(x)); x += ffn(norm(x))``; either block may be absent, or have a short convolution before it
("Canon layers", Allen-Zhu 2025, Physics of Language Models part 4.1). Between attention and feed-forward, decoder
layers of an encoder-decoder have cross-attention to the encoder; layers of a model that answers questions about an
image may have cross-attention to the image.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from chipwise.core.fields import check_fields, later
from chipwise.model.arch.feed_forward import FeedForward, FeedForwardBlock
from chipwise.model.arch.mixers import Attention, ConvModule, Mixer

Block = Mixer | ConvModule | FeedForwardBlock
if TYPE_CHECKING:
    # Most packages handle only some classes of blocks and reject the others (see departures.py) before they read a
    # block's fields. So a layer's blocks are Any to a type checker; at run time they are exactly these classes.
    AnyMixer = Any
    AnyFeedForward = Any
else:
    AnyMixer = Mixer
    AnyFeedForward = FeedForwardBlock


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """One residual layer. ``shares`` is the number of an earlier layer with the same weights."""

    attention: AnyMixer | None
    ffn: AnyFeedForward | None
    shares: int | None = None
    cross: Attention | None = later(None)  # noqa: RUF009  (attention to the encoder's results or image tokens)
    parallel: bool = later(False)  # both blocks read the layer's input
    attention_norm: bool = later(True)
    ffn_norm: bool = later(True)  # False: a parallel layer with one norm for both blocks
    attention_conv: int = later(0)  # taps of a causal depthwise convolution between norm and block; 0 is none
    ffn_conv: int = later(0)
    scale: bool = later(False)  # learned factors that scale each block's output (DINOv2, BEiT)
    first_ffn: FeedForward | None = later(None)  # noqa: RUF009  (before attention; it and ffn count half: Conformer)
    conv: ConvModule | None = later(None)  # noqa: RUF009  (between attention and ``ffn``)
    last_norm: bool = later(False)  # a norm of the layer's output

    def __post_init__(self) -> None:
        check_fields(self)

    @property
    def convs(self) -> int:
        """Total number of taps of the layer's two convolutions."""
        return self.attention_conv + self.ffn_conv

    def conv_state_values(self, d_model: int) -> int:
        """Number of values that the convolutions keep between passes: their last inputs."""
        return sum(max(0, taps - 1) * d_model for taps in (self.attention_conv, self.ffn_conv))

    def blocks(self) -> Iterator[Block]:
        """The layer's blocks, in execution order."""
        return (block for _, block in self.named_blocks())

    def named_blocks(self) -> Iterator[tuple[str, Block]]:
        """The layer's blocks with their field names, in execution order."""
        found = ((name, getattr(self, name)) for name in ("first_ffn", "attention", "cross", "conv", "ffn"))
        return ((name, block) for name, block in found if block is not None)

    def norms(self) -> int:
        """Number of norms in the layer. If a block has a norm before it and another after it, they count as one."""
        counted = [self.cross is not None, self.attention is not None and self.attention_norm, self.last_norm]
        counted += [self.first_ffn is not None, self.conv is not None]
        return sum([*counted, self.ffn is not None and self.ffn_norm])
