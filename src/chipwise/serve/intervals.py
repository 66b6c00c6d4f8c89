"""How far off served runs are, by what can be known of a run beforehand.

Dense models are told apart by the share of a token's time that is waiting for others' prefills, since how an engine
lets prompts in is what the formula knows least. Mixtures are told apart by whether the device multiplies their experts'
format or has to widen it first, since then it is not known which kernel runs.

A half width is what nine of ten runs on *other* devices stayed within (split conformal, in logarithms), each
predicted by a fit that had not seen its device. A sort of run that was measured on one other device alone has half as
much more; one that was measured on none has twice the widest of the same kind of model. On a device of which less is
known than of any family that was left out, they grow as its kernels' own do.

References:
    Vovk, Gammerman and Shafer 2005, Algorithmic Learning in a Random World (conformal prediction).
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from chipwise.core.arrays import Float64Array
from chipwise.core.dtypes import weight_format
from chipwise.hardware.datasheet import DeviceProfile
from chipwise.serve.setting import Setting
from chipwise.spec.feed_forward import MixtureOfExperts

Names = npt.NDArray[np.str_]
WAITING = (0.2, 0.5)  # shares of a token's time at which a dense model's run is of the next sort
DENSE = ("dense, hardly waiting", "dense, waiting", "dense, mostly waiting")
MIXTURES = ("mixture", "mixture, widened weights")
SITUATIONS = ("seen", "sibling", "unseen")
KERNELS = "kernels"  # what the half widths of the runs' own kernels were


def sorts(setting: Setting, device: DeviceProfile, waiting: Float64Array) -> Names:
    """The sort of each run: one of ``DENSE`` or ``MIXTURES``.

    Args:
        setting: Model and formats.
        device: The device.
        waiting: Share of a token's time that is waiting for others' prefills.
    """
    if any(isinstance(layer.ffn, MixtureOfExperts) for layer in setting.arch.layers):
        return np.full(len(waiting), MIXTURES[widened(setting, device)])
    return np.asarray(DENSE)[np.searchsorted(WAITING, waiting)]


def widened(setting: Setting, device: DeviceProfile) -> bool:
    """Whether experts are kept in less than 8 bits, in a format that the device has no products for."""
    stored = weight_format(setting.formats.experts).dtype
    return stored.bits < 8 and stored.value not in device.peak_flops_per_s


def key(sort: str, situation: str) -> str:
    """The name of a half width."""
    return f"{sort}, {situation}"


def of_runs(table: Mapping[str, float], sort: Names, situation: str, kernels: Float64Array) -> Float64Array:
    """The half width of each run.

    Args:
        table: Half widths by :func:`key`.
        sort: Of each run.
        situation: What the fit had seen of the device.
        kernels: Half widths of the kernels of each run's decode step.
    """
    width = np.array([table[key(name, situation)] for name in sort])
    if situation != "unseen":
        return width
    result: Float64Array = width * np.maximum(kernels / table[key(KERNELS, situation)], 1.0)
    return result
