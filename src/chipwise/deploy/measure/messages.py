"""JSON messages between the harness and the measuring process (``worker.py``)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NotRequired, TypedDict

from chipwise.deploy.runtimes import Facts


class Request(TypedDict):
    """Request for one measurement."""

    model: str
    runtime: str
    threads: int
    cpus: list[int] | None  # None: the worker chooses
    prompt_tokens: int
    new_tokens: int
    batch: int
    min_steps: int
    min_prefills: int
    seconds: float
    most_s: float
    warm_up_s: float
    memory_limit_bytes: int | None
    cpu_limit_s: int
    seed: int
    options: Mapping[str, object]
    reference: str | None
    describe: NotRequired[bool]  # whether the reply describes the machine


class Reply(TypedDict, total=False):
    """Samples and readings of one measurement; only ``error`` if it failed."""

    error: str
    lacks: bool  # whether it failed because the runtime is missing
    cpus: list[int]
    machine: str
    instructions: str | None
    runtime_version: str
    facts: Facts
    ttft_s: list[float]
    tpot_s: list[float]
    ttft_cpu_s: list[float]
    tpot_cpu_s: list[float]
    tpot_at_s: list[float]
    steps_per_sample: int
    cpu_s: float
    wall_s: float
    peak_memory_bytes: int | None
    energy_j: float | None
    energy_from: str
    readings: dict[str, float | None]
    reference_s: dict[str, list[float]]
    load_before: float | None
    load_after: float | None
    clock_hz_before: float | None
    clock_hz_after: float | None
    temperature_c: float | None
    settings: dict[str, object]


def unobserved() -> Reply:
    """Fields of a measurement on a machine whose load and processes were not observed."""
    return {
        "ttft_cpu_s": [],
        "tpot_cpu_s": [],
        "cpu_s": 0.0,
        "peak_memory_bytes": None,
        "energy_j": None,
        "readings": {},
        "reference_s": {},
        "load_before": None,
        "load_after": None,
        "clock_hz_before": None,
        "clock_hz_after": None,
        "temperature_c": None,
    }
