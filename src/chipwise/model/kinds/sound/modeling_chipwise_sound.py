"""A transcribing model whose layers may all differ, for ``AutoModelForCTC`` with ``trust_remote_code=True``.

Self-contained: it needs torch and transformers. ``config.arch`` says what the stem and the layers are: two convolutions
over log-mel frames; pre-norm layers of attention over the whole sound or within stretches, perhaps a convolution
module, and feed-forwards; characters at every position, of which the first is CTC's blank. Axes: B batch, M bands,
T frames or positions, C channels, D width.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutput

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "silu": F.silu,
}


class ChipwiseConfig(PretrainedConfig):
    """``arch`` is the architecture as plain data; the usual fields are derived from it."""

    model_type = "chipwise"

    def __init__(self, arch: dict[str, Any] | None = None, **kwargs: Any) -> None:
        self.arch = arch
        if arch is not None:
            self.hidden_size = arch["d_model"]
            self.num_hidden_layers = len(arch["layers"])
            self.num_mel_bins = arch["stem"]["channels"]
        super().__init__(**kwargs)


def make_norm(arch: dict[str, Any]) -> nn.Module:
    """The norm over the model's width."""
    if arch["norm"] == "rmsnorm":
        return nn.RMSNorm(arch["d_model"], eps=arch["norm_eps"])
    return nn.LayerNorm(arch["d_model"], eps=arch["norm_eps"], bias=arch["norm_bias"])


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


class AttentionBlock(nn.Module):
    """Every position sees all others, or those of its own stretch."""

    def __init__(self, block: dict[str, Any], d_model: int) -> None:
        super().__init__()
        self.heads, self.head_size, self.chunk = block["heads"], block["head_size"], block.get("chunk")
        width = self.heads * self.head_size
        self.q = nn.Linear(d_model, width, bias=block["qkv_bias"])
        self.k = nn.Linear(d_model, width, bias=block["qkv_bias"])
        self.v = nn.Linear(d_model, width, bias=block["qkv_bias"])
        self.out = nn.Linear(width, d_model, bias=block["out_bias"])

    def forward(self, x_BTD: Tensor) -> Tensor:
        """The block's output, without the residual."""
        shape = x_BTD.shape
        if self.chunk is not None:
            x_BTD = x_BTD.reshape(-1, self.chunk, shape[2])
        batch, tokens, _ = x_BTD.shape
        q, k, v = (
            part(x_BTD).view(batch, tokens, self.heads, self.head_size).transpose(1, 2)
            for part in (self.q, self.k, self.v)
        )
        y = F.scaled_dot_product_attention(q, k, v)
        return self.out(y.transpose(1, 2).reshape(batch, tokens, -1)).reshape(shape)


class ConvModule(nn.Module):
    """A gate, a depthwise filter over neighbouring positions, a norm, and out."""

    def __init__(self, block: dict[str, Any], d_model: int) -> None:
        super().__init__()
        taps = block["taps"]
        self.into = nn.Linear(d_model, 2 * d_model)
        self.filter = nn.Conv1d(d_model, d_model, taps, padding=taps // 2, groups=d_model)
        self.norm = nn.LayerNorm(d_model)
        self.out = nn.Linear(d_model, d_model)

    def forward(self, x_BTD: Tensor) -> Tensor:
        """The block's output, without the residual."""
        gated_BDT = F.glu(self.into(x_BTD)).transpose(1, 2)
        return self.out(F.silu(self.norm(self.filter(gated_BDT).transpose(1, 2))))


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


class SoundLayer(nn.Module):
    """One pre-norm residual layer."""

    def __init__(self, layer: dict[str, Any], arch: dict[str, Any]) -> None:
        super().__init__()
        self.attention_norm = self.attention = self.conv_norm = self.conv = self.ffn_norm = self.ffn = None
        if layer["attention"] is not None:
            self.attention, self.attention_norm = AttentionBlock(layer["attention"], arch["d_model"]), make_norm(arch)
        if layer.get("conv") is not None:
            self.conv, self.conv_norm = ConvModule(layer["conv"], arch["d_model"]), make_norm(arch)
        if layer["ffn"] is not None:
            self.ffn, self.ffn_norm = FeedForwardBlock(layer["ffn"], arch["d_model"]), make_norm(arch)

    def forward(self, x_BTD: Tensor) -> Tensor:
        """The residual stream after the layer."""
        for norm, block in (
            (self.attention_norm, self.attention),
            (self.conv_norm, self.conv),
            (self.ffn_norm, self.ffn),
        ):
            if block is not None and norm is not None:
                x_BTD = x_BTD + block(norm(x_BTD))
        return x_BTD


class ChipwiseForCTC(PreTrainedModel):
    """The transcribing model."""

    config_class = ChipwiseConfig
    main_input_name = "input_features"
    _no_split_modules = ("SoundLayer",)
    _supports_sdpa = True

    def __init__(self, config: ChipwiseConfig) -> None:
        super().__init__(config)
        arch = config.arch
        if arch is None:
            raise ValueError("the config holds no arch, so there is no model to build")
        self.stem = Frames(arch["stem"])
        self.positions = nn.Embedding(arch["max_tokens"], arch["d_model"])
        self.layers = nn.ModuleDict({str(i): SoundLayer(layer, arch) for i, layer in enumerate(arch["layers"])})
        self.norm = make_norm(arch)
        self.head = nn.Linear(arch["d_model"], arch["classes"])
        self.post_init()

    def forward(
        self, input_features: Tensor, labels: Tensor | None = None, return_dict: bool | None = None, **kwargs: Any
    ) -> CausalLMOutput | tuple[Any, ...]:
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
