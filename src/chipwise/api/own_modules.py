"""The public function that searches networks which a user's own module builds and trains."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from chipwise.core.arguments import public
from chipwise.core.extras import require
from chipwise.core.fields import whole_number
from chipwise.core.files import resumable
from chipwise.core.units import parse_field
from chipwise.design.limits import parse_constraints
from chipwise.errors import InputError

if TYPE_CHECKING:
    from chipwise.design.modules.module_search import ModuleResult


@resumable()
@public
def search_module(
    module: str | Path,
    *,
    latency: str | None = None,
    parameters: str | None = None,
    cpu: str = "10 min",
    out: str | Path | None = None,
    workers: int = 1,
    seed: int = 0,
    strategy: str = "auto",
    on_progress: Callable[[str, int, int], None] | None = None,
) -> ModuleResult:
    """Searches the networks of a user's module for the one with the lowest loss within limits, and trains it.

    The module is a Python file that defines a table ``CHOICES`` and the functions ``inputs()``, ``build(choices)``,
    ``train(module, cpu_s)`` and, if wanted, ``test(module)``; ``chipwise init convnet`` writes an example. The file is
    run. Networks are timed on this machine, exported to ONNX and run by ONNX Runtime with one thread.

    Args:
        module: The Python file.
        latency: Limit on the time of one pass, such as ``"<= 60 us"``.
        parameters: Limit on the number of parameters, such as ``"<= 100k"``.
        cpu: CPU time for everything.
        out: The run's folder; ``runs/<name of the file>`` by default. A search in it goes on.
        workers: Parallel trainings.
        seed: Random seed.
        strategy: A name from ``chipwise strategies``.
        on_progress: Called with the phase, and its numbers of finished and requested evaluations.

    Raises:
        InputError: The module or a limit cannot be used, or the budget is too small.
        Infeasible: No network keeps the limits, or every training failed.
        StudyError: The folder has another search.
        WorkerError: The winner's training failed.
        MissingExtra: ONNX Runtime is not installed.
    """
    require("onnxruntime")
    from chipwise.design.modules.module_search import ModuleSearch

    asked = {"ttft_p50": latency, "parameters": parameters}
    given = {name: text for name, text in asked.items() if text is not None}
    if not given:
        raise InputError("give a limit: latency, such as '<= 60 us', or parameters, such as '<= 100k'")
    path = Path(module)
    return ModuleSearch(
        path,
        parse_constraints(given, field="limits"),
        cpu_s=parse_field(cpu, "time", "cpu"),
        folder=Path(out) if out is not None else Path("runs") / path.stem,
        workers=whole_number("workers", workers),
        seed=whole_number("seed", seed, least=0),
        strategy=strategy,
        tell=on_progress or _silent,
    ).run()


def _silent(phase: str, done: int, wanted: int) -> None:
    """Shows nothing."""
