"""PyTorch, for files that ``deploy/runtimes/torch_serving.py`` wrote: eager, compiled, and CUDA graphs, on the CPU or
a GPU.

Prompts run eagerly or compiled; with CUDA graphs the decode step is captured once and replayed.
"""

from __future__ import annotations

import resource
from collections.abc import Mapping
from pathlib import Path
from typing import Literal, Protocol

from chipwise.core.arrays import AnyArray
from chipwise.deploy.runtimes import check_positions, prompt_shape
from chipwise.errors import MeasurementError, MissingExtra, SpecError, Unsupported

try:
    import torch

    from chipwise.deploy.runtimes.torch_serving import Serving, load
except ImportError as error:  # pragma: no cover - depends on what is installed
    raise MissingExtra("torch", "search") from error

Mode = Literal["eager", "compiled", "graphs"]


class Pass(Protocol):
    """The serving module, compiled or not."""

    def __call__(self, tokens: torch.Tensor, positions: torch.Tensor, filled: int, masked: bool, /) -> torch.Tensor:
        """Returns the logits after ``tokens``; ``filled`` is how many cache positions the tokens attend to."""
        ...


class TorchSession:
    """One loaded model. See :class:`chipwise.deploy.runtimes.Session`."""

    def __init__(self, path: Path, *, capacity: int, batch: int, device: str, mode: Mode) -> None:
        try:
            model, self.facts = load(path, device=device)
        except SpecError as error:
            raise MeasurementError(str(error)) from None
        check_positions(path, model.arch.max_tokens, capacity)
        self.vocab_size: int = model.arch.vocab_size
        self._batch, self._capacity, self._length = batch, capacity, 0
        self._serving = Serving(model, capacity=capacity, batch=batch)
        eager: tuple[Pass, Pass] = (self._serving, self._serving)
        self._prompt, self._step = _compiled(self._serving) if mode == "compiled" else eager
        self._exact = mode == "eager"  # steps attend only to filled positions; otherwise to all, with a mask
        self._device = torch.device(device)
        self._token = torch.zeros(batch, 1, dtype=torch.int64, device=device)
        self._position = torch.zeros(1, dtype=torch.int64, device=device)
        self._graph = self._capture() if mode == "graphs" else None

    def prefill(self, tokens: AnyArray) -> AnyArray:
        """Clears the cache and runs ``tokens`` (batch, prompt)."""
        _, length = prompt_shape(tokens, batch=self._batch, capacity=self._capacity)
        self._length = length
        with torch.inference_mode():
            positions = torch.arange(length, device=self._device)
            logits = self._prompt(torch.from_numpy(tokens).to(self._device), positions, length, False)
            return self._host(logits)

    def decode(self, tokens: AnyArray) -> AnyArray:
        """Runs one more token of each sequence, ``tokens`` (batch, 1)."""
        if self._length >= self._capacity:
            raise MeasurementError(f"the cache holds {self._capacity} positions and is full")
        with torch.inference_mode():
            self._token.copy_(torch.from_numpy(tokens))
            self._position.fill_(self._length)
            self._length += 1
            if self._graph is not None:
                graph, logits = self._graph
                graph.replay()
            elif self._exact:
                logits = self._step(self._token, self._position, self._length, False)
            else:
                logits = self._step(self._token, self._position, self._capacity, True)
            return self._host(logits)

    def _host(self, logits: torch.Tensor) -> AnyArray:
        found: AnyArray = logits.float().cpu().numpy()  # waits for the device
        return found

    def _capture(self) -> tuple[torch.cuda.CUDAGraph, torch.Tensor]:
        """Captures the decode step as a CUDA graph; returns it and the tensor of logits that each replay fills."""
        with torch.inference_mode():
            side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                for _ in range(3):  # libraries choose kernels and workspaces before the capture
                    self._step(self._token, self._position, self._capacity, True)
            torch.cuda.current_stream().wait_stream(side)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                logits = self._step(self._token, self._position, self._capacity, True)
        return graph, logits


def _compiled(serving: Serving) -> tuple[Pass, Pass]:
    """Returns compiled functions for a prompt of any length and for a step; a failed compilation raises an error."""
    torch._dynamo.config.recompile_limit = 256
    torch._dynamo.config.fail_on_recompile_limit_hit = True
    return torch.compile(serving, dynamic=True), torch.compile(serving, dynamic=False)


class TorchRuntime:
    """PyTorch in eager mode on the CPU. See :class:`chipwise.deploy.runtimes.Runtime`."""

    name = "torch"
    device = "cpu"
    mode: Mode = "eager"

    def version(self) -> str:
        """The runtime's own version."""
        return str(torch.__version__)

    def open(
        self, path: Path, *, capacity: int, batch: int, threads: int, options: Mapping[str, object]
    ) -> TorchSession:
        """Loads an exported file.

        Raises:
            MeasurementError: The file is not a model that this runtime can run, or options are given.
            Unsupported: The device does not exist.
        """
        if options:
            raise MeasurementError(f"the {self.name} backend takes no options, but {sorted(options)} were given")
        if self.device == "cuda":
            _prepare_cuda(self.name)
        torch.set_num_threads(threads)
        return TorchSession(Path(path), capacity=capacity, batch=batch, device=self.device, mode=self.mode)


class TorchCompiled(TorchRuntime):
    """``torch.compile`` on the CPU."""

    name = "torch-compiled"
    mode: Mode = "compiled"


class TorchCuda(TorchRuntime):
    """PyTorch in eager mode on a GPU."""

    name = "torch-cuda"
    device = "cuda"


class TorchCudaCompiled(TorchCuda):
    """``torch.compile`` on a GPU."""

    name = "torch-cuda-compiled"
    mode: Mode = "compiled"


class TorchCudaGraphs(TorchCuda):
    """CUDA graphs: the whole decode step is launched at once."""

    name = "torch-cuda-graphs"
    mode: Mode = "graphs"


def _prepare_cuda(name: str) -> None:
    """Removes the limit on address space, because CUDA maps many times the memory that it uses."""
    resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.getrlimit(resource.RLIMIT_AS)[1]))
    if not torch.cuda.is_available():
        raise Unsupported(f"{name} needs a GPU that PyTorch can use, and this machine has none")
