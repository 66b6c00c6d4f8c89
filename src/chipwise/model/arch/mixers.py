"""Blocks that mix positions: attention, latent attention, two recurrences of fixed state, and a gated convolution.

Each states its parameters (biases and inner norms included) and what it keeps between passes: ``cache_values`` grow
with the tokens and are kept in the format of the cache, ``state_values`` do not and are kept in that of the state.

References:
    Latent attention: DeepSeek-V2, arXiv:2405.04434. Gated delta: arXiv:2412.06464, as in Qwen3-Next.
    Mamba-2: arXiv:2405.21060, as in Nemotron-H, arXiv:2504.03624. Gated convolution: LFM2, arXiv:2511.23404.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from chipwise.core.fields import check_fields, later, positive
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
    window: int | None = None  # tokens that a query sees, itself included; None is all
    chunk: int | None = later(None)  # positions see those of their own chunk alone (Llama 4)
    causal: bool = later(True)
    qk_norm_over: Literal["head", "all"] = later("head")  # each head (Qwen3), or all heads at once (OLMo 2)
    gate: bool = later(False)  # results times a sigmoid of a second query-wide projection (Qwen3-Next)
    sinks: bool = later(False)  # a learned score per head that attends to nothing (gpt-oss)
    softcap: float | None = later(None)  # scores are bounded to ±softcap (Gemma 2)
    relative_buckets: int = later(0)  # rows of a table of position biases, one column per head (T5, Swin)
    values_from_keys: bool = later(False)  # the projection of keys gives the values too (Gemma 4's full layers)
    reuses_cache: bool = later(False)  # no keys and values of its own: reads those of an earlier layer (Gemma 4)
    square: int | None = later(None)  # patches see those of their own square of this many on each side (Swin, ViTDet);
    # squares that the grid does not fill are filled up with zeros, as Swin's are
    key_bias: bool = later(True)  # with ``qkv_bias``: whether keys have one (BEiT's have none)
    pointwise: bool = later(False)  # SiLU of each score instead of a softmax; results normed and gated (HSTU)
    relative_keys: bool = later(False)  # a matrix for keys of distances, and two biases a head (Transformer-XL)
    shift: bool = later(False)  # every second layer's squares are moved by half of one (Swin)
    cosine: bool = later(False)  # cosines with a learned scale a head instead of scaled products (Swin v2)
    sub_norm: bool = later(False)  # a LayerNorm of the results before the output projection (EVA02's image towers)
    patch_rope: bool = later(False)  # patches' queries and keys are turned by row and column (EVA02)
    bias_network: int = later(0)  # hidden values of a network that makes position biases of distances (Swin v2)

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
                "square windows are for images: they need causal: false and neither window nor chunk", field="square"
            )
        if self.softcap is not None and self.softcap <= 0:
            raise SpecError(f"must be above 0, not {self.softcap}", field="softcap")
        if self.relative_buckets < 0:
            raise SpecError(f"must be at least 0, not {self.relative_buckets}", field="relative_buckets")
        if self.window is not None and self.chunk is not None:
            raise SpecError("attention has a window or chunks, not both", field="chunk")
        if self.pointwise and self.gate:
            raise SpecError("pointwise attention has a gate of its own", field="gate")

    @property
    def query_width(self) -> int:
        """Width of all query heads together."""
        return self.heads * self.head_size

    @property
    def kv_width(self) -> int:
        """Width of all key heads together (values take as much again)."""
        return self.kv_heads * self.head_size

    @property
    def projected_kv_width(self) -> int:
        """Width of the projections of keys and values together: of keys alone where they are the values too."""
        return 0 if self.reuses_cache else self.kv_width * (1 if self.values_from_keys else 2)

    def parameters(self, d_model: int) -> int:
        """Weights and biases of the projections, the q/k norms, gate, sinks and position biases."""
        q, new = self.query_width, self.projected_kv_width
        weights = d_model * (q + new) + q * d_model + (d_model * q if self.gate or self.pointwise else 0)
        biases = (q + new + (q if self.pointwise else 0) if self.qkv_bias else 0) + (d_model if self.out_bias else 0)
        if self.qkv_bias and not self.key_bias:
            biases -= self.kv_width
        placed = d_model * q + 2 * q if self.relative_keys else 0
        placed += self.bias_network * (3 + self.heads)  # two distances with a bias; the second matrix has none
        a_head = self.sinks + self.relative_buckets + self.cosine
        return weights + biases + placed + self._norm_parameters() + self.heads * a_head

    def _norm_parameters(self) -> int:
        own = self.query_width * (self.pointwise + 2 * self.sub_norm)  # of the results
        if not self.qk_norm:
            return own
        query, key = (self.head_size,) * 2 if self.qk_norm_over == "head" else (self.query_width, self.kv_width)
        return own + query + (0 if self.reuses_cache else key)

    def cache_values(self, tokens: int) -> int:
        """Keys and values of ``tokens`` positions, of the last window or chunk where there is one."""
        if not self.causal or self.reuses_cache:
            return 0
        return 2 * self.kv_width * min(tokens, self.window or self.chunk or tokens)

    def state_values(self) -> int:
        """None: all grows with the tokens."""
        return 0


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentAttention:
    """Multi-head latent attention: keys and values of all heads come from one small vector a token, which is cached.

    A query or key has ``nope_size`` values without positions and ``rope_size`` with; keys share the latter.
    """

    heads: int
    kv_rank: int
    nope_size: int
    rope_size: int
    value_size: int
    q_rank: int | None = None  # queries come from a small vector too, with a norm
    bias: bool = False  # of the projections into the small vectors and of the output

    def __post_init__(self) -> None:
        check_fields(self)
        positive(self, "heads", "kv_rank", "nope_size", "rope_size", "value_size")
        if self.q_rank is not None:
            positive(self, "q_rank")

    @property
    def query_width(self) -> int:
        """Width of all query heads together."""
        return self.heads * (self.nope_size + self.rope_size)

    def parameters(self, d_model: int) -> int:
        """Projections into and out of the small vectors, their norms, and the output projection."""
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
        """The small vector and the shared rotated key of each position, once for all heads."""
        return (self.kv_rank + self.rope_size) * tokens

    def state_values(self) -> int:
        """None: all grows with the tokens."""
        return 0


@dataclass(frozen=True, slots=True, kw_only=True)
class GatedDelta:
    """Gated delta rule: linear attention with a decaying, corrected state of (key_size, value_size) a head."""

    key_heads: int
    value_heads: int
    key_size: int
    value_size: int
    conv: int = 4  # taps of the causal convolution over queries, keys and values

    def __post_init__(self) -> None:
        check_fields(self)
        positive(self, "key_heads", "value_heads", "key_size", "value_size", "conv")
        if self.value_heads % self.key_heads:
            raise SpecError(f"{self.key_heads} key heads do not divide {self.value_heads}", field="key_heads")

    @property
    def key_width(self) -> int:
        """Width of all key heads together (queries take as much again)."""
        return self.key_heads * self.key_size

    @property
    def value_width(self) -> int:
        """Width of all value heads together."""
        return self.value_heads * self.value_size

    @property
    def conv_width(self) -> int:
        """Channels of the convolution: queries, keys and values."""
        return 2 * self.key_width + self.value_width

    def parameters(self, d_model: int) -> int:
        """Projections (q, k, v, output gate; two scalars a head), convolution, decay, the norm of results, output."""
        into = d_model * (self.conv_width + self.value_width + 2 * self.value_heads)
        decay = 2 * self.value_heads  # rate and shift of the step
        return into + self.conv_width * self.conv + decay + self.value_size + self.value_width * d_model

    def cache_values(self, tokens: int) -> int:
        """None: the state does not grow."""
        return 0 * tokens

    def state_values(self) -> int:
        """The state of each head and the last inputs of the convolution."""
        return self.value_heads * self.key_size * self.value_size + self.conv_width * (self.conv - 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mamba2:
    """Mamba-2's state space: a state of (head_size, state_size) a head; ``groups`` share their B and C."""

    heads: int
    head_size: int
    state_size: int
    groups: int = 1
    conv: int = 4
    conv_bias: bool = True
    bias: bool = False  # of the projections

    def __post_init__(self) -> None:
        check_fields(self)
        positive(self, "heads", "head_size", "state_size", "groups", "conv")
        if self.heads % self.groups:
            raise SpecError(f"{self.groups} groups do not divide {self.heads} heads", field="groups")

    @property
    def inner_width(self) -> int:
        """Width of all heads together."""
        return self.heads * self.head_size

    @property
    def conv_width(self) -> int:
        """Channels of the convolution: inputs, B and C."""
        return self.inner_width + 2 * self.groups * self.state_size

    @property
    def in_width(self) -> int:
        """Columns of the projection: gate, the convolution's channels, and a step size a head."""
        return self.inner_width + self.conv_width + self.heads

    def parameters(self, d_model: int) -> int:
        """Projections, convolution, three scalars a head (decay, step shift, skip), the norm of results."""
        conv = self.conv_width * (self.conv + self.conv_bias)
        biases = self.in_width + d_model if self.bias else 0
        return d_model * (self.in_width + self.inner_width) + biases + conv + 3 * self.heads + self.inner_width

    def cache_values(self, tokens: int) -> int:
        """None: the state does not grow."""
        return 0 * tokens

    def state_values(self) -> int:
        """The state of each head and the last inputs of the convolution."""
        return self.inner_width * self.state_size + self.conv_width * (self.conv - 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShortConv:
    """A gated short convolution: two gates and a value from one projection, a depthwise convolution, output."""

    width: int  # channels of the convolution
    taps: int = 3
    bias: bool = False  # of the projections and the convolution

    def __post_init__(self) -> None:
        check_fields(self)
        positive(self, "width", "taps")

    def parameters(self, d_model: int) -> int:
        """Projections into gates and value and out, and the taps."""
        biases = 4 * self.width + d_model if self.bias else 0
        return 4 * d_model * self.width + self.taps * self.width + biases

    def cache_values(self, tokens: int) -> int:
        """None: the state does not grow."""
        return 0 * tokens

    def state_values(self) -> int:
        """The last inputs of the convolution."""
        return self.width * (self.taps - 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvModule:
    """Conformer's convolution: into twice the width, half gates the other; a depthwise filter, a norm; and out.

    ``taps`` positions are seen, as many before as after. The norm is one over the batch, which is folded into the
    filter when the model runs (Conformer), or a LayerNorm of each position (w2v-BERT 2.0).
    References: arXiv:2005.08100, figure 2; arXiv:2312.05187, as in transformers' Wav2Vec2BertConvolutionModule.
    """

    taps: int = 31
    bias: bool = True
    norm: Literal["batch", "layer"] = later("batch")

    def __post_init__(self) -> None:
        check_fields(self)
        positive(self, "taps")

    def parameters(self, d_model: int) -> int:
        """Two matrices, the filter and the norm's weight and bias."""
        biases = 4 * d_model if self.bias else 0
        return 3 * d_model * d_model + self.taps * d_model + 2 * d_model + biases

    def cache_values(self, tokens: int) -> int:
        """None: it looks ahead, so nothing is generated with it."""
        return 0 * tokens

    def state_values(self) -> int:
        """None."""
        return 0


Mixer = Attention | LatentAttention | GatedDelta | Mamba2 | ShortConv
