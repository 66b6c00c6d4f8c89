"""A transcribing model whose layers may all differ, for ``AutoModelForCTC`` with ``trust_remote_code=True``.

Needs ``chipwise_blocks.py`` beside it. ``config.arch`` says what the stem and the layers are: two convolutions
over log-mel frames; pre-norm layers of attention over the whole sound or within stretches, perhaps a convolution
module, and feed-forwards; characters at every position, of which the first is CTC's blank. Axes: B batch, M bands,
T frames or positions, C channels, D width.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers.modeling_outputs import CausalLMOutput

from chipwise.model.kinds.chipwise_blocks import (
    ArchModel,
    AttentionBlock,
    ChipwiseConfig,
    FeedForwardBlock,
    make_layers,
    make_norm,
)

__all__ = ["ChipwiseConfig", "ChipwiseForCTC"]


class Frames(nn.Module):
    """Convolutions over frames, as matrices times neighbouring frames side by side."""

    def __init__(self, stem: dict[str, Any]) -> None:
        super().__init__()
        self.convs = stem["convs"]
        inputs = [stem["channels"], *(conv["channels"] for conv in self.convs)]
        self.frames = nn.ModuleList(
            nn.Linear(conv["kernel"] * into, conv["channels"]) for conv, into in zip(self.convs, inputs, strict=False)
        )

    def forward(self, sound_BMT: Tensor) -> Tensor:
        """Positions (B, T', D)."""
        x = sound_BMT.transpose(1, 2)
        for conv, matrix in zip(self.convs, self.frames, strict=True):
            seen_BTCK = F.pad(x, (0, 0, conv["pad"], conv["pad"])).unfold(1, conv["kernel"], conv["stride"])
            x = F.gelu(matrix(seen_BTCK.transpose(2, 3).flatten(2)))
        return x


class StretchAttentionBlock(AttentionBlock):
    """Every position sees all others, or those of its own stretch."""

    def __init__(self, block: dict[str, Any], arch: dict[str, Any], number: int) -> None:
        super().__init__(block, arch, number)
        self.chunk = block.get("chunk")

    def forward(self, x_BTD: Tensor, mask: Tensor | None = None) -> Tensor:
        """The block's output, without the residual."""
        parts = x_BTD if self.chunk is None else x_BTD.reshape(-1, self.chunk, x_BTD.shape[2])
        return super().forward(parts, mask).reshape(x_BTD.shape)


class ConvModule(nn.Module):
    """A gate, a depthwise filter over neighbouring positions, a norm, and out."""

    def __init__(self, block: dict[str, Any], arch: dict[str, Any], number: int) -> None:
        super().__init__()
        d_model, taps = arch["d_model"], block["taps"]
        self.into = nn.Linear(d_model, 2 * d_model)
        self.filter = nn.Conv1d(d_model, d_model, taps, padding=taps // 2, groups=d_model)
        self.norm = nn.LayerNorm(d_model)
        self.out = nn.Linear(d_model, d_model)

    def forward(self, x_BTD: Tensor) -> Tensor:
        """The block's output, without the residual."""
        gated_BDT = F.glu(self.into(x_BTD)).transpose(1, 2)
        return self.out(F.silu(self.norm(self.filter(gated_BDT).transpose(1, 2))))


class ChipwiseForCTC(ArchModel):
    """The transcribing model."""

    main_input_name = "input_features"

    def __init__(self, config: ChipwiseConfig) -> None:
        super().__init__(config)
        arch = self.arch
        self.stem = Frames(arch["stem"])
        self.positions = nn.Embedding(arch["max_tokens"], arch["d_model"])
        self.layers = make_layers(arch, attention=StretchAttentionBlock, conv=ConvModule, ffn=FeedForwardBlock)
        self.norm = make_norm(arch)
        self.head = nn.Linear(arch["d_model"], arch["classes"])
        self.post_init()

    def forward(
        self, input_features: Tensor, labels: Tensor | None = None, return_dict: bool | None = None, **kwargs: object
    ) -> CausalLMOutput | tuple[Tensor, ...]:
        """Logits (B, T, characters) of log-mel spectrograms (B, M, T), and CTC's loss where there are ``labels``.

        Labels (B, L) are numbers of characters from 1 on; 0 fills shorter texts up.
        """
        x_BTD = self.stem(input_features) + self.positions.weight
        for layer in self.layers.values():
            x_BTD = layer(x_BTD)
        logits = self.head(self.norm(x_BTD))
        loss = None
        if labels is not None:
            heard = torch.full((len(logits),), logits.shape[1], dtype=torch.long)
            chances = logits.float().log_softmax(-1).transpose(0, 1)
            loss = F.ctc_loss(chances, labels, heard, (labels != 0).sum(1), zero_infinity=True)
        output = CausalLMOutput(loss=loss, logits=logits)
        return output.to_tuple() if return_dict is False else output
