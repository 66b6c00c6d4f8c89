"""LiteRT with XNNPACK on the CPU, in a separate Python environment: see ``litert_program.py``."""

from __future__ import annotations

from chipwise.core.extras import require
from chipwise.deploy.runtimes.in_program import ProgramRuntime

require("torch")  # writes the weights for the exporter


class LiteRt(ProgramRuntime):
    """LiteRT on the CPU. See :class:`chipwise.deploy.runtimes.Runtime`."""

    name, title = "litert", "LiteRT"
    module, excludes = "chipwise.deploy.runtimes.litert_program", "Python"
