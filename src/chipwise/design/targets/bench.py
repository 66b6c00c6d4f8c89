"""Measures exported candidates on a machine that can be reached: this one, or another one over ssh."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from chipwise.core.files import storage
from chipwise.deploy.export.exporters import export_for
from chipwise.deploy.measure.harness import measure, measure_alternately
from chipwise.deploy.measure.measurement import Measurement
from chipwise.deploy.measure.store import MeasurementStore
from chipwise.design.run.spec import RunSpec
from chipwise.design.run.start_spec import StartSpec
from chipwise.design.targets.prompts import with_longest
from chipwise.errors import MeasurementError
from chipwise.model.arch.design import Design
from chipwise.model.ops.workload import Workload

CANDIDATE_S = 60.0  # time limit for a candidate that does not respond
ATTEMPTS = 2  # most measurements of one candidate if the machine is busy
TIMING_S = 0.5  # least seconds of timing per candidate; finalists are timed longer, in turns
MEMORY_BYTES = 16_000_000_000  # most address space of the process that runs a candidate


@dataclass(frozen=True)
class Bench:
    """Measures models for a run; results are also stored in the user's data folder.

    ``anchors`` are reference times in the run's profile, from which drift is computed. ``host`` is the machine that is
    reached over ssh. With ``prompt_p99``, every model is also measured with prompts of that length; see
    :func:`with_longest`.
    """

    spec: RunSpec | StartSpec
    anchors: Mapping[str, float] | None = None
    timeout_s: float = CANDIDATE_S
    host: str | None = None
    prompt_p99: int | None = None

    def candidate(self, design: Design, folder: Path) -> Measurement:
        """Measures a design with random weights; latency and memory do not depend on training.

        Raises:
            MeasurementError: The design hangs, crashes, exceeds the memory limit, or outputs logits that are not
                finite.
            StorageError: The disk is full.
        """
        with storage(folder):
            path = export_for(self.spec.target.runtime, design, folder, stem="random")
        try:
            found, *longest = (
                measure(path, workload, seconds=TIMING_S, memory_limit_bytes=MEMORY_BYTES, **self._how)
                for workload in self._workloads
            )
        finally:
            path.unlink(missing_ok=True)
        found = with_longest(found, longest[0]) if longest else found
        MeasurementStore().add(found, design=design, source=f"search {self.spec.name}")
        return found

    def alternately(self, paths: list[Path]) -> list[Measurement | MeasurementError]:
        """Measures exported files alternately, so that drift affects all equally.

        For a file that fails, the result is its error.
        """
        found, *longest = (measure_alternately(paths, workload, **self._how) for workload in self._workloads)
        if not longest:
            return found
        pairs = zip(found, longest[0], strict=True)
        return [
            one if isinstance(one, MeasurementError)
            else long if isinstance(long, MeasurementError)
            else with_longest(one, long)
            for one, long in pairs
        ]  # fmt: skip

    @property
    def _workloads(self) -> list[Workload]:
        """The workloads to measure: prompts of the P50 length and, if lengths vary, prompts of the P99 length."""
        usual = self.spec.workload
        return [usual] if self.prompt_p99 is None else [usual, replace(usual, prompt_tokens=self.prompt_p99)]

    @property
    def _how(self) -> dict[str, Any]:
        """Arguments that :meth:`candidate` and :meth:`alternately` both pass on."""
        return {
            "timeout_s": self.timeout_s,
            "runtime": self.spec.target.runtime,
            "threads": self.spec.target.threads,
            "attempts": ATTEMPTS,
            "calibrated": self.anchors,
            "remote": self.host,
        }


class Benched:
    """Base class of targets that measure models if a machine can be reached.

    Args:
        bench: Measures on the device; None if nothing is measured.
        absent: Error message of measurements if the device cannot be reached.
    """

    def __init__(self, bench: Bench | None, absent: str) -> None:
        self._bench, self._absent = bench, absent

    @property
    def measures(self) -> bool:
        """Whether the device can be reached."""
        return self._bench is not None

    def measure(self, design: Design, folder: Path) -> Measurement:
        """Measures a design with random weights."""
        return self._reached.candidate(design, folder)

    def alternately(self, paths: list[Path]) -> list[Measurement | MeasurementError]:
        """Measures exported files alternately."""
        return self._reached.alternately(paths)

    @property
    def _reached(self) -> Bench:
        if self._bench is None:
            raise MeasurementError(self._absent)
        return self._bench
