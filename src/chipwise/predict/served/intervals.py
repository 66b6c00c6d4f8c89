"""Log half-widths of the 90 % intervals of served models.

They depend on how well the predictions for a model, a runtime and a device were validated.

The serving constants were fitted to runs of vLLM, SGLang and TensorRT-LLM on Hopper and Blackwell, and the half-widths
for these runtimes come from the same runs (``predict/served/data/serving.json``). For dense models, they depend on the
share of a token's time that is spent waiting for other requests' prompts. For mixtures of experts, they depend on
whether the device multiplies the experts' format directly or widens it first. Half-widths never get smaller from
``seen`` (the device is in the fit) to ``sibling`` (only other devices of its family are) to ``unseen`` (no device of
its family is).

Single-user runtimes (llama.cpp, MLX, …) have separate half-widths (``predict/kernels/local.py``), and so have serving
engines on HBM chips of vendors other than NVIDIA (``stack_law.py``). For all other runtimes and devices, the fits used
no runs. Their half-width is at least that of their class, which comes from public measurements that no fit used (listed
in ``docs/notes/validation.md``). The time to first token has an interval only if prompts were validated.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from chipwise.core.arrays import Float64Array
from chipwise.core.dtypes import weight_format
from chipwise.hardware.datasheet import DeviceProfile
from chipwise.hardware.runtime import CORES, platform_of
from chipwise.model.arch.feed_forward import MixtureOfExperts
from chipwise.predict.kernels import cores, local, local_engines
from chipwise.predict.kernels.times import Situation
from chipwise.predict.served import stack_law
from chipwise.predict.served.setting import Setting

Names = npt.NDArray[np.str_]
WAITING = (0.2, 0.5)  # shares of a token's time spent waiting that separate the classes of dense runs
DENSE = ("dense, hardly waiting", "dense, waiting", "dense, mostly waiting")
MIXTURES = ("mixture", "mixture, widened weights")
SITUATIONS: tuple[Situation, ...] = ("seen", "sibling", "unseen")
UNCHECKED_PROMPT = 0.35
"""Least log half-width of prefill if it was not validated. On H100, nine of ten mean TTFTs under load are within 0.21
(in ln) of the prediction (``chipwise validate load``); predictions for other devices are less certain."""
KERNELS = "kernels"  # key for half-widths from the kernels
SERVED = {
    "h100-sxm": "hopper",
    "h200-sxm": "hopper",
    "b200-sxm": "blackwell",
    "b300-sxm": "blackwell",
    "gb200": "blackwell",
}
"""The devices in the fitted serving runs, with their families."""


@dataclass(frozen=True, slots=True)
class ClassWidth:
    """Least log half-widths of a class of runs; ``ttft`` is None if too few prompts were validated."""

    tpot: float
    ttft: float | None = None


OTHER_FAMILY = ClassWidth(0.6)  # a serving engine on an NVIDIA GPU of another family
SEVERAL: Mapping[str, float] = {"cuda": 1.0, "rocm": 2.1, "xpu": 4.4}
"""Least log half-widths for llama.cpp with several concurrent requests, by platform."""
SPLIT_LAYERS = 1.9  # half-width for llama.cpp on several devices, which split layers instead of matrices
_OTHERS: Mapping[str, ClassWidth] = {  # least half-widths for PyTorch and ONNX Runtime, by platform
    "cuda": ClassWidth(0.7),
    "cpu": ClassWidth(1.0),
    "metal": ClassWidth(1.15),
    "phone": ClassWidth(1.5),
    "board": ClassWidth(1.5),
}
ON_ONE_CORE = ClassWidth(0.6, 0.7)
"""Least log half-widths for ONNX Runtime on one core of a server or desktop (``predict/kernels/cores.py``)."""
UNCHECKED = ClassWidth(2.0)  # for classes without known measurements
ENCODER_DECODERS: Mapping[str, float] = {"cuda": 1.6, "old cuda": 1.6, "cpu": 2.1, "board": 2.7}
"""Least log half-widths for encoder-decoders in any runtime, by platform, from eight tables of PyTorch runs."""


def sorts(setting: Setting, device: DeviceProfile, waiting: Float64Array) -> Names:
    """The class of each run, one of ``DENSE`` or ``MIXTURES``.

    Args:
        setting: Model and formats.
        device: The device.
        waiting: Share of a token's time spent waiting for other requests' prefills.
    """
    if any(isinstance(layer.ffn, MixtureOfExperts) for layer in setting.arch.layers):
        return np.full(len(waiting), MIXTURES[widened(setting, device)])
    return np.asarray(DENSE)[np.searchsorted(WAITING, waiting)]


def widened(setting: Setting, device: DeviceProfile) -> bool:
    """Whether experts are stored in fewer than 8 bits and in a format that the device cannot multiply."""
    stored = weight_format(setting.formats.experts).dtype
    return stored.bits < 8 and stored.value not in device.peak_flops_per_s


def key(sort: str, situation: str) -> str:
    """Key of the table of half-widths, for a class of runs and a situation."""
    return f"{sort}, {situation}"


def situation_of(kernels: Situation, setting: Setting, device: DeviceProfile, fold: str | None) -> Situation:
    """The situation of a run (seen, sibling or unseen): the worse of its situations in the kernel and serving fits.

    Args:
        kernels: The device's situation in the kernel fits.
        setting: Model and runtime.
        device: The device.
        fold: What the fits leave out, such as ``device:h100-sxm``; None for the full fit.
    """
    if setting.runtime.local and setting.arch.causal:
        return kernels
    if (where := stack_law.served_where(setting, device)) is not None:
        return stack_law.held_situation(where, fold)[0]
    if class_width(setting, device) is not None:
        return "unseen"
    left_out = (fold or "").partition(":")[2]
    served = {name: family for name, family in SERVED.items() if left_out not in (name, family)}
    runs: Situation = "seen" if device.name in served else "sibling" if device.family in served.values() else "unseen"
    return max(kernels, runs, key=SITUATIONS.index)


def class_width(
    setting: Setting, device: DeviceProfile, *, several: bool = False, fold: str | None = None
) -> ClassWidth | None:
    """Lower limits of the log half-widths for a run's class.

    None if the run is like the runs to which serving was fitted: a decoder-only model in a serving engine, on a GPU
    that has HBM and is of a family in these runs. ``several`` means more than one concurrent request; the fit of
    single-user runtimes has no such runs.
    """
    runtime, platform = setting.runtime, platform_of(device)
    if setting.arch.encoder:
        return ClassWidth(ENCODER_DECODERS.get(platform, max(ENCODER_DECODERS.values())))
    if not setting.arch.causal:
        return UNCHECKED  # no measurements of text encoders were found
    if (where := stack_law.served_where(setting, device)) is not None:
        width = stack_law.held_situation(where, fold)[1]
        return ClassWidth(width, width)
    if not runtime.checked:
        return ClassWidth(UNCHECKED.tpot, UNCHECKED.tpot)
    if runtime.served:
        if platform == "cuda":
            like_served = device.family in SERVED.values() and device.level("dram").technology.startswith("HBM")
            return None if like_served else OTHER_FAMILY
        return UNCHECKED
    if runtime.local:
        held, part = local.shipped(), local_engines.part_of(device, runtime.stack)
        tpot, ttft = (held.halfwidth(phase, device, part, runtime.stack) for phase in ("decode", "prefill"))
        if setting.plan.devices > 1:
            return ClassWidth(max(SPLIT_LAYERS, tpot))
        return ClassWidth(max(SEVERAL.get(platform, UNCHECKED.tpot), tpot)) if several else ClassWidth(tpot, ttft)
    if runtime.stack == CORES:
        if platform == "cpu" and cores.threads_of(device) == 1:
            return ON_ONE_CORE
        return ClassWidth(_OTHERS[platform].tpot, _OTHERS[platform].tpot)
    return _OTHERS.get(platform, UNCHECKED)


def of_runs(
    table: Mapping[str, float], sort: Names, situation: str, kernels: Float64Array, least: ClassWidth | None = None
) -> Float64Array:
    """The log half-width of each run's time per token.

    Args:
        table: Half-widths by :func:`key`.
        sort: The class of each run.
        situation: The situation of the runs, see :func:`situation_of`.
        kernels: For each run, the half-width of the kernels of its decode step.
        least: The least half-widths of the runs' class.
    """
    width = np.array([table[key(name, situation)] for name in sort])
    if situation == "unseen":
        width = width * np.maximum(kernels / table[key(KERNELS, situation)], 1.0)
    result: Float64Array = width if least is None else np.maximum(width, least.tpot)
    return result
