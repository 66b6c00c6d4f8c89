"""Runtimes that can be measured: the protocol, the table of names, and one file per runtime.

Importing this module does not load any runtime.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import shutil
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple, Protocol, TypedDict, runtime_checkable

import numpy as np
import numpy.typing as npt

from chipwise.core.arrays import AnyArray
from chipwise.core.environments import lacking
from chipwise.core.tables import Table
from chipwise.errors import MeasurementError, UnknownName, nearest
from chipwise.hardware.runtime import runtime_named

TEXT_INPUTS = ("input_ids", "attention_mask", "position_ids", "token_type_ids")
TEXT_PAST = "past_key_values."  # prefix of the names of a cache's inputs
"""Names of inputs that Hugging Face's exports of text models have."""

Tokens = npt.NDArray[np.int64]  # (batch, tokens)
Logits = npt.NDArray[np.float32]  # (batch, vocab)


class RequestFacts(TypedDict):
    """Sizes of a request to a ranking model."""

    history: int
    candidates: int
    items: int
    tags: int
    bag: int


class Facts(TypedDict, total=False):
    """Metadata that chipwise writes to a file, limited to the fields that runtimes read."""

    design: str
    name: str
    logits: str
    vocab_size: int
    max_tokens: int
    positions: str
    kv: list[tuple[int, int, int]]  # index, heads and head size of each layer with a KV cache
    conv: list[tuple[str, int, int]]  # name, channels and number of stored inputs of each convolution's state
    encodes: str  # name of the output of a model that does not generate
    padded: bool
    image: list[int]  # shape of an image, a sound, or a text of word ids
    inputs: dict[str, list[int]]  # shapes of the inputs of any other graph
    numbers: int  # size of the vocabulary of word ids
    gives: list[int]  # shape of the outputs
    question: int  # words in a question
    seconds: float  # length of a sound
    request: RequestFacts
    steps: int  # passes of a denoiser
    solver: Literal["euler", "multistep"]
    shift: float
    told: list[str]
    guidance: float
    labels: int


class Session(Protocol):
    """A loaded model with its KV cache.

    ``prefill`` starts new sequences; ``decode`` continues with one token each and may be called until the cache holds
    ``capacity`` positions. Both return the logits of the last position of each sequence; the array may be reused by
    the next call. The same tokens give the same logits, regardless of earlier use of the session.

    A session with simulated time may have a method ``clock`` that returns this time in seconds; see :func:`clock_of`.
    """

    vocab_size: int
    facts: Facts  # contains ``design`` and ``name`` if the file has them

    def prefill(self, tokens: Tokens) -> Logits:
        """Clears the cache and processes ``tokens`` (batch, prompt)."""
        ...

    def decode(self, tokens: Tokens) -> Logits:
        """Processes one more token of each sequence, ``tokens`` (batch, 1)."""
        ...


class Timed(NamedTuple):
    """Times that a session measured itself: seconds of each prefill and of each decode step, and the last output.

    Processor times are those of the thread that runs the model, averaged over several passes; empty if unknown.
    """

    output: Logits
    prefill_s: list[float]
    step_s: list[float]
    prefill_cpu_s: list[float]
    step_cpu_s: list[float]


@runtime_checkable
class Elsewhere(Protocol):
    """A session that runs in another process and times itself, so that times exclude messages between processes."""

    steps_per_sample: int  # decode steps averaged in each of the times

    def timed(self, tokens: Tokens, steps: int) -> Timed:
        """Times a prompt and ``steps`` greedy decode steps; for a model that does not decode, one or more passes."""
        ...

    def cpu_s(self) -> float | None:
        """Processor seconds of the other process so far; None if unknown."""
        ...

    def peak_memory_bytes(self) -> int | None:
        """Peak memory of the other process; None if unknown."""
        ...

    def settings(self) -> dict[str, object]:
        """Settings to record with a measurement."""
        ...


