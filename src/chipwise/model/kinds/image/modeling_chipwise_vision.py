"""An image classifier whose layers may differ from each other, for ``AutoModelForImageClassification`` with
``trust_remote_code=True``.

It needs ``chipwise_blocks.py`` in the same folder. ``config.arch`` describes the stem and the layers: patches,
optionally after convolutions; pre-norm layers of feed-forwards and attention over all positions; learned positions or a
bias for each distance; a class token or the mean of all positions. A question's words may follow the image's tokens, or
attend to them by cross-attention. Axes: B batch, C channels, Y and X rows and columns, T tokens, S image tokens for
cross-attention, P distances, N heads, H head size, D width.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers.modeling_outputs import ImageClassifierOutput

from chipwise.model.kinds.chipwise_blocks import (
    ArchModel,
    AttentionBlock,
    ChipwiseConfig,
    FeedForwardBlock,
    Projections,
    cut_patches,
    make_layers,
    make_norm,
)

__all__ = ["ChipwiseConfig", "ChipwiseForAudioClassification", "ChipwiseForImageClassification"]


class Patches(nn.Module):
    """Cuts an image into patches, projects them, and puts the class token before them."""

    def __init__(self, stem: dict[str, Any], d_model: int) -> None:
        super().__init__()
        convs = list(stem["convs"])
        self.edge = stem["patch"] // 2 ** len(convs)
        shapes = zip([stem["channels"], *convs], convs, strict=False)
        axes = stem.get("axes", 2)
        conv = nn.Conv2d if axes == 2 else nn.Conv1d
        self.convs = nn.ModuleList(conv(into, out, 3, stride=2, padding=1) for into, out in shapes)
        values = self.edge**axes * (convs[-1] if convs else stem["channels"])
        self.projection = nn.Linear(values, d_model, bias=stem["bias"])
        prefix = stem["prefix_tokens"]
        self.prefix = nn.Embedding(prefix, d_model) if prefix else None

    def forward(self, x_BCYX: Tensor) -> Tensor:
        """The class token, if there is one, and the projected patches (B, T, D), without positions."""
        for conv in self.convs:
            x_BCYX = F.gelu(conv(x_BCYX))
        x_BTD = self.projection(cut_patches(x_BCYX, self.edge))
        if self.prefix is not None:
            x_BTD = torch.cat((self.prefix.weight.expand(len(x_BTD), -1, -1), x_BTD), dim=1)
        return x_BTD


class Projector(nn.Module):
    """Turns patches into tokens: averages or joins four neighbours, then applies matrices with a GELU between them."""

    def __init__(self, projector: dict[str, Any], d_model: int) -> None:
        super().__init__()
        self.pool, self.join = projector.get("pool", 1), projector.get("join", 1)
        widths = [d_model * self.join**2, *projector["widths"]]
        bias = projector.get("bias", True)
        self.matrices = nn.ModuleList(nn.Linear(widths[i], widths[i + 1], bias=bias) for i in range(len(widths) - 1))

    def forward(self, x_BPD: Tensor) -> Tensor:
        """Tokens (B, T, D)."""
        batch, patches, width = x_BPD.shape
        side, x = self.pool * self.join, x_BPD
        if side > 1:
            count = int(patches**0.5) // side
            x = x.reshape(batch, count, side, count, side, width).transpose(2, 3)
            x = x.reshape(batch, count * count, side * side, width)
            x = x.mean(2) if self.pool > 1 else x.reshape(batch, count * count, side * side * width)
        for i, matrix in enumerate(self.matrices):
            x = matrix(x if i == 0 else F.gelu(x))
        return x


class ImageAttentionBlock(AttentionBlock):
    """Attention over the image, optionally with a bias for each distance."""

    def __init__(self, block: dict[str, Any], arch: dict[str, Any], number: int) -> None:
        super().__init__(block, arch, number)
        self.stem = arch["stem"]

    def forward(self, x_BTD: Tensor, mask: Tensor | None = None) -> Tensor:
        """The block's output, without the residual. ``mask`` is the table of position biases, (P, N)."""
        bias = None if mask is None else mask[self.places(mask.device)].permute(2, 0, 1)[None]
        return super().forward(x_BTD, bias)

    def places(self, device: torch.device) -> Tensor:
        """For each pair of positions, including a class token: the pair's row in the table of position biases."""
        stem, axes = self.stem, self.stem.get("axes", 2)
        side = stem["image_size"] // stem["patch"]
        rows = (2 * side - 1) ** axes
        found = torch.zeros((side**axes, side**axes), dtype=torch.long, device=device)
        for axis in torch.meshgrid(*[torch.arange(side, device=device)] * axes, indexing="ij"):
            flat = axis.flatten()
            found = found * (2 * side - 1) + flat[:, None] - flat + side - 1
        if not stem["prefix_tokens"]:
            return found
        found = F.pad(found, (1, 0, 1, 0), value=rows + 2)
        found[0, 1:], found[1:, 0] = rows, rows + 1
        return found


