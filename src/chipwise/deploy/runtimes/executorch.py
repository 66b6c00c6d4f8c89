"""ExecuTorch with XNNPACK on the CPU, in a separate Python environment: see ``executorch_program.py``."""

from __future__ import annotations

from chipwise.core.extras import require
from chipwise.deploy.runtimes.in_program import ProgramRuntime

require("torch")  # writes the weights for the exporter


class ExecuTorch(ProgramRuntime):
    """ExecuTorch on the CPU. See :class:`chipwise.deploy.runtimes.Runtime`."""

    name, title = "executorch", "ExecuTorch"
    module, excludes = "chipwise.deploy.runtimes.executorch_program", "Python and PyTorch"
