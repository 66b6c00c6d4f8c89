"""A speech recogniser whose layers may differ from each other, for ``AutoModelForCTC`` with ``trust_remote_code=True``.

It needs ``chipwise_blocks.py`` in the same folder. ``config.arch`` describes the stem and the layers: two convolutions
over log-mel frames; pre-norm layers of global or chunked attention, optionally a convolution module, and feed-forwards;
and a matrix over characters at every position. The first character is CTC's blank. Axes: B batch, M bands, T frames or
positions, C channels, D width.
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
    """Convolutions over frames, as matrices times concatenated neighbouring frames."""

    def __init__(self, stem: dict[str, Any]) -> None:
        super().__init__()
        self.convs = stem["convs"]
        inputs = [stem["channels"], *(conv["channels"] for conv in self.convs)]
        self.frames = nn.ModuleList(
            nn.Linear(conv["kernel"] * into, conv["channels"]) for conv, into in zip(self.convs, inputs, strict=False)
        )

    def forward(self, sound_BMT: Tensor) -> Tensor:
        """The first layer's input (B, T', D), before positions are added."""
        x = sound_BMT.transpose(1, 2)
        for conv, matrix in zip(self.convs, self.frames, strict=True):
            seen_BTCK = F.pad(x, (0, 0, conv["pad"], conv["pad"])).unfold(1, conv["kernel"], conv["stride"])
            x = F.gelu(matrix(seen_BTCK.transpose(2, 3).flatten(2)))
        return x


class StretchAttentionBlock(AttentionBlock):
    """Attention over all positions, or within chunks."""

    def __init__(self, block: dict[str, Any], arch: dict[str, Any], number: int) -> None:
        super().__init__(block, arch, number)
        self.chunk = block.get("chunk")

    def forward(self, x_BTD: Tensor, mask: Tensor | None = None) -> Tensor:
        """The block's output, without the residual."""
        parts = x_BTD if self.chunk is None else x_BTD.reshape(-1, self.chunk, x_BTD.shape[2])
        return super().forward(parts, mask).reshape(x_BTD.shape)


class ConvModule(nn.Module):
    """Gated projection, depthwise filter over neighbouring positions, norm, output projection."""

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
    """A CTC speech recogniser."""

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
        """Logits (B, T, characters) of log-mel spectrograms (B, M, T), and the CTC loss if ``labels`` are given.

        Labels (B, L) are character numbers from 1; shorter texts are padded with 0.
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
