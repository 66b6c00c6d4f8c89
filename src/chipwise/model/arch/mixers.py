"""Blocks that mix sequence positions: attention, latent attention, two recurrences and convolutions.

Each block has methods that return its number of parameters (including biases and inner norms) and the number of values
that it keeps between passes. The number ``cache_values`` grows with the number of tokens; these values are stored in
the KV cache's format. The number ``state_values`` is fixed; these values are stored in the state's format.

References:
    Latent attention: DeepSeek-V2, arXiv:2405.04434. Gated delta: arXiv:2412.06464, as in Qwen3-Next.
    Mamba-2: arXiv:2405.21060, as in Nemotron-H, arXiv:2504.03624. Gated convolution: LFM2, arXiv:2511.23404.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from chipwise.core.fields import check_fields, later, not_negative, positive
from chipwise.errors import SpecError


@dataclass(frozen=True, slots=True, kw_only=True)
class Attention:
    """Grouped-query self-attention; ``kv_heads == heads`` is multi-head, ``kv_heads == 1`` multi-query."""

    heads: int
    kv_heads: int
    head_size: int
    qkv_bias: bool = False
    out_bias: bool = False
    qk_norm: bool = False  # RMSNorm on queries and keys
    rope: bool = True
    window: int | None = None  # tokens that a query attends to, itself included; None is all
    chunk: int | None = later(None)  # attention only within chunks of this many tokens (Llama 4)
    causal: bool = later(True)
    qk_norm_over: Literal["head", "all"] = later("head")  # per head (Qwen3), or over all heads (OLMo 2)
    gate: bool = later(False)  # output times a sigmoid of a second query-wide projection (Qwen3-Next)
    sinks: bool = later(False)  # a learned extra softmax score per head, without a value (gpt-oss)
    softcap: float | None = later(None)  # bound of the scores, by tanh (Gemma 2)
    relative_buckets: int = later(0)  # rows of a table of position biases, one column per head (T5, Swin)
    values_from_keys: bool = later(False)  # keys and values share a projection (Gemma 4's full layers)
    reuses_cache: bool = later(False)  # reads keys and values of an earlier layer (Gemma 4)
    square: int | None = later(None)  # attention within square windows of this many patches a side (Swin, ViTDet);
    # windows at the grid's edge are padded with zeros, as in Swin
    key_bias: bool = later(True)  # with ``qkv_bias``: whether keys have a bias (not in BEiT)
    pointwise: bool = later(False)  # SiLU of each score, not softmax; output normed and gated (HSTU)
    relative_keys: bool = later(False)  # relative position keys and two biases per head (Transformer-XL)
    shift: bool = later(False)  # every second layer's windows are shifted by half a window (Swin)
    cosine: bool = later(False)  # cosine scores with a learned scale per head (Swin v2)
    sub_norm: bool = later(False)  # a LayerNorm before the output projection (EVA02's image towers)
    patch_rope: bool = later(False)  # 2D rotary positions of patches (EVA02)
    bias_network: int = later(0)  # hidden width of an MLP that computes position biases (Swin v2)

    def __post_init__(self) -> None:
        check_fields(self)
        positive(self, "heads", "kv_heads", "head_size")
        if self.heads % self.kv_heads:
            raise SpecError(f"{self.kv_heads} KV heads do not divide {self.heads} heads", field="kv_heads")
        if self.rope and self.head_size % 2:
            raise SpecError(f"rotary positions need an even head size, not {self.head_size}", field="head_size")
        for name in ("window", "chunk", "square"):
            if getattr(self, name) is not None:
                positive(self, name)
        if self.square is not None and (self.causal or self.window is not None or self.chunk is not None):
            raise SpecError(
                "square windows are for images: set `causal: false`, and leave out `window` and `chunk`", field="square"
            )
        if self.softcap is not None and self.softcap <= 0:
            raise SpecError(f"must be above 0, not {self.softcap}", field="softcap")
        not_negative(self, "relative_buckets")
        if self.window is not None and self.chunk is not None:
            raise SpecError("attention has a window or chunks, not both", field="chunk")
        if self.pointwise and self.gate:
            raise SpecError("pointwise attention always has a gate; leave this field out", field="gate")

    @property
    def query_width(self) -> int:
        """Total width of all query heads."""
        return self.heads * self.head_size

    @property
    def kv_width(self) -> int:
        """Total width of all key heads, which equals that of all value heads."""
        return self.kv_heads * self.head_size

    @property
    def projected_kv_width(self) -> int:
        """Total width of the key and value projections.

        If the keys also serve as values, it is the width of the key projection alone. It is 0 if the block reads the
        cache of an earlier layer.
        """
        return 0 if self.reuses_cache else self.kv_width * (1 if self.values_from_keys else 2)

    def parameters(self, d_model: int) -> int:
        """Number of parameters of the projections, q/k norms, gate, sinks and position biases."""
        q, new = self.query_width, self.projected_kv_width
        weights = d_model * (q + new) + q * d_model + (d_model * q if self.gate or self.pointwise else 0)
        biases = (q + new + (q if self.pointwise else 0) if self.qkv_bias else 0) + (d_model if self.out_bias else 0)
        if self.qkv_bias and not self.key_bias:
            biases -= self.kv_width
        placed = d_model * q + 2 * q if self.relative_keys else 0
        placed += self.bias_network * (3 + self.heads)  # inputs: 2 distances, a bias; the second matrix has no bias
        a_head = self.sinks + self.relative_buckets + self.cosine
        return weights + biases + placed + self._norm_parameters() + self.heads * a_head

    def _norm_parameters(self) -> int:
        own = self.query_width * (self.pointwise + 2 * self.sub_norm)  # norms of the output
        if not self.qk_norm:
            return own
        query, key = (self.head_size,) * 2 if self.qk_norm_over == "head" else (self.query_width, self.kv_width)
        return own + query + (0 if self.reuses_cache else key)

    def cache_values(self, tokens: int) -> int:
        """Number of cached key and value elements for ``tokens`` positions.

        A window or chunk limits the number of positions that are cached.
        """
        if not self.causal or self.reuses_cache:
            return 0
        return 2 * self.kv_width * min(tokens, self.window or self.chunk or tokens)

    def state_values(self) -> int:
        """Returns 0: attention has no state of fixed size, only a KV cache."""
        return 0


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentAttention:
    """Multi-head latent attention: keys and values of all heads are computed from one small cached vector per token.

    A query or key of a head has ``nope_size`` values without positions and ``rope_size`` rotary values. The keys of all
    heads share the same rotary values.
    """

    heads: int
    kv_rank: int
    nope_size: int
    rope_size: int
    value_size: int
    q_rank: int | None = None  # rank of the queries' projection, with a norm; None is full rank
    bias: bool = False  # in the projections to the latents and in the output projection

    def __post_init__(self) -> None:
        check_fields(self)
        positive(self, "heads", "kv_rank", "nope_size", "rope_size", "value_size")
        if self.q_rank is not None:
            positive(self, "q_rank")

    @property
    def query_width(self) -> int:
        """Total width of all query heads."""
        return self.heads * (self.nope_size + self.rope_size)

    def parameters(self, d_model: int) -> int:
        """Number of parameters of the projections to and from the latents, their norms, and the output projection."""
        if self.q_rank is None:
            queries = d_model * self.query_width
        else:
            queries = d_model * self.q_rank + self.q_rank + self.q_rank * self.query_width
        latent = d_model * (self.kv_rank + self.rope_size) + self.kv_rank
        expand = self.kv_rank * self.heads * (self.nope_size + self.value_size)
        out = self.heads * self.value_size * d_model
        bias = (self.q_rank or 0) + self.kv_rank + self.rope_size + d_model if self.bias else 0
        return queries + latent + expand + out + bias

    def cache_values(self, tokens: int) -> int:
        """Number of cached values for ``tokens`` positions: one latent and one rotary key each, shared by all heads."""
        return (self.kv_rank + self.rope_size) * tokens

    def state_values(self) -> int:
        """Returns 0: attention has no state of fixed size, only a KV cache."""
        return 0


@dataclass(frozen=True, slots=True, kw_only=True)
class GatedDelta:
    """Gated delta rule: linear attention with a state (key_size, value_size) per head.

    The state decays, and each token corrects it.
    """

    key_heads: int
    value_heads: int
    key_size: int
    value_size: int
    conv: int = 4  # taps of the causal convolution over queries, keys and values

    def __post_init__(self) -> None:
        check_fields(self)
        positive(self, "key_heads", "value_heads", "key_size", "value_size", "conv")
        if self.value_heads % self.key_heads:
            raise SpecError(f"{self.key_heads} heads do not divide {self.value_heads} value heads", field="key_heads")

    @property
    def key_width(self) -> int:
        """Total width of all key heads, which equals that of all query heads."""
        return self.key_heads * self.key_size

    @property
    def value_width(self) -> int:
        """Total width of all value heads."""
        return self.value_heads * self.value_size

    @property
    def conv_width(self) -> int:
        """Number of channels of the convolution: queries, keys and values."""
        return 2 * self.key_width + self.value_width

    def parameters(self, d_model: int) -> int:
        """Number of parameters: projections (q, k, v, gate, two scalars per head, output), convolution, decay, norm."""
        into = d_model * (self.conv_width + self.value_width + 2 * self.value_heads)
        decay = 2 * self.value_heads  # decay rate and step bias per head
        return into + self.conv_width * self.conv + decay + self.value_size + self.value_width * d_model

    def cache_values(self, tokens: int) -> int:
        """Returns 0: the block has no KV cache, only a state of fixed size."""
        return 0 * tokens

    def state_values(self) -> int:
        """Number of values in the states of all heads and in the convolution's last inputs."""
        return self.value_heads * self.key_size * self.value_size + self.conv_width * (self.conv - 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mamba2:
    """Mamba-2's state space model: a state (head_size, state_size) per head; the heads of a group share B and C."""

    heads: int
    head_size: int
    state_size: int
    groups: int = 1
    conv: int = 4
    conv_bias: bool = True
    bias: bool = False  # in the projections

    def __post_init__(self) -> None:
        check_fields(self)
        positive(self, "heads", "head_size", "state_size", "groups", "conv")
        if self.heads % self.groups:
            raise SpecError(f"{self.groups} groups do not divide {self.heads} heads", field="groups")

    @property
    def inner_width(self) -> int:
        """Total width of all heads."""
        return self.heads * self.head_size

    @property
    def conv_width(self) -> int:
        """Number of channels of the convolution: inputs, B and C."""
        return self.inner_width + 2 * self.groups * self.state_size

    @property
    def in_width(self) -> int:
        """Output width of the input projection: gate, the convolution's channels, and a step size per head."""
        return self.inner_width + self.conv_width + self.heads

    def parameters(self, d_model: int) -> int:
        """Number of parameters: projections, convolution, three scalars per head (decay, step bias, skip), norm."""
        conv = self.conv_width * (self.conv + self.conv_bias)
        biases = self.in_width + d_model if self.bias else 0
        return d_model * (self.in_width + self.inner_width) + biases + conv + 3 * self.heads + self.inner_width

    def cache_values(self, tokens: int) -> int:
        """Returns 0: the block has no KV cache, only a state of fixed size."""
        return 0 * tokens

    def state_values(self) -> int:
        """Number of values in the states of all heads and in the convolution's last inputs."""
        return self.inner_width * self.state_size + self.conv_width * (self.conv - 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShortConv:
    """A gated short convolution: projection to two gates and a value, depthwise convolution, output projection."""

    width: int  # channels of the convolution
    taps: int = 3
    bias: bool = False  # in the projections and the convolution

    def __post_init__(self) -> None:
        check_fields(self)
        positive(self, "width", "taps")

    def parameters(self, d_model: int) -> int:
        """Number of parameters of both projections and the filter."""
        biases = 4 * self.width + d_model if self.bias else 0
        return 4 * d_model * self.width + self.taps * self.width + biases

    def cache_values(self, tokens: int) -> int:
        """Returns 0: the block has no KV cache, only a state of fixed size."""
        return 0 * tokens

    def state_values(self) -> int:
        """Number of values in the convolution's last inputs."""
        return self.width * (self.taps - 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvModule:
    """Conformer's convolution module: gated projection, depthwise filter, norm, output projection.

    The filter is centred and has ``taps`` taps. The norm is a batch norm that is folded into the filter at inference
    (Conformer), or a LayerNorm (w2v-BERT 2.0).
    References: arXiv:2005.08100, figure 2; arXiv:2312.05187, as in transformers' Wav2Vec2BertConvolutionModule.
    """

    taps: int = 31
    bias: bool = True
    norm: Literal["batch", "layer"] = later("batch")

    def __post_init__(self) -> None:
        check_fields(self)
        positive(self, "taps")

    def parameters(self, d_model: int) -> int:
        """Number of parameters of the two matrices, the filter and the norm."""
        biases = 4 * d_model if self.bias else 0
        return 3 * d_model * d_model + self.taps * d_model + 2 * d_model + biases

    def cache_values(self, tokens: int) -> int:
        """Returns 0: models with this block do not generate text, because the filter reads later positions."""
        return 0 * tokens

    def state_values(self) -> int:
        """Returns 0: the block keeps nothing between passes."""
        return 0


Mixer = Attention | LatentAttention | GatedDelta | Mamba2 | ShortConv
