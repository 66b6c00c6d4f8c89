"""What a model is: ArchSpec, its layers and their blocks. Pure values; no torch, no costs.

A model is an embedding, layers that may all differ, a final norm and a head. Each layer is a pre-norm residual pair:
``x += attention(norm(x)); x += ffn(norm(x))``; either block may be absent.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from chipwise.core.digest import digest
from chipwise.core.dtypes import weight_format
from chipwise.core.errors import SpecError

Activation = Literal["relu", "gelu", "gelu_tanh", "silu"]
NormKind = Literal["rmsnorm", "layernorm"]


def _positive(field: str, value: int) -> None:
    if value < 1:
        raise SpecError(f"must be at least 1, not {value}", field=field)


@dataclass(frozen=True, slots=True, kw_only=True)
class Attention:
    """Grouped-query self-attention; ``kv_heads == heads`` is multi-head, ``kv_heads == 1`` multi-query."""

    heads: int
    kv_heads: int
    head_size: int
    qkv_bias: bool = False
    out_bias: bool = False
    qk_norm: bool = False  # RMSNorm over the head size on queries and keys (Qwen3)
    rope: bool = True
    window: int | None = None  # tokens that a query sees, itself included; None is all

    def __post_init__(self) -> None:
        for field in ("heads", "kv_heads", "head_size"):
            _positive(field, getattr(self, field))
        if self.heads % self.kv_heads:
            raise SpecError(f"{self.kv_heads} KV heads do not divide {self.heads} heads", field="kv_heads")
        if self.rope and self.head_size % 2:
            raise SpecError(f"rotary positions need an even head size, not {self.head_size}", field="head_size")
        if self.window is not None:
            _positive("window", self.window)

    @property
    def query_width(self) -> int:
        """Width of all query heads together."""
        return self.heads * self.head_size

    @property
    def kv_width(self) -> int:
        """Width of all key heads together (values take as much again)."""
        return self.kv_heads * self.head_size

    def parameters(self, d_model: int) -> int:
        """Weights and biases of the four projections and the q/k norms."""
        q, kv = self.query_width, self.kv_width
        weights = d_model * (q + 2 * kv) + q * d_model
        biases = (q + 2 * kv if self.qkv_bias else 0) + (d_model if self.out_bias else 0)
        return weights + biases + (2 * self.head_size if self.qk_norm else 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedForward:
    """Two matrices with an activation between, or three when ``gated`` (SwiGLU is gated SiLU, GeGLU gated GELU)."""

    width: int
    activation: Activation = "silu"
    gated: bool = True
    bias: bool = False

    def __post_init__(self) -> None:
        _positive("width", self.width)

    def parameters(self, d_model: int) -> int:
        """Weights and biases of the two or three projections."""
        matrices = 3 if self.gated else 2
        biases = (self.width * (matrices - 1) + d_model) if self.bias else 0
        return matrices * d_model * self.width + biases


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """One residual layer. ``shares`` is the number of an earlier layer whose weights this one uses."""

    attention: Attention | None
    ffn: FeedForward | None
    shares: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchSpec:
    """A decoder language model. Layers may all differ."""

    vocab_size: int
    d_model: int
    layers: tuple[Layer, ...]
    name: str = "model"
    max_tokens: int = 1024
    tie_embeddings: bool = True
    norm: NormKind = "rmsnorm"
    norm_eps: float = 1e-5
    norm_bias: bool = False  # LayerNorm's shift; RMSNorm has none
    positions: Literal["rope", "learned", "none"] = "rope"
    rope_theta: float = 10_000.0

    def __post_init__(self) -> None:
        for field in ("vocab_size", "d_model", "max_tokens"):
            _positive(field, getattr(self, field))
        if not self.layers:
            raise SpecError("a model needs at least one layer", field="layers")
        if self.norm == "rmsnorm" and self.norm_bias:
            raise SpecError("RMSNorm has no bias; use norm: layernorm", field="norm_bias")
        for i, layer in enumerate(self.layers):
            if layer.attention and layer.attention.rope != (self.positions == "rope"):
                raise SpecError(f"rope must agree with positions: {self.positions}", field=f"layers[{i}].attention")
            if layer.shares is None:
                continue
            if not 0 <= layer.shares < i:
                raise SpecError(f"must name an earlier layer, not {layer.shares}", field=f"layers[{i}].shares")
            source = self.layers[layer.shares]
            if source.shares is not None or (source.attention, source.ffn) != (layer.attention, layer.ffn):
                raise SpecError(
                    f"layer {layer.shares} must own its weights and have the same blocks", field=f"layers[{i}].shares"
                )

    def owned_layers(self) -> Iterable[tuple[int, Layer]]:
        """The layers that hold weights of their own, with their numbers."""
        return ((i, layer) for i, layer in enumerate(self.layers) if layer.shares is None)

    def norm_parameters(self) -> int:
        """Parameters of one norm over the model's width."""
        return self.d_model * (2 if self.norm_bias else 1)

    def embedding_parameters(self) -> int:
        """Parameters of the token table, learned positions and an untied head."""
        tables = self.vocab_size * self.d_model * (1 if self.tie_embeddings else 2)
        return tables + (self.max_tokens * self.d_model if self.positions == "learned" else 0)

    def parameters(self) -> int:
        """Trainable parameters, shared and tied ones counted once."""
        total = self.embedding_parameters() + self.norm_parameters()
        for _, layer in self.owned_layers():
            for block in (layer.attention, layer.ffn):
                if block is not None:
                    total += block.parameters(self.d_model) + self.norm_parameters()
        return total

    def kv_cache_bytes(self, tokens: int, *, batch: int = 1, value_bytes: float = 4) -> int:
        """Bytes of keys and values kept for ``tokens`` positions (layers that share weights keep their own)."""
        total = 0.0
        for layer in self.layers:
            if layer.attention is not None:
                kept = min(tokens, layer.attention.window or tokens)
                total += 2 * layer.attention.kv_width * kept * batch * value_bytes
        return round(total)

    @property
    def digest(self) -> str:
        """Identity of the architecture; the name does not count."""
        return digest({name: getattr(self, name) for name in self.__slots__ if name != "name"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Design:
    """What is deployed: an architecture and the format its matrices are stored in.

    ``weights`` holds for every projection and the head; the token table, norms and biases stay FP32, so a quantised
    tied head is a second copy of the table.
    """

    arch: ArchSpec
    weights: str = "fp32"

    def __post_init__(self) -> None:
        weight_format(self.weights)

    @property
    def digest(self) -> str:
        """Identity of architecture and format."""
        return digest([self.arch.digest, self.weights])


def uniform(
    *,
    vocab_size: int,
    d_model: int,
    depth: int,
    heads: int,
    kv_heads: int | None = None,
    head_size: int | None = None,
    ffn_width: int,
    activation: Activation = "silu",
    gated: bool = True,
    max_tokens: int = 1024,
    tie_embeddings: bool = True,
    name: str = "model",
) -> ArchSpec:
    """A Llama-style model whose layers are all alike."""
    attention = Attention(heads=heads, kv_heads=kv_heads or heads, head_size=head_size or d_model // heads)
    ffn = FeedForward(width=ffn_width, activation=activation, gated=gated)
    return ArchSpec(
        name=name,
        vocab_size=vocab_size,
        d_model=d_model,
        layers=(Layer(attention=attention, ffn=ffn),) * depth,
        max_tokens=max_tokens,
        tie_embeddings=tie_embeddings,
    )
