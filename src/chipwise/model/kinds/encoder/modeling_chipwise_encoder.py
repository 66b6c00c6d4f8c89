"""A text encoder whose layers may differ from each other, for ``AutoModel`` with ``trust_remote_code=True``.

It needs ``chipwise_blocks.py`` in the same folder. ``config.arch`` describes the layers: each has an attention block, a
feed-forward block, both or none, with a norm after each residual sum. Axes: B batch, T tokens, N heads, H head size, D
width.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from transformers.modeling_outputs import BaseModelOutputWithPooling

from chipwise.model.kinds.chipwise_blocks import (
    AttentionBlock,
    ChipwiseConfig,
    FeedForwardBlock,
    TextModel,
    make_layers,
    make_norm,
)

__all__ = ["ChipwiseConfig", "ChipwiseEncoder"]


class ChipwiseEncoder(TextModel):
    """The encoder, with its pooler if it has one."""

    def __init__(self, config: ChipwiseConfig) -> None:
        super().__init__(config)
        arch = self.arch
        width, types = arch["d_model"], arch.get("token_types", 0)
        self.embedding = nn.Embedding(arch["vocab_size"], width)
        self.positions = nn.Embedding(arch["max_tokens"], width)
        self.token_types = nn.Embedding(types, width) if types else None
        self.embedding_norm = make_norm(arch) if arch.get("embedding_norm") else None
        self.layers = make_layers(arch, attention=AttentionBlock, ffn=FeedForwardBlock)
        self.pooler = nn.Linear(width, width) if arch.get("head") == "pooler" else None
        self.post_init()

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        return_dict: bool | None = None,
        **kwargs: object,
    ) -> BaseModelOutputWithPooling | tuple[Tensor, ...]:
        """The last layer's states. ``attention_mask`` is (B, T) with zeros on padding."""
        x_BTD = self.embedding(input_ids) + self.positions.weight[: input_ids.shape[1]]
        if self.token_types is not None:
            types = torch.zeros_like(input_ids) if token_type_ids is None else token_type_ids
            x_BTD = x_BTD + self.token_types(types)
        if self.embedding_norm is not None:
            x_BTD = self.embedding_norm(x_BTD)
        seen = None if attention_mask is None else attention_mask[:, None, None].bool()
        for layer in self.layers.values():
            x_BTD = layer(x_BTD, attention=seen)
        pooled = None if self.pooler is None else torch.tanh(self.pooler(x_BTD[:, 0]))
        output = BaseModelOutputWithPooling(last_hidden_state=x_BTD, pooler_output=pooled)
        return output.to_tuple() if return_dict is False else output
