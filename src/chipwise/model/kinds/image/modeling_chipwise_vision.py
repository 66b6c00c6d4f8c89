"""An image classifier whose layers may all differ, for ``AutoModelForImageClassification`` with
``trust_remote_code=True``.

Self-contained: it needs torch and transformers. ``config.arch`` says what the stem and the layers are: patches, perhaps
after convolutions; pre-norm layers of attention over all positions or within squares of patches, and feed-forwards;
learned positions or a bias of each distance; a class token or the mean of all positions. A question's words may stand
behind the image's tokens, or see them by cross-attention. Axes: B batch, C channels, Y and X rows and columns, T
tokens, S tokens of the image beside them, P distances, N heads, H head size, D width.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import ImageClassifierOutput

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "silu": F.silu,
}
HIDDEN = -1e9  # added to the scores of positions that do not see each other


class ChipwiseConfig(PretrainedConfig):
    """``arch`` is the architecture as plain data; the usual fields are derived from it."""

    model_type = "chipwise"

    def __init__(self, arch: dict[str, Any] | None = None, **kwargs: Any) -> None:
        self.arch = arch
        if arch is not None:
            self.hidden_size = arch["d_model"]
            self.num_hidden_layers = len(arch["layers"])
            self.image_size, self.patch_size = arch["stem"]["image_size"], arch["stem"]["patch"]
            self.num_channels = arch["stem"]["channels"]
        super().__init__(**kwargs)


def make_norm(arch: dict[str, Any]) -> nn.Module:
    """The norm over the model's width."""
    if arch["norm"] == "rmsnorm":
        return nn.RMSNorm(arch["d_model"], eps=arch["norm_eps"])
    return nn.LayerNorm(arch["d_model"], eps=arch["norm_eps"], bias=arch["norm_bias"])


