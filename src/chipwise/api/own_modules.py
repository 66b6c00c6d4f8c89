"""The public function for searching networks that a user's own Python module builds and trains."""

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
    """Finds the network with the lowest loss within limits, among the networks that a user's module can build.

    The winner is then trained further. The module is a Python file that defines a table ``CHOICES`` and the functions
    ``inputs()``, ``build(choices)``, ``train(module, cpu_s)`` and, optionally, ``test(module)``. ``chipwise init
    convnet`` writes an example. The search executes the file. Networks are timed on this machine: they are exported to
    ONNX and run by ONNX Runtime with one thread.

    Args:
        module: The Python file.
        latency: Limit on the time of one pass, such as ``"<= 60 us"``.
        parameters: Limit on the number of parameters, such as ``"<= 100k"``.
        cpu: CPU time for the whole search, including the winner's training.
        out: The run's folder. Default: ``runs/<name of the file>``. If it holds a stopped search, that search is
            continued.
        workers: Number of parallel training runs.
        seed: Random seed.
        strategy: A name from ``chipwise strategies``.
        on_progress: Called with the phase, the number of finished evaluations, and the total number.

    Raises:
        InputError: The module or a limit cannot be used, or the budget is too small.
        Infeasible: No network meets the limits, or every training run failed.
        StudyError: The folder holds a different search.
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
        tell=on_progress or (lambda phase, done, wanted: None),
    ).run()
