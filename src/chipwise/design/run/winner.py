"""``chipwise.json`` in a winner's folder: its design, workload, limits and predictions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from chipwise.core.files import build, read_json
from chipwise.core.record import Record
from chipwise.deploy.serving.engine import Promise
from chipwise.design.limits import Constraint, parse_constraints
from chipwise.design.run.folder import PROMISES
from chipwise.errors import InputError, SpecError
from chipwise.model.arch.design import USUALLY_FUSED, Design
from chipwise.model.arch.io import from_data
from chipwise.model.ops.workload import Workload
from chipwise.training.tasks.protocol import task_named


@dataclass(frozen=True, slots=True, kw_only=True)
class WinnerFile:
    """The contents of ``chipwise.json`` that other commands use."""

    design: Design
    workload: Workload
    runtime: str
    threads: int
    limits: tuple[Constraint, ...]  # limits on measured metrics; limits on tasks are checked by chipwise evaluate
    promised: Mapping[str, tuple[float, float | None, float | None]]  # value and interval, by metric
    prompt_p99: int | None = None  # P99 of prompt tokens; P99 metrics and peak memory are predicted for it

    def promise(self) -> Promise | None:
        """The predicted time of a decode step, or of a forward pass if no tokens are generated; None if unknown."""
        known = self.promised.get("tpot_p50") or self.promised.get("ttft_p50")
        return known and promised(known, self.workload, runtime=self.runtime, threads=self.threads)


def promised(
    step_s: tuple[float, float | None, float | None], workload: Workload, *, runtime: str, threads: int
) -> Promise:
    """A :class:`Promise` that a decode step takes this time (value and interval, in seconds)."""
    request = f"{workload.prompt_tokens} prompt and {workload.new_tokens} new tokens, {workload.batch} at a time"
    of = f"{runtime}, {threads} thread{'s' if threads > 1 else ''}, {request}"
    value, low, high = step_s
    return Promise(tpot_s=value, low_s=low, high_s=high, of=of)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stored:
    weights: str
    workload: Workload
    constraints: dict[str, object]  # strings, lists, and mappings for soft limits; checked by parse_constraints
    promised: dict[str, tuple[float | None, ...]]
    target: dict[str, object]


def read_winner(folder: Path) -> WinnerFile | None:
    """Reads ``chipwise.json`` in a winner's folder; None if the folder has no such file.

    Raises:
        SpecError: The file is damaged; the message names the field.
    """
    path = folder / PROMISES
    if not path.exists():
        return None
    name, data = str(path), read_json(path)
    if not isinstance(data, dict):
        raise SpecError("must be a mapping of fields", file=name)
    needed = ("arch", *_Stored.__dataclass_fields__)
    if missing := [field for field in needed if field not in data]:
        raise SpecError("this field is missing; chipwise did not write this file", file=name, field=missing[0])
    stored = build(_Stored, {field: data[field] for field in _Stored.__dataclass_fields__}, file=name)
    threads = stored.target.get("threads")
    if not isinstance(threads, int) or isinstance(threads, bool) or threads < 1:
        raise SpecError("must be a whole number of at least 1", file=name, field="target.threads")
    promised = {}
    for metric, values in stored.promised.items():
        if len(values) != 3 or values[0] is None:
            raise SpecError("must be three numbers: value, low and high", file=name, field=f"promised.{metric}")
        promised[metric] = (values[0], values[1], values[2])
    arch = from_data(data["arch"], file=name)
    try:
        quality = task_named(str(data.get("task", "text"))).metric
        limits = parse_constraints(stored.constraints, tasks=None, quality=quality)
        return WinnerFile(
            design=Design(arch=arch, weights=stored.weights, fused=tuple(data.get("fused", USUALLY_FUSED))),
            workload=stored.workload,
            runtime=str(stored.target.get("runtime")),
            threads=threads,
            limits=tuple(item for item in limits if item.task is None),
            promised=promised,
            prompt_p99=Record(data, file=name).get("prompt_p99", int, None),
        )
    except InputError as error:
        raise SpecError(str(error), file=name) from None