class Patches(nn.Module):
    """From an image to its patches, with the class token before them."""

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
        """The inputs of the first layer without their positions, (B, T, D)."""
        for conv in self.convs:
            x_BCYX = F.gelu(conv(x_BCYX))
        x_BTD = self.projection(self.cut(x_BCYX))
        if self.prefix is not None:
            x_BTD = torch.cat((self.prefix.weight.expand(len(x_BTD), -1, -1), x_BTD), dim=1)
        return x_BTD

    def cut(self, x_BCYX: Tensor) -> Tensor:
        """The values of each patch of images (B, C, Y, X), or of each slice of signals (B, C, X)."""
        edge = self.edge
        if x_BCYX.ndim == 3:
            batch, channels, frames = x_BCYX.shape
            parts = x_BCYX.reshape(batch, channels, frames // edge, edge)
            return parts.transpose(1, 2).reshape(batch, -1, channels * edge)
        batch, channels, rows, columns = x_BCYX.shape
        parts = x_BCYX.reshape(batch, channels, rows // edge, edge, columns // edge, edge)
        return parts.permute(0, 2, 4, 1, 3, 5).reshape(batch, -1, channels * edge * edge)


class Projector(nn.Module):
    """From patches to tokens: squares of four averaged or joined, then matrices with a GELU between."""

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


class AttentionBlock(nn.Module):
    """Every position sees all others of its image, or of its square of patches, filled up at the far edges.

    Squares of every second layer are moved by half of one where the block says so.
    """

    def __init__(self, block: dict[str, Any], d_model: int, stem: dict[str, Any], layer: int) -> None:
        super().__init__()
        self.heads, self.head_size = block["heads"], block["head_size"]
        self.square, self.stem = block.get("square"), stem
        self.shift = self.square // 2 if self.square and block.get("shift") and layer % 2 else 0
        width = self.heads * self.head_size
        self.q = nn.Linear(d_model, width, bias=block["qkv_bias"])
        self.k = nn.Linear(d_model, width, bias=block["qkv_bias"])
        self.v = nn.Linear(d_model, width, bias=block["qkv_bias"])
        self.out = nn.Linear(width, d_model, bias=block["out_bias"])

    def forward(self, x_BTD: Tensor, table_PN: Tensor | None) -> Tensor:
        """The block's output, without the residual; ``table_PN`` has the biases of distances."""
        bias = None if table_PN is None else table_PN[self.places(table_PN.device)].permute(2, 0, 1)[None]
        if self.square is None:
            return self.attend(x_BTD, bias)
        batch, tokens, width = x_BTD.shape
        grid, side = int(tokens**0.5), self.square
        count = -(-grid // side)
        room = count * side - grid
        x = F.pad(x_BTD.reshape(batch, grid, grid, width), (0, 0, 0, room, 0, room))
        if self.shift:
            x = torch.roll(x, (-self.shift, -self.shift), (1, 2))
            apart = self.hidden(count, side, x).repeat(batch, 1, 1)[:, None]
            bias = apart if bias is None else bias + apart
        parts = x.reshape(batch, count, side, count, side, width).transpose(2, 3)
        y = self.attend(parts.reshape(-1, side * side, width), bias)
        y = y.reshape(batch, count, count, side, side, width).transpose(2, 3)
        y = y.reshape(batch, count * side, count * side, width)
        if self.shift:
            y = torch.roll(y, (self.shift, self.shift), (1, 2))
        return y[:, :grid, :grid].reshape(batch, tokens, width)

    def hidden(self, count: int, side: int, like: Tensor) -> Tensor:
        """What hides positions from each other that only the move brought together, (squares, side², side²)."""
        filled = count * side
        place = torch.arange(filled, device=like.device)
        region = (place >= filled - side).long() + (place >= filled - self.shift).long()
        both = (region[:, None] * 3 + region).reshape(count, side, count, side).transpose(1, 2)
        both = both.reshape(count * count, side * side)
        return torch.where(both[:, :, None] == both[:, None], 0.0, HIDDEN).to(like.dtype)

    def places(self, device: torch.device) -> Tensor:
        """The row of the table of each pair of positions: of an image with its class token, or of a square."""
        stem, axes = self.stem, self.stem.get("axes", 2)
        side = self.square or stem["image_size"] // stem["patch"]
        rows = (2 * side - 1) ** axes
        found = torch.zeros((side**axes, side**axes), dtype=torch.long, device=device)
        for axis in torch.meshgrid(*[torch.arange(side, device=device)] * axes, indexing="ij"):
            flat = axis.flatten()
            found = found * (2 * side - 1) + flat[:, None] - flat + side - 1
        if self.square is not None or not stem["prefix_tokens"]:
            return found
        found = F.pad(found, (1, 0, 1, 0), value=rows + 2)
        found[0, 1:], found[1:, 0] = rows, rows + 1
        return found

    def attend(self, x_BTD: Tensor, bias_1NTT: Tensor | None) -> Tensor:
        """Attention of every position to all."""
        batch, tokens, _ = x_BTD.shape
        q, k, v = (
            part(x_BTD).view(batch, tokens, self.heads, self.head_size).transpose(1, 2)
            for part in (self.q, self.k, self.v)
        )
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=bias_1NTT)
        return self.out(y.transpose(1, 2).reshape(batch, tokens, -1))


class CrossAttentionBlock(nn.Module):
    """Every word sees all tokens of the image."""

    def __init__(self, block: dict[str, Any], d_model: int) -> None:
        super().__init__()
        self.heads, self.head_size = block["heads"], block["head_size"]
        width = self.heads * self.head_size
        self.q = nn.Linear(d_model, width, bias=block["qkv_bias"])
        self.k = nn.Linear(d_model, width, bias=block["qkv_bias"])
        self.v = nn.Linear(d_model, width, bias=block["qkv_bias"])
        self.out = nn.Linear(width, d_model, bias=block["out_bias"])

    def forward(self, x_BTD: Tensor, image_BSD: Tensor) -> Tensor:
        """The block's output, without the residual."""
        q, k, v = (
            part.view(*part.shape[:2], self.heads, self.head_size).transpose(1, 2)
            for part in (self.q(x_BTD), self.k(image_BSD), self.v(image_BSD))
        )
        return self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


class FeedForwardBlock(nn.Module):
    """``down(act(up(x)))``, or ``down(act(gate(x)) * up(x))`` when gated."""

    def __init__(self, block: dict[str, Any], d_model: int) -> None:
        super().__init__()
        self.activation = ACTIVATIONS[block["activation"]]
        width, bias = block["width"], block["bias"]
        self.gate = nn.Linear(d_model, width, bias=bias) if block["gated"] else None
        self.up = nn.Linear(d_model, width, bias=bias)
        self.down = nn.Linear(width, d_model, bias=bias)

    def forward(self, x_BTD: Tensor) -> Tensor:
        """The block's output, without the residual."""
        if self.gate is None:
            return self.down(self.activation(self.up(x_BTD)))
        return self.down(self.activation(self.gate(x_BTD)) * self.up(x_BTD))


class ImageLayer(nn.Module):
    """One pre-norm residual layer."""

    def __init__(self, layer: dict[str, Any], arch: dict[str, Any], number: int) -> None:
        super().__init__()
        self.attention_norm = self.attention = self.cross_norm = self.cross = self.ffn_norm = self.ffn = None
        if layer["attention"] is not None:
            self.attention = AttentionBlock(layer["attention"], arch["d_model"], arch["stem"], number)
            self.attention_norm = make_norm(arch)
        if layer.get("cross") is not None:
            self.cross, self.cross_norm = CrossAttentionBlock(layer["cross"], arch["d_model"]), make_norm(arch)
        if layer["ffn"] is not None:
            self.ffn, self.ffn_norm = FeedForwardBlock(layer["ffn"], arch["d_model"]), make_norm(arch)

    def forward(self, x_BTD: Tensor, table_PN: Tensor | None, image_BSD: Tensor | None) -> Tensor:
        """The residual stream after the layer; ``table_PN`` has the biases of distances, ``image_BSD`` what is seen."""
        if self.attention is not None and self.attention_norm is not None:
            x_BTD = x_BTD + self.attention(self.attention_norm(x_BTD), table_PN)
        if self.cross is not None and self.cross_norm is not None:
            x_BTD = x_BTD + self.cross(self.cross_norm(x_BTD), image_BSD)
        if self.ffn is not None and self.ffn_norm is not None:
            x_BTD = x_BTD + self.ffn(self.ffn_norm(x_BTD))
        return x_BTD


def make_tables(arch: dict[str, Any]) -> nn.ModuleDict:
    """The biases of distances of the layers that have any, each (distances, heads)."""
    blocks = {str(i): layer["attention"] or {} for i, layer in enumerate(arch["layers"])}
    rows = {name: block.get("relative_buckets", 0) for name, block in blocks.items()}
    return nn.ModuleDict({name: nn.Embedding(n, blocks[name]["heads"]) for name, n in rows.items() if n})


class ChipwiseForImageClassification(PreTrainedModel):
    """The classifier."""

    config_class = ChipwiseConfig
    main_input_name = "pixel_values"
    _no_split_modules = ("ImageLayer",)
    _supports_sdpa = True

    def __init__(self, config: ChipwiseConfig) -> None:
        super().__init__(config)
        arch = config.arch
        if arch is None:
            raise ValueError("the config holds no arch, so there is no model to build")
        self.pooling = arch.get("pooling", "first")
        self.stem = Patches(arch["stem"], arch["d_model"])
        projector, question = arch.get("projector"), arch.get("question")
        self.projector = None if projector is None else Projector(projector, arch["d_model"])
        self.words = None if question is None else nn.Embedding(question["words"], arch["d_model"])
        self.image_norm = make_norm(arch) if any(layer.get("cross") for layer in arch["layers"]) else None
        self.learned = arch["positions"] == "learned"
        self.positions = nn.Embedding(arch["max_tokens"], arch["d_model"]) if self.learned else make_tables(arch)
        self.layers = nn.ModuleDict({str(i): ImageLayer(layer, arch, i) for i, layer in enumerate(arch["layers"])})
        self.norm = make_norm(arch)
        self.head = nn.Linear(arch["d_model"], arch["classes"])
        self.post_init()

    def forward(
        self,
        pixel_values: Tensor,
        input_ids: Tensor | None = None,
        labels: Tensor | None = None,
        return_dict: bool | None = None,
        **kwargs: Any,
    ) -> ImageClassifierOutput | tuple[Any, ...]:
        """Logits (B, classes) of images (B, C, Y, X), and the loss where there are ``labels``.

        A model of questions also takes their words ``input_ids`` (B, Q), whose answers are the classes.
        """
        x_BTD = self.stem(pixel_values)
        if self.projector is not None:
            x_BTD = self.projector(x_BTD)
        if self.words is not None:
            if input_ids is None:
                raise ValueError("this model answers questions: give their words as input_ids")
            x_BTD = torch.cat((x_BTD, self.words(input_ids)), dim=1)
        if self.learned:
            x_BTD = x_BTD + self.positions.weight
        tables, image_BSD = dict(self.positions.named_children()), None
        if self.image_norm is not None and input_ids is not None:  # the words pass the layers alone
            asked = input_ids.shape[1]
            image_BSD, x_BTD = self.image_norm(x_BTD[:, :-asked]), x_BTD[:, -asked:]
        for name, layer in self.layers.items():
            x_BTD = layer(x_BTD, tables[name].weight if name in tables else None, image_BSD)
        place = {"first": 0, "last": -1}.get(self.pooling)
        state = self.norm(x_BTD).mean(1) if place is None else self.norm(x_BTD[:, place])
        logits = self.head(state)
        loss = None if labels is None else F.cross_entropy(logits, labels)
        output = ImageClassifierOutput(loss=loss, logits=logits)
        return output.to_tuple() if return_dict is False else output


class ChipwiseForAudioClassification(ChipwiseForImageClassification):
    """The classifier of signals: log-mel spectrograms."""

    main_input_name = "input_values"

    def forward(  # type: ignore[override]
        self, input_values: Tensor, labels: Tensor | None = None, return_dict: bool | None = None, **kwargs: Any
    ) -> ImageClassifierOutput | tuple[Any, ...]:
        """Logits (B, classes) of signals (B, C, X), and the loss where there are ``labels``."""
        return super().forward(input_values, labels=labels, return_dict=return_dict, **kwargs)
