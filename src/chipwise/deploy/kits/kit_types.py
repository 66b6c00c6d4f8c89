"""Types of the JSON that a kit's script reads and writes; the script imports them only for type checking."""

from __future__ import annotations

from typing import NotRequired, TypedDict

from chipwise.deploy.measure import messages


class Workload(TypedDict):
    """The requests with which a model is measured."""

    batch: int
    prompt_tokens: int
    new_tokens: int


class Settings(Workload):
    """Settings of the measurement of each file."""

    threads: int
    gpu_layers: int
    seed: int
    min_steps: int
    min_prefills: int
    seconds: float
    llama_bench: str | None
    sustained_s: float  # length of a long load instead of rounds; 0: none


class Request(Settings):
    """Request to the measuring process for one measurement."""

    model: str
    runtime: str


class Window(TypedDict, total=False):
    """A period of a long load; a clock or temperature of None is unknown."""

    at_s: float  # middle of the period
    tpot_p50_s: float
    steps: int
    clock_hz: float | None
    temperature_c: float | None


class Sustained(TypedDict):
    """A long load of one file."""

    file: str
    windows: list[Window]
    ambient_c: float | None  # temperature of the surroundings, if stated
    error: str | None


class Reply(messages.Reply, total=False):
    """Result of one measurement; only ``error`` if it failed, only ``under_load`` for a long load."""

    under_load: list[Window]

    windows: dict[str, list[float]]  # start and end of the timed periods, for the power meter
    backends: str | None  # for llama-bench only


class Model(TypedDict):
    """A file of a kit."""

    file: str
    sha256: str
    runtime: str
    design: str
    name: str


class Kit(TypedDict, total=False):
    """Contents of ``kit.json``."""

    schema: str
    device: str | None
    threads: int
    gpu_layers: int
    seed: int
    workload: Workload
    prompt_p99: int  # tokens of the long prompt, if prompts vary
    sustained_s: float  # length of a long load, if the run limits the speed under it
    models: list[Model]


class Measured(TypedDict):
    """All rounds of one file."""

    file: str
    sha256: str
    rounds: list[Reply]
    longest: NotRequired[list[Reply]]  # round with the P99 prompt
    error: str | None


class Results(TypedDict):
    """Contents of ``kit-results.json``."""

    schema: str
    created: str
    complete: bool
    device: str | None
    machine: dict[str, object]
    threads: int
    kit: Kit
    measured: list[Measured]
    sustained: NotRequired[list[Sustained]]


class Load(TypedDict):
    """Load counters at one moment."""

    wall_s: float
    cpu_s: float
    busy_s: float | None
    steal_s: float | None
    elsewhere_s: float | None
    switches: int | None
    load: float | None


class Bench(TypedDict, total=False):
    """One test in the output of llama-bench."""

    samples_ns: list[float]
    build_commit: str
    build_number: str
    backends: str
