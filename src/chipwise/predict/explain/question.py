"""The question to explain (a model with formats and a workload on a chip), and a cost model's estimate for it.

Rules read a :class:`Case` and propose changed questions, whose costs a :class:`Pricer` estimates. So a rule does not
depend on how costs are computed, or on whether the device is a chip with a data sheet or this machine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol

from chipwise.errors import ChipwiseError, SpecError
from chipwise.hardware.datasheet import DeviceProfile
from chipwise.hardware.runtime import Runtime, runtime_named
from chipwise.model.arch.arch import ArchSpec
from chipwise.predict.cost.model import CostEstimate, OpCost
from chipwise.predict.served.deployment import Deployment, changed
from chipwise.predict.served.request import IMAGE_SIZE, Request

PhaseName = Literal["prefill", "decode"]
Task = Literal["serve", "train"]


USUAL = "vllm"
"""The default runtime of a question."""
_ONE: Mapping[str, str] = {"image": "an image", "sound": "a sound", "request": "a request"}


@dataclass(frozen=True, slots=True, kw_only=True)
class CostQuestion:
    """One deployed model under one workload. A deployment without a device means this machine, with its calibration.

    The task ``train`` is one optimiser step over ``batch`` sequences of ``prompt_tokens``; ``checkpoint`` then means
    that activations are recomputed. The first ``shared_tokens`` of each prompt are the same in all requests;
    ``cached_tokens`` of them are already in the cache. The layers in ``wide_layers`` keep 16-bit matrices.
    ``sensitivity`` is the measured loss from quantising each layer alone, if known.
    """

    arch: ArchSpec
    deployment: Deployment
    batch: int = 1
    prompt_tokens: int = 1024
    new_tokens: int = 128
    images: int = 0
    image_size: tuple[int, int] = IMAGE_SIZE
    audio_s: float = 0.0  # seconds of sound per request, for a model with an audio tower
    task: Task = "serve"
    checkpoint: bool = False
    shared_tokens: int = 0
    cached_tokens: int = 0
    wide_layers: frozenset[int] = frozenset()
    sensitivity: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        prompt, new = self.arch.request_of(self.prompt_tokens, self.new_tokens)
        object.__setattr__(self, "prompt_tokens", prompt)
        object.__setattr__(self, "new_tokens", new)
        if self.deployment.weights is None:
            raise SpecError("must name a number format", field="weights")
        if not 0 <= self.shared_tokens <= self.prompt_tokens:
            raise SpecError(
                f"must be at most the {self.prompt_tokens:,} tokens of a prompt, not {self.shared_tokens:,}",
                field="shared_tokens",
            )
        if self.sensitivity and len(self.sensitivity) != len(self.arch.layers):
            raise SpecError(
                f"must list one loss for each of the {len(self.arch.layers)} layers, not {len(self.sensitivity)}",
                field="sensitivity",
            )

    def but(self, **changes: Any) -> CostQuestion:
        """Returns a copy with ``changes``, which name fields of the question or of its deployment."""
        return changed(self, changes)

    def request(self, device: str) -> Request:
        """The question as a request to the serving model, on ``device`` unless the question names one."""
        placed = replace(self.deployment, device=self.device or device, runtime=self.deployment.runtime or USUAL)
        return Request(
            model=self.arch, deployment=placed, batch=self.batch, prompt_tokens=self.prompt_tokens,
            new_tokens=self.new_tokens, cached_tokens=self.cached_tokens, wide_layers=self.wide_layers,
            images=self.images, image_size=self.image_size, audio_s=self.audio_s,
        )  # fmt: skip

    @property
    def weights(self) -> str:
        """Format of the matrices, or one format per layer; never None."""
        assert self.deployment.weights is not None  # checked in __post_init__
        return self.deployment.weights

    @property
    def device(self) -> str | None:
        """The device's name; None for this machine."""
        return None if self.deployment.device is None else str(self.deployment.device)

    @property
    def served_by(self) -> Runtime:
        """The runtime; vLLM if none is named.

        Raises:
            UnknownName: There is no runtime of this name.
        """
        runtime = self.deployment.runtime or USUAL
        return runtime_named(runtime) if isinstance(runtime, str) else runtime


