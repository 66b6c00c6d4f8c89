"""Blocks that process each position independently: feed-forwards and mixtures of experts."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from chipwise.core.fields import check_fields, later, positive
from chipwise.errors import SpecError

Activation = Literal["relu", "gelu", "gelu_tanh", "silu", "relu2"]


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedForward:
    """Two matrices with an activation between them, or three if ``gated`` (SwiGLU: gated SiLU; GeGLU: gated GELU)."""

    width: int
    activation: Activation = "silu"
    gated: bool = True
    bias: bool = False
    sub_norm: bool = later(False)  # a LayerNorm before the last matrix (EVA02)
    groups: int = later(1)  # blocks in each matrix: each part of the channels has its own feed-forward

    def __post_init__(self) -> None:
        check_fields(self)
        positive(self, "width", "groups")
        if self.width % self.groups:
            raise SpecError(f"{self.groups} groups do not divide a width of {self.width}", field="groups")
        if self.sub_norm and self.groups > 1:
            raise SpecError("a feed-forward with groups cannot have a norm before its last matrix", field="groups")

    def parameters(self, d_model: int) -> int:
        """Weights and biases of the two or three projections, and of the norm before the last projection."""
        matrices = 3 if self.gated else 2
        biases = (self.width * (matrices - 1) + d_model) if self.bias else 0
        return matrices * d_model * self.width // self.groups + biases + 2 * self.width * self.sub_norm

    def one_group(self) -> FeedForward:
        """The feed-forward of one group, which reads and writes only that group's channels."""
        return replace(self, width=self.width // self.groups, groups=1)

    def active_parameters(self, d_model: int) -> int:
        """Number of parameters that one token uses, which is all of them."""
        return self.parameters(d_model)


@dataclass(frozen=True, slots=True, kw_only=True)
class MixtureOfExperts:
    """A mixture of experts: each token uses ``active`` of ``experts`` experts, and a shared expert if there is one."""

    experts: int
    active: int
    expert: FeedForward
    shared: FeedForward | None = None  # several shared experts are stored as one with their total width
    shared_gate: bool = False  # a sigmoid of one projection scales the shared expert (Qwen2-MoE)
    router_bias: bool = False
    score_bias: bool = False  # a bias per expert, used only to select experts (DeepSeek-V3)
    latent_size: int | None = None  # width to which routed experts' inputs are projected (Nemotron 3)

    def __post_init__(self) -> None:
        check_fields(self)
        positive(self, "experts", "active")
        if self.active > self.experts:
            raise SpecError(f"must be at most the number of experts, {self.experts}, not {self.active}", field="active")
        if self.shared_gate and self.shared is None:
            raise SpecError("needs a shared expert, because the gate scales its output", field="shared_gate")
        if self.latent_size is not None:
            positive(self, "latent_size")

    def expert_parameters(self, d_model: int) -> int:
        """Parameters of one routed expert."""
        return self.expert.parameters(self.latent_size or d_model)

    def parameters(self, d_model: int) -> int:
        """Parameters of all experts, the router and the shared expert."""
        return self.active_parameters(d_model) + (self.experts - self.active) * self.expert_parameters(d_model)

    def active_parameters(self, d_model: int) -> int:
        """Parameters that one token uses: its active experts, the router and the shared expert."""
        router = self.experts * (d_model + self.router_bias + self.score_bias)
        shared = self.shared.parameters(d_model) if self.shared is not None else 0
        latent = 2 * d_model * self.latent_size if self.latent_size is not None else 0
        gate = d_model if self.shared_gate else 0
        return self.active * self.expert_parameters(d_model) + router + shared + latent + gate


FeedForwardBlock = FeedForward | MixtureOfExperts