class SinglePass(ABC):
    """A loaded model that answers in one pass. The harness treats this as a prefill, with the inputs as prompts."""

    facts: Facts
    vocab_size: int = 0

    @abstractmethod
    def prefill(self, tokens: AnyArray) -> AnyArray:
        """Outputs for the model's inputs."""

    def answer(self, *inputs: AnyArray) -> AnyArray:
        """Outputs of one pass for the inputs of the model's torch module."""
        return self.prefill(*inputs)

    def decode(self, tokens: AnyArray) -> AnyArray:
        """Always raises an error, because the model does not generate.

        Raises:
            MeasurementError: Always.
        """
        raise MeasurementError(f"{self.facts['name']}: this model answers in one pass and does not generate")


class Runtime(Protocol):
    """Runs exported models. Stateless; importing its module loads the runtime."""

    name: str

    def version(self) -> str:
        """The runtime's own version."""
        ...

    def open(self, path: Path, *, capacity: int, batch: int, threads: int, options: Mapping[str, object]) -> Session:
        """Loads the model at ``path`` with a cache of ``capacity`` positions for ``batch`` sequences.

        Raises:
            MeasurementError: The file is not a model that this runtime can run.
        """
        ...


RUNTIMES = Table(
    "runtime",
    "chipwise.runtimes",
    {
        "onnxruntime": "chipwise.deploy.runtimes.onnxruntime:OnnxRuntime",
        "openvino": "chipwise.deploy.runtimes.openvino:OpenVino",
        "browser": "chipwise.deploy.runtimes.browser:Browser",
        "llama.cpp": "chipwise.deploy.runtimes.llama_cpp:LlamaCpp",
        "wllama": "chipwise.deploy.runtimes.wllama:Wllama",
        "executorch": "chipwise.deploy.runtimes.executorch:ExecuTorch",
        "tvm": "chipwise.deploy.runtimes.tvm:Tvm",
        "litert": "chipwise.deploy.runtimes.litert:LiteRt",
        "torch": "chipwise.deploy.runtimes.torch:TorchRuntime",
        "torch-compiled": "chipwise.deploy.runtimes.torch:TorchCompiled",
        "torch-cuda": "chipwise.deploy.runtimes.torch:TorchCuda",
        "torch-cuda-compiled": "chipwise.deploy.runtimes.torch:TorchCudaCompiled",
        "torch-cuda-graphs": "chipwise.deploy.runtimes.torch:TorchCudaGraphs",
    },
    hidden={"fake": "chipwise.deploy.runtimes.fake:FakeRuntime"},  # a test double
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """Requirements of a built-in runtime in addition to chipwise."""

    module: str  # module that must be importable
    extra: str  # installs the module: pip install 'chipwise[extra]'
    gpu: bool = False
    programs: tuple[str, ...] = ()  # one of these must be on the path, or be named by ``CHIPWISE_BROWSER``
    environment: str = ""  # the separate Python environment that it runs in, see ``core/environments.py``
    loading_s: float = 0.0  # time to load a model in addition to reading it, on a busy machine
    models_per_start: int = 1  # models that calibration runs per process; more if a start takes seconds


BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
NEEDS = {
    "onnxruntime": Needs(module="onnxruntime", extra="search"),
    "openvino": Needs(module="openvino", extra="openvino"),
    "browser": Needs(module="onnx", extra="search", programs=BROWSERS, loading_s=60.0, models_per_start=6),
    "llama.cpp": Needs(module="llama_cpp", extra="llama-cpp"),
    "wllama": Needs(module="gguf", extra="gguf", programs=BROWSERS, loading_s=60.0, models_per_start=6),
    "executorch": Needs(module="torch", extra="search", environment="executorch", loading_s=60.0, models_per_start=6),
    "tvm": Needs(module="onnxruntime", extra="search", environment="tvm", loading_s=120.0),
    "litert": Needs(module="torch", extra="search", environment="litert", loading_s=60.0, models_per_start=6),
    "torch": Needs(module="torch", extra="search"),
    "torch-compiled": Needs(module="torch", extra="search", loading_s=300.0),
    "torch-cuda": Needs(module="torch", extra="search", gpu=True),
    "torch-cuda-compiled": Needs(module="torch", extra="search", gpu=True, loading_s=300.0),
    "torch-cuda-graphs": Needs(module="torch", extra="search", gpu=True),
}


def table_name(runtime: str) -> str:
    """The key of a runtime in ``RUNTIMES``; ``runtime`` is this key, or an alias that ``chipwise estimate`` accepts.

    >>> table_name("torch-compile"), table_name("ort")
    ('torch-compiled', 'onnxruntime')
    """
    if runtime in RUNTIMES:
        return runtime
    try:
        known = runtime_named(runtime)
    except UnknownName:
        return runtime
    return next((name for name in RUNTIMES.names() if name == known.name or name in known.aliases), runtime)


def measured_instead(runtime: str) -> str:
    """Suggests names in ``RUNTIMES``: all if ``runtime`` can be predicted but not measured, else similar ones.

    >>> measured_instead("onnxruntme")
    "did you mean 'onnxruntime'?"
    """
    try:
        title = runtime_named(runtime).title
    except UnknownName:
        return nearest(runtime, RUNTIMES.names())
    return (
        f"{title} can be predicted from data sheets, but not measured; these can: {', '.join(sorted(RUNTIMES.names()))}"
    )


def clock_of(session: Session) -> Callable[[], float]:
    """The clock in seconds by which ``session`` is timed: its own if it has one, else this machine's."""
    clock: Callable[[], float] = getattr(session, "clock", time.perf_counter)
    return clock


def prompt_shape(tokens: Tokens, *, batch: int, capacity: int) -> tuple[int, int]:
    """Number of sequences and tokens of a prompt, checked against the sizes of the session.

    Raises:
        MeasurementError: The model was opened for other sizes.
    """
    sequences, length = tokens.shape
    if sequences != batch or not 1 <= length <= capacity:
        opened = f"{batch} sequence{'s' if batch > 1 else ''} of up to {capacity} tokens"
        raise MeasurementError(f"tokens have shape {tokens.shape}; the model was opened for {opened}")
    return sequences, length


def check_positions(path: str | Path, most: int, capacity: int) -> None:
    """Checks that the model in a file has enough positions for a workload.

    Raises:
        MeasurementError: The model has fewer positions.
    """
    if capacity > most:
        raise MeasurementError(f"{path}: the model has {most} positions; the workload needs {capacity}")


def loading_s(runtime: str) -> float:
    """Seconds allowed for loading a model in ``runtime``, in addition to the time for reading its file."""
    return NEEDS[runtime].loading_s if runtime in NEEDS else 0.0


def installed_version(runtime: str) -> str | None:
    """The version of the installed package that is ``runtime``; None if there is none, or it runs in other programs."""
    needs = NEEDS.get(runtime)
    if needs is None or needs.programs or needs.environment:
        return None
    names = importlib.metadata.packages_distributions().get(needs.module)
    return importlib.metadata.version(names[0]) if names else None


def program_of(names: Sequence[str]) -> str | None:
    """Path of the program in ``CHIPWISE_BROWSER``, else of the first of ``names`` on the PATH; None if none exists."""
    own = os.environ.get("CHIPWISE_BROWSER")
    return next(filter(None, map(shutil.which, [own] if own else names)), None)


def missing(runtime: str) -> str | None:
    """What ``runtime`` lacks on this machine, as text; None if nothing is known to be missing."""
    needs = NEEDS.get(runtime)
    if needs is None:
        return None
    if importlib.util.find_spec(needs.module) is None:
        return f"{needs.module} is not installed; it comes with: pip install 'chipwise[{needs.extra}]'"
    if needs.programs and program_of(needs.programs) is None:
        return f"none of {', '.join(needs.programs)} is on the PATH; install one, or name it in CHIPWISE_BROWSER"
    if needs.environment and (lack := lacking(needs.environment)):
        return lack
    if needs.gpu and not any(Path("/dev").glob("nvidia[0-9]*")):
        return "there is no GPU"
    return None
