"""What a kit's script reads and writes, as JSON: its types alone, since the script must run where chipwise is not."""

from __future__ import annotations

from typing import TypedDict

from chipwise.deploy.measure import messages


class Workload(TypedDict):
    """What is asked of a model."""

    batch: int
    prompt_tokens: int
    new_tokens: int


class Settings(Workload):
    """How each file is measured."""

    threads: int
    gpu_layers: int
    seed: int
    min_steps: int
    min_prefills: int
    seconds: float
    llama_bench: str | None


class Request(Settings):
    """One measurement, as the process that makes it reads it."""

    model: str
    runtime: str


class Reply(messages.Reply, total=False):
    """What one measurement found; an error alone where it failed."""

    windows: dict[str, list[float]]  # beginning and end of what was timed, for the meter
    backends: str | None  # of llama-bench


class Model(TypedDict):
    """A file of a kit."""

    file: str
    sha256: str
    runtime: str
    design: str
    name: str


class Kit(TypedDict, total=False):
    """``kit.json``."""

    schema: str
    device: str | None
    threads: int
    gpu_layers: int
    seed: int
    workload: Workload
    models: list[Model]


class Measured(TypedDict):
    """The rounds of one file."""

    file: str
    sha256: str
    rounds: list[Reply]
    error: str | None


class Results(TypedDict):
    """``kit-results.json``."""

    schema: str
    created: str
    complete: bool
    device: str | None
    machine: dict[str, object]
    threads: int
    kit: Kit
    measured: list[Measured]


class Load(TypedDict):
    """Counters at one moment."""

    wall_s: float
    cpu_s: float
    busy_s: float | None
    steal_s: float | None
    elsewhere_s: float | None
    switches: int | None
    load: float | None


class Bench(TypedDict, total=False):
    """What llama-bench prints of one test."""

    samples_ns: list[float]
    build_commit: str
    build_number: str
    backends: str
