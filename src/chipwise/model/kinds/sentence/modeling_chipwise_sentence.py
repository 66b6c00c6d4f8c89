"""A text classifier whose layers may differ from each other, for ``AutoModelForSequenceClassification``.

Load it with ``trust_remote_code=True``. It needs ``chipwise_blocks.py`` in the same folder. ``config.arch`` describes
the stem and the layers. Texts have a fixed length: the folder's tokenizer pads short ones in front. Axes: B batch, T
words, D width.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers.modeling_outputs import SequenceClassifierOutput

from chipwise.model.kinds.chipwise_blocks import (
    ArchModel,
    AttentionBlock,
    ChipwiseConfig,
    FeedForwardBlock,
    make_layers,
    make_norm,
)

__all__ = ["ChipwiseConfig", "ChipwiseForSequenceClassification"]


class Words(nn.Module):
    """The word table, followed by a matrix if its rows are narrower than the model."""

    def __init__(self, stem: dict[str, Any], width: int) -> None:
        super().__init__()
        self.words = nn.Embedding(stem["words"], stem["width"] or width)
        self.projection = nn.Linear(stem["width"], width, bias=False) if stem["width"] else None

    def forward(self, ids_BT: Tensor) -> Tensor:
        """The word embeddings (B, T, D), before positions are added."""
        x: Tensor = self.words(ids_BT)
        return x if self.projection is None else self.projection(x)


class ChipwiseForSequenceClassification(ArchModel):
    """A text classifier."""

    main_input_name = "input_ids"

    def __init__(self, config: ChipwiseConfig) -> None:
        super().__init__(config)
        arch = self.arch
        self.stem = Words(arch["stem"], arch["d_model"])
        self.positions = nn.Embedding(arch["max_tokens"], arch["d_model"])
        self.layers = make_layers(arch, attention=AttentionBlock, ffn=FeedForwardBlock)
        self.norm = make_norm(arch)
        self.head = nn.Linear(arch["d_model"], arch["classes"])
        self.post_init()

    def forward(
        self, input_ids: Tensor, labels: Tensor | None = None, return_dict: bool | None = None, **kwargs: object
    ) -> SequenceClassifierOutput | tuple[Tensor, ...]:
        """Logits (B, classes) of texts (B, T) of the full length, and the cross entropy if ``labels`` are given."""
        x_BTD = self.stem(input_ids) + self.positions.weight
        for layer in self.layers.values():
            x_BTD = layer(x_BTD)
        logits = self.head(torch.mean(self.norm(x_BTD), dim=1))
        loss = None if labels is None else F.cross_entropy(logits, labels)
        output = SequenceClassifierOutput(loss=loss, logits=logits)
        return output.to_tuple() if return_dict is False else output
