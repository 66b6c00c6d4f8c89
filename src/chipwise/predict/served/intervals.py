"""Half-widths of the 90 % intervals of served models, in logarithms, depending on how well a case was validated.

The serving constants were fitted to runs of vLLM, SGLang and TensorRT-LLM on Hopper and Blackwell. Their half-widths
come from those runs (``predict/data/serving.json``). For dense models they depend on the share of a token's time spent
waiting for other requests' prompts; for mixtures, on whether the device multiplies the experts' format directly or
widens it first. They do not shrink from a seen device to a sibling to an unseen family.

Single-user runtimes (llama.cpp, MLX, …) have separate half-widths (``predict/kernels/local.py``). For all other cases
no run was fitted; their half-width is at least that of their class, from public measurements that no fit used (listed
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
"""Least log half-width of prefill if it was not validated: nine of ten mean TTFTs of runs under load are within 0.21 on
H100 (``chipwise validate load``), and other devices are less certain."""
KERNELS = "kernels"  # key for half-widths from the kernels
SERVED = {
    "h100-sxm": "hopper",
    "h200-sxm": "hopper",
    "b200-sxm": "blackwell",
    "b300-sxm": "blackwell",
    "gb200": "blackwell",
}
"""Devices of the fitted runs, with their families."""


@dataclass(frozen=True, slots=True)
class ClassWidth:
    """Least half-widths of a class of runs; ``ttft`` is None if too few prompts were validated."""

    tpot: float
    ttft: float | None = None


OTHER_FAMILY = ClassWidth(0.6)  # a serving engine on an NVIDIA GPU of another family
SEVERAL: Mapping[str, float] = {"cuda": 1.0, "rocm": 2.1, "xpu": 4.4}
"""llama.cpp with several requests at once, by platform."""
SPLIT_LAYERS = 1.9  # half-width for llama.cpp on several devices, which split layers instead of matrices
_OTHERS: Mapping[str, ClassWidth] = {  # PyTorch, ONNX Runtime
    "cuda": ClassWidth(0.7),
    "cpu": ClassWidth(1.0),
    "metal": ClassWidth(1.15),
    "phone": ClassWidth(1.5),
    "board": ClassWidth(1.5),
}
ON_ONE_CORE = ClassWidth(0.6, 0.7)
"""ONNX Runtime on one core of a server or desktop (``predict/kernels/cores.py``)."""
UNCHECKED = ClassWidth(2.0)  # classes without known measurements
ENCODER_DECODERS: Mapping[str, float] = {"cuda": 1.6, "old cuda": 1.6, "cpu": 2.1, "board": 2.7}
"""Encoder-decoders in any runtime, from eight tables of such models in PyTorch."""


def sorts(setting: Setting, device: DeviceProfile, waiting: Float64Array) -> Names:
    """The class of each run: one of ``DENSE`` or ``MIXTURES``.

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
    """Key of a half-width in the table."""
    return f"{sort}, {situation}"


def situation_of(kernels: Situation, setting: Setting, device: DeviceProfile, fold: str | None) -> Situation:
    """Situation of a run (seen, sibling, unseen): the worse of its kernels' and of serving runs' on its device.

    Args:
        kernels: The device's situation in the kernel fits.
        setting: The runtime.
        device: The device.
        fold: Name of the fold: what the fits left out.
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
    """Least half-widths of a run's class; None for engines and device families of the fitted runs.

    ``several`` means more than one request at once, for which single-user runtimes were not measured.
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
    """The half-width of each run's time per token.

    Args:
        table: Half-widths by :func:`key`.
        sort: Class of each run.
        situation: Situation of each run, see :func:`situation_of`.
        kernels: Half-widths of the kernels of each run's decode step.
        least: The half-width of the run's class.
    """
    width = np.array([table[key(name, situation)] for name in sort])
    if situation == "unseen":
        width = width * np.maximum(kernels / table[key(KERNELS, situation)], 1.0)
    result: Float64Array = width if least is None else np.maximum(width, least.tpot)
    return result
