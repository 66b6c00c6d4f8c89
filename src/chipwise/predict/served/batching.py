"""Continuous batching: the time per token while other requests arrive and finish.

With c requests in flight, a step decodes one token for each of them. While one request generates its ``new`` tokens,
each of the other c - 1 requests ends about once; the prefill of the request that replaces it delays a step:

    TPOT = step(c) + (c - 1) / new * share * prefill

The host adds time to each step. ``share`` is the delay of the step as a share of the prefill's time. It is a fitted
constant below one in runtimes that process prompts in chunks (``Runtime.mixes``), and one in others. If prompts have
separate passes, several waiting prompts may share one pass. This is cheaper per prompt, and the host's time is then
counted once per pass. The few constants are fitted to serving runs (``predict/served/data/serving.json``) and used for
all devices.
"""

from __future__ import annotations

import functools
import json
import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from chipwise.core.arrays import Float64Array
from chipwise.core.dtypes import Size
from chipwise.core.files import build
from chipwise.hardware.runtime import CORES, Runtime
from chipwise.predict.served.setting import Setting
from chipwise.predict.served.steps import PassTimes

DATA = Path(__file__).parent / "data" / "serving.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Constants:
    """Fitted constants of serving: eleven numbers that are the same for all models and devices, and half-widths.

    The times of single kernels are predicted elsewhere (``predict/kernels``).
    """

    kernel_scale: float  # matrix products and attention: time in serving / time measured alone, without launches
    experts_scale: dict[str, float]  # by stack: the same ratio for the experts of mixtures
    gap_s: float  # gap between two kernels of a captured graph
    host_s: dict[str, float]  # by stack: host time per step that kernels do not hide
    sequence_s: float  # host time per step and sequence, in engines with a Python scheduler
    ranks_s: float  # host time per step and doubling of the number of devices
    prefill_share: float  # share of other requests' prefills for which a request waits
    log_halfwidth: dict[str, float]  # half-width that covers 90 % of serving runs, by ``intervals.key``

    def host_step_s(self, runtime: Runtime, *, sequences: Size, tp: int) -> Size:
        """Seconds that the host adds to a pass in which ``tp`` devices decode ``sequences`` sequences."""
        if runtime.local or runtime.stack == CORES:
            return 0.0  # already part of each kernel's cost
        ranks_s = self.ranks_s * math.log2(tp)
        return self.host_s[runtime.stack] + (self.sequence_s * sequences + ranks_s if runtime.python else 0.0)

    def scales(self, runtime: Runtime) -> dict[str, float]:
        """For each class of kernels, its time in captured graphs divided by its time when measured alone."""
        experts = self.experts_scale[runtime.stack]
        return {"matmul": self.kernel_scale, "attention": self.kernel_scale, "experts": experts}

    def device_s(self, times: PassTimes, runtime: Runtime) -> Float64Array:
        """Seconds of one pass on the device: its kernels, with gaps in a captured graph and with launches otherwise."""
        return self.spaced_s(self.busy_s(times, runtime), times.kernels, runtime)

    def busy_s(self, times: PassTimes, runtime: Runtime) -> Float64Array:
        """Seconds of the kernels of a pass in ``runtime``, without the gaps between them."""
        if not runtime.graphs:
            return times.latency_s
        scaled = sum(times.busy_s(kind, scale=scale) for kind, scale in self.scales(runtime).items())
        result: Float64Array = scaled + times.class_s("collective") + times.busy_s("other")
        return result

    def spaced_s(self, busy_s: Float64Array, kernels: Size, runtime: Runtime) -> Float64Array:
        """Seconds of ``kernels`` kernels and the gaps between them, if the kernels alone take ``busy_s`` in total."""
        launched_s = runtime.dispatch_s * kernels
        result: Float64Array = busy_s + self.gap_s * kernels if runtime.graphs else np.maximum(busy_s, launched_s)
        return result

    def step_s(self, times: PassTimes, setting: Setting, sequences: Size) -> Float64Array:
        """Seconds of one pass, including the host's time.

        Args:
            times: The kernels.
            setting: The runtime and the plan.
            sequences: Number of decoding sequences; 0 for a pass over a prompt."""
        host_s = self.host_step_s(setting.runtime, sequences=sequences, tp=setting.plan.tp)
        result: Float64Array = self.device_s(times, setting.runtime) + host_s
        return result

    def waited_s(self, prompts: PassTimes, setting: Setting, together: Size) -> Float64Array:
        """Seconds by which each prompt delays the other requests, if ``together`` prompts share a pass."""
        host_s = self.host_step_s(setting.runtime, sequences=0, tp=setting.plan.tp)
        return self.waited_pass_s(self.device_s(prompts, setting.runtime), host_s, setting.runtime, together)

    def waited_pass_s(self, device_s: Float64Array, host_s: Size, runtime: Runtime, together: Size) -> Float64Array:
        """Seconds by which each prompt delays other requests, given the times of a pass over ``together`` prompts.

        The pass takes ``device_s`` on the device and ``host_s`` on the host. If prompts are computed within decode
        steps, ``host_s`` is left out, because the decode steps already include the host's time.
        """
        result: Float64Array = device_s if rides_along(runtime) else (device_s + host_s) / together
        return result


def rides_along(runtime: Runtime) -> bool:
    """Whether prompts are computed within decode steps, not in separate passes."""
    return runtime.mixes and not runtime.prefill_tokens


def tpot_s(step_s: Size, prefill_s: Size, *, in_flight: Size, new_tokens: Size, share: float) -> Float64Array:
    """Mean seconds between a request's tokens when ``in_flight`` requests are served together.

    Args:
        step_s: Seconds of one decode step of all requests.
        prefill_s: Seconds of the prefill of one request.
        in_flight: Concurrent requests, including this one.
        new_tokens: New tokens per request.
        share: Share of a prefill that delays other requests.
    """
    result: Float64Array = np.asarray(step_s + share * prefill_s * (np.asarray(in_flight) - 1) / np.asarray(new_tokens))
    return result


@functools.cache
def constants(fold: str | None = None) -> Constants:
    """The fitted constants; ``fold`` names data that the fit leaves out. Default: a fit to all data."""
    folds = json.loads(DATA.read_text(encoding="utf-8"))["folds"]
    return build(Constants, folds[fold or "none"], file=str(DATA))
