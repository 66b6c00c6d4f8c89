"""Image models in PyTorch: seconds of a pass by the law fitted to published runs (``predict/whole_runs/vision.py``)."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from chipwise.core.arrays import Float64Array
from chipwise.hardware.datasheet import DeviceProfile
from chipwise.predict.served.setting import Setting
from chipwise.predict.whole_runs import vision

RUNTIMES = {"torch-compile": "pytorch compiled", "torch-eager": "pytorch eager"}  # names in the published runs
DTYPES = {"fp32": "fp32", "bf16": "amp_bf16", "fp16": "amp"}


def answers(setting: Setting) -> bool:
    """Whether the law applies to ``setting``: a plain vision transformer in PyTorch on one device, in 16 or 32 bits."""
    known = setting.runtime.name in RUNTIMES and setting.formats.weights in DTYPES
    return known and setting.plan.devices == 1 and vision.plain(setting.arch) is not None


def pass_times(
    setting: Setting, device: DeviceProfile, images: npt.NDArray[np.int64], fold: str | None = None
) -> tuple[Float64Array, Float64Array]:
    """Seconds of passes over ``images`` images each, and the log half-widths of their 90 % intervals.

    Raises:
        Unsupported: The device lists no rate for matrix products in this number format.
    """
    model = vision.plain(setting.arch)
    assert model is not None
    setup = vision.Setup(device=device, runtime=RUNTIMES[setting.runtime.name], dtype=DTYPES[setting.formats.weights])
    found = [vision.step_s(model, setup, batch=int(count), fold=fold) for count in images]
    widths = [answer.log_halfwidth or 0.0 for answer in found]
    return np.array([answer.value for answer in found]), np.array(widths)
