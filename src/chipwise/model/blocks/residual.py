"""The residual layer of models that compute a request in one pass, in torch. Axes: B batch, T positions, D width."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from torch import Tensor, nn

from chipwise.model.arch.arch import ArchSpec
from chipwise.model.arch.layer import Layer
from chipwise.model.blocks.attention.encoder import EncoderAttention
from chipwise.model.blocks.conv_module.module import ConvModuleBlock
from chipwise.model.blocks.cross.module import CrossAttention
from chipwise.model.blocks.ffn.module import FeedForwardModule
from chipwise.model.blocks.norm.module import make_norm

BLOCKS: Mapping[str, Callable[..., nn.Module]] = {
    "cross": CrossAttention,
    "conv": ConvModuleBlock,
    "ffn": FeedForwardModule,
}


class ResidualLayer(nn.Module):
    """Blocks with residual connections. The norm of each block comes before the block, or after the residual sum.

    ``attention`` builds a module from an attention block and the model's width.
    """

    def __init__(self, arch: ArchSpec, layer: Layer, attention: Callable[..., nn.Module] = EncoderAttention) -> None:
        super().__init__()
        made_by = {**BLOCKS, "attention": attention}
        self.after = arch.norm_place == "post"
        self.names = [name for name, _ in layer.named_blocks()]
        for name, block in layer.named_blocks():
            made = {name: made_by[name](block, arch.d_model)}
            norm = {f"{name}_norm": make_norm(arch)}
            for key, module in ({**made, **norm} if self.after else {**norm, **made}).items():
                self.add_module(key, module)

    def forward(self, x_BTD: Tensor, **beside: tuple[Tensor | None, ...]) -> Tensor:
        """The residual stream after the layer. ``beside`` holds additional inputs of blocks, by block name."""
        for name in self.names:
            block, norm, given = getattr(self, name), getattr(self, f"{name}_norm"), beside.get(name, ())
            x_BTD = norm(x_BTD + block(x_BTD, *given)) if self.after else x_BTD + block(norm(x_BTD), *given)
        return x_BTD
