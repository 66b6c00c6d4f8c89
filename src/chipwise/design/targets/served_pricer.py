"""Predicts the costs of a space's blocks on a device from its data sheet, as :func:`chipwise.estimate` does."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from chipwise.core.arrays import Float64Array
from chipwise.design.targets.formats import format_there
from chipwise.hardware.datasheet import DeviceProfile
from chipwise.hardware.runtime import Runtime, runtime_named
from chipwise.model.arch.design import Design
from chipwise.model.arch.formats import mixed
from chipwise.model.arch.layer import Layer
from chipwise.model.ops.embedding import EmbeddingOp
from chipwise.model.ops.op import Op
from chipwise.model.ops.workload import Phase, Workload
from chipwise.predict.kernels import caches
from chipwise.predict.kernels.times import Situation
from chipwise.predict.served.batching import constants, tpot_s
from chipwise.predict.served.kernel_times import FIGURES, Call, time_kernels
from chipwise.predict.served.lowering import lower_pass
from chipwise.predict.served.memory import CONTEXT_BYTES, HEAD, activation_bytes, device_memory
from chipwise.predict.served.request import Request, resolved
from chipwise.predict.served.setting import PlacedOp, Setting, Step
from chipwise.predict.served.steps import PassTimes


class ServedPricer:
    """The :class:`~chipwise.design.prices.price_table.Pricer` for a device with a runtime and a parallelism plan.

    The columns of a forward pass are the seconds of its kernels, the number of kernels, the seconds of memory traffic,
    and the seconds of memory reads. Caches save a share of the reads; this share depends on the traffic. If several
    requests are in flight, prefill has these columns twice: for a pass with one prompt, and for a pass that waiting
    prompts share.

    Args:
        template: A request with device, runtime, KV-cache format, plan and lengths. The request's model and weights are
            ignored.
        device: Data sheet of the template's device.
        one_pass: Whether a request is a single pass that generates no tokens.
    """

    def __init__(self, template: Request, device: DeviceProfile, *, one_pass: bool = False) -> None:
        self._template, self.device = template, device
        self._known: dict[Op, tuple[Float64Array, Situation]] = {}
        self._shared: dict[tuple[str, int], Setting] = {}  # by weights and depth, the setting of the first such design
        self._lowered: dict[tuple[Setting, Step], tuple[PlacedOp, ...]] = {}  # kernels of the last few passes
        self._constants = constants()
        self._in_flight = template.batch
        self._replica_batch = -(-template.batch // (template.deployment.dp * template.deployment.pp))
        runtime = runtime_named(str(template.deployment.runtime))
        others = max(self._in_flight // template.deployment.dp - 1, 0)
        self._together = max(min(runtime.prefill_tokens // template.prompt_tokens, others), 1)
        self._one_pass = one_pass

    def setting(self, design: Design) -> Setting:
        """How a design is served on the device.

        Raises:
            Unsupported: The runtime does not have the weight format, or does not run on the device.
            SpecError: The plan cannot divide the design.
        """
        key = (design.weights, len(design.arch.layers) if mixed(design.weights) else 0)
        if key not in self._shared:
            self._shared[key] = resolved(self.request(design)).setting
        return replace(self._shared[key], arch=design.arch)

    def request(self, design: Design) -> Request:
        """The request for ``design``, whose estimate gives the design's cost."""
        weights = format_there(design.weights, str(self._template.deployment.runtime))
        return self._template.but(model=design.arch, device=self.device, weights=weights)

    def pass_columns(self, design: Design, workload: Workload, phase: Phase) -> Float64Array:
        """The columns of a pass; the class describes them."""
        setting, (prefill, decode) = self.setting(design), self._steps(design)
        if phase is Phase.DECODE:
            return self._columns(setting, decode)
        alone = self._columns(setting, prefill)
        if self._in_flight == 1 or self._one_pass:
            return alone
        return np.concatenate(
            [alone, alone if self._together == 1 else self._columns(setting, self._prefill(self._together))]
        )

    def latencies_s(
        self, prefill: Float64Array, decode: Float64Array, *, logits: Float64Array
    ) -> tuple[Float64Array, Float64Array]:
        """Median TTFT and TPOT, each (n,), added up as in :func:`chipwise.predict.served.estimate.estimate`."""
        setting = next(iter(self._shared.values()))
        runtime, known = setting.runtime, self._constants
        host_s = known.host_step_s(runtime, sequences=0, tp=setting.plan.tp)
        ttft_s = self._spaced_s(prefill, runtime) + host_s
        if self._one_pass:
            return ttft_s, ttft_s
        step_s = self._spaced_s(decode, runtime)
        step_s = step_s + known.host_step_s(runtime, sequences=self._replica_batch, tp=setting.plan.tp)
        if self._in_flight == 1:
            return ttft_s, step_s
        shared_s = self._spaced_s(prefill[:, prefill.shape[1] // 2 :], runtime)
        waited_s = known.waited_pass_s(shared_s, host_s, runtime, self._together)
        return ttft_s, tpot_s(
            step_s,
            waited_s,
            in_flight=max(self._in_flight / setting.plan.dp, 1),
            new_tokens=self._template.new_tokens,
            share=known.prefill_share if runtime.mixes else 1.0,
        )

    def _spaced_s(self, columns: Float64Array, runtime: Runtime) -> Float64Array:
        """Seconds of passes on the device, computed from their columns."""
        busy_s = columns[:, 0]
        busy_s = busy_s - columns[:, 3] * caches.saved_share(columns[:, 2], self.device, runtime.stack)
        return self._constants.spaced_s(busy_s, columns[:, 1], runtime)

    def stored_bytes(self, design: Design, workload: Workload) -> float:
        """Bytes of weights and KV cache on the device of the plan that stores the most."""
        setting = self.setting(design)
        prefill, decode = (self._parts(setting, step) for step in self._steps(design))
        memory = device_memory(
            setting,
            self.device,
            prefill=prefill,
            decode=decode,
            tokens=self._template.prompt_tokens + self._template.new_tokens,
            microbatches=-(-self._in_flight // setting.plan.dp) / self._replica_batch,
            rows=1,
        )
        return float(memory.weights[0] + memory.cache[0])

    def activation_bytes(self, layer: Layer | None, design: Design, workload: Workload) -> float:
        """Bytes of activations; see :func:`chipwise.predict.served.memory.activation_bytes`."""
        setting = self.setting(design)
        if layer is not None:
            setting = replace(setting, arch=replace(design.arch, layers=(layer,)))
        prefill, decode = (
            [part for part in lower_pass(setting, step) if _belongs(part, layer)] for step in self._steps(design)
        )
        return float(activation_bytes(setting, prefill, decode))

    def base_bytes(self) -> float:
        """Bytes of a serving process that holds no model."""
        return CONTEXT_BYTES[self.device.kind]

    def _steps(self, design: Design) -> tuple[Step, Step]:
        """A request's prefill step and decode step; if a request is a single pass, that pass twice."""
        if not self._one_pass:
            return self._prefill(1), self._decode()
        arch = design.arch
        whole = Step(
            batch=self._replica_batch,
            query_tokens=arch.request_tokens,
            past_tokens=0,
            encoder_tokens=arch.image_tokens if arch.crosses else 0,
            encode=arch.crosses,
        )
        return whole, whole

    def _prefill(self, prompts: int) -> Step:
        return Step(batch=prompts, query_tokens=self._template.prompt_tokens, past_tokens=0)

    def _decode(self) -> Step:
        past = self._template.prompt_tokens + self._template.new_tokens // 2
        return Step(batch=self._replica_batch, query_tokens=1, past_tokens=past)

    def _columns(self, setting: Setting, step: Step) -> Float64Array:
        times = self._times(setting, self._parts(setting, step))
        found = [float(self._constants.busy_s(times, setting.runtime)[0]), float(times.kernels)]
        return np.array([*found, float(times.memory_s[0]), float(times.reading_s[0])])

    def _parts(self, setting: Setting, step: Step) -> tuple[PlacedOp, ...]:
        """The kernels of a pass; those of the last few passes are cached."""
        key = (setting, step)
        if key not in self._lowered:
            if len(self._lowered) > 8:
                self._lowered.clear()
            self._lowered[key] = lower_pass(setting, step)
        return self._lowered[key]

    def _times(self, setting: Setting, parts: tuple[PlacedOp, ...]) -> PassTimes:
        """Times of the kernels of a pass; each distinct kernel is computed once."""
        new = list(dict.fromkeys(part.op for part in parts if part.op not in self._known))
        if new:
            calls = [Call(op=op, device=self.device, stack=setting.runtime.stack, rows=1) for op in new]
            found = time_kernels(calls)
            for i, op in enumerate(new):
                self._known[op] = found.figures[:, i], found.situations[i]
        known = [self._known[part.op] for part in parts]
        figures = np.stack([each for each, _ in known], axis=1).reshape(len(FIGURES), len(parts), 1)
        return PassTimes.of(parts, figures, tuple(situation for _, situation in known))


def _belongs(part: PlacedOp, layer: Layer | None) -> bool:
    """Whether a kernel of a one-layer model belongs to ``layer``, or, if ``layer`` is None, to the head.

    Embeddings belong to both the layer and the head.
    """
    if layer is None:
        return part.place == HEAD or isinstance(part.op, EmbeddingOp)
    return part.place != HEAD