class CrossAttentionBlock(Projections):
    """Cross-attention of every word to all tokens of the image."""

    def forward(self, x_BTD: Tensor, image_BSD: Tensor) -> Tensor:
        """The block's output, without the residual."""
        q, k, v = (self.by_heads(part) for part in (self.q(x_BTD), self.k(image_BSD), self.v(image_BSD)))
        return self.attend(q, k, v)


def make_tables(arch: dict[str, Any]) -> nn.ModuleDict:
    """The position-bias tables of the layers that have one, each (distances, heads)."""
    blocks = {str(i): layer["attention"] or {} for i, layer in enumerate(arch["layers"])}
    rows = {name: block.get("relative_buckets", 0) for name, block in blocks.items()}
    return nn.ModuleDict({name: nn.Embedding(n, blocks[name]["heads"]) for name, n in rows.items() if n})


class ChipwiseForImageClassification(ArchModel):
    """Classifies images, or answers questions about them: each class is then an answer."""

    main_input_name = "pixel_values"

    def __init__(self, config: ChipwiseConfig) -> None:
        super().__init__(config)
        arch = self.arch
        self.pooling = arch.get("pooling", "first")
        self.stem = Patches(arch["stem"], arch["d_model"])
        projector, question = arch.get("projector"), arch.get("question")
        self.projector = None if projector is None else Projector(projector, arch["d_model"])
        self.words = None if question is None else nn.Embedding(question["words"], arch["d_model"])
        self.image_norm = make_norm(arch) if any(layer.get("cross") for layer in arch["layers"]) else None
        self.learned = arch["positions"] == "learned"
        self.positions = nn.Embedding(arch["max_tokens"], arch["d_model"]) if self.learned else make_tables(arch)
        self.layers = make_layers(arch, attention=ImageAttentionBlock, cross=CrossAttentionBlock, ffn=FeedForwardBlock)
        self.norm = make_norm(arch)
        self.head = nn.Linear(arch["d_model"], arch["classes"])
        self.post_init()

    def forward(
        self,
        pixel_values: Tensor,
        input_ids: Tensor | None = None,
        labels: Tensor | None = None,
        return_dict: bool | None = None,
        **kwargs: object,
    ) -> ImageClassifierOutput | tuple[Tensor, ...]:
        """Logits (B, classes) of images (B, C, Y, X), and the loss if ``labels`` are given.

        A model that answers questions also needs the question's words ``input_ids`` (B, Q); its classes are answers.
        """
        x_BTD = self.stem(pixel_values)
        if self.projector is not None:
            x_BTD = self.projector(x_BTD)
        if self.words is not None:
            if input_ids is None:
                raise ValueError("this model answers questions: pass the question's words as input_ids")
            x_BTD = torch.cat((x_BTD, self.words(input_ids)), dim=1)
        if self.learned:
            x_BTD = x_BTD + self.positions.weight
        tables, image_BSD = dict(self.positions.named_children()), None
        if self.image_norm is not None and input_ids is not None:  # only the words pass through the layers
            asked = input_ids.shape[1]
            image_BSD, x_BTD = self.image_norm(x_BTD[:, :-asked]), x_BTD[:, -asked:]
        for name, layer in self.layers.items():
            table_PN = tables[name].weight if name in tables else None
            x_BTD = layer(x_BTD, attention=table_PN, cross=image_BSD)
        place = {"first": 0, "last": -1}.get(self.pooling)
        state = self.norm(x_BTD).mean(1) if place is None else self.norm(x_BTD[:, place])
        logits = self.head(state)
        loss = None if labels is None else F.cross_entropy(logits, labels)
        output = ImageClassifierOutput(loss=loss, logits=logits)
        return output.to_tuple() if return_dict is False else output


class ChipwiseForAudioClassification(ChipwiseForImageClassification):
    """A classifier of signals, such as log-mel spectrograms."""

    main_input_name = "input_values"

    def forward(  # type: ignore[override]
        self, input_values: Tensor, labels: Tensor | None = None, return_dict: bool | None = None, **kwargs: object
    ) -> ImageClassifierOutput | tuple[Tensor, ...]:
        """Logits (B, classes) of signals (B, C, X), and the loss if ``labels`` are given."""
        return super().forward(input_values, labels=labels, return_dict=return_dict)