class Pricer(Protocol):
    """Estimates the costs of questions. Equal questions always get equal estimates."""

    @property
    def sheet(self) -> DeviceProfile | None:
        """The chip's data sheet, if it has one."""
        ...

    def price(self, questions: Sequence[CostQuestion]) -> Sequence[CostEstimate | ChipwiseError]:
        """One estimate per question, in order, or the error that says why there is none.

        Rules pass many questions in one call.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A question with its estimated cost, and the pricer that estimated it. This is the input of rules."""

    question: CostQuestion
    estimate: CostEstimate
    pricer: Pricer

    @property
    def arch(self) -> ArchSpec:
        """The model."""
        return self.question.arch

    @property
    def sheet(self) -> DeviceProfile | None:
        """The chip's data sheet, if it has one."""
        return self.pricer.sheet

    @property
    def captures_graphs(self) -> bool:
        """Whether the chip replays captured graphs of kernels, as CUDA and HIP do."""
        return self.sheet is not None and self.sheet.kind == "gpu" and self.sheet.vendor.lower() in ("nvidia", "amd")

    @property
    def training(self) -> bool:
        """Whether the question is about an optimiser step."""
        return self.question.task == "train"

    @property
    def generates(self) -> bool:
        """Whether the model generates tokens one by one."""
        return self.arch.causal and not self.training

    @property
    def phases(self) -> tuple[PhaseName, ...]:
        """Prefill and decode, or only prefill for encoders (one pass) and for training (one step)."""
        return ("prefill", "decode") if self.generates else ("prefill",)

    def title(self, phase: PhaseName) -> str:
        """Displayed title of a phase."""
        if self.training:
            return "a training step"
        if not self.generates:
            return "the pass"
        return {"prefill": "prefill (TTFT)", "decode": "a token (TPOT)"}[phase]

    @property
    def asked(self) -> str:
        """The workload in words."""
        question, one = self.question, _ONE.get(self.arch.reads)
        if self.training:
            again = ", activations recomputed" if question.checkpoint else ""
            what = "tokens" if one is None else f"positions of {one}"
            return f"one optimiser step over {question.batch} x {question.prompt_tokens:,} {what}{again}"
        if one is not None:
            read = one if question.batch == 1 else f"{question.batch} {self.arch.reads}s"
            return f"one pass over {read} of {question.prompt_tokens:,} positions"
        if not self.arch.causal:
            texts = "" if question.batch == 1 else f"{question.batch} x "
            return f"one pass over {texts}{question.prompt_tokens:,} tokens"
        if (sound_s := self.arch.sound_s) is not None:
            return f"{question.batch} in flight, {sound_s:.4g} s of sound and {question.new_tokens:,} new tokens"
        shared = f" ({question.shared_tokens:,} of them shared by all)" if question.shared_tokens else ""
        prompt = f"{question.prompt_tokens:,} prompt{shared}"
        width, height = question.image_size
        several = f"{question.images} images" if question.images > 1 else "an image"
        seen = f", {several} of {width} x {height} in each" if question.images else ""
        heard = f", {question.audio_s:.4g} s of sound in each" if question.audio_s else ""
        return f"{question.batch} in flight, {prompt} and {question.new_tokens:,} new tokens{seen}{heard}"

    @property
    def slower(self) -> str:
        """The metric of the phase in which a request spends more time: TTFT or TPOT."""
        answering_s = self.estimate.tpot_s * self.question.new_tokens
        return "tpot_p50" if "decode" in self.phases and answering_s > self.estimate.ttft_s else "ttft_p50"

    def operators(self, phase: PhaseName) -> tuple[OpCost, ...]:
        """The kernels of the phase's pass; empty for a phase that the model does not have."""
        if phase not in self.phases:
            return ()
        return self.estimate.prefill if phase == "prefill" else self.estimate.decode

    def share(self, phase: PhaseName, *, kind: str | None = None, place: str | None = None) -> float:
        """Share of a pass's kernel time that goes to operators of the kind ``kind`` whose names contain ``place``."""
        costs = self.operators(phase)
        total = sum(cost.latency_s for cost in costs)
        chosen = [c for c in costs if kind in (None, c.kind) and (place is None or place in c.place)]
        return sum(cost.latency_s for cost in chosen) / total if total else 0.0
