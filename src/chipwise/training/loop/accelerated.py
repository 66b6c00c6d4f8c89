"""Training loop with GPUs, several processes, gradient accumulation and activation recomputation.

Loop, recipe and checkpoints are those of ``trainer.py``. Several processes (``torchrun``) split each batch. With
``ddp``, every process holds the whole model. With ``fsdp``, every process holds only a shard of each layer's weights,
but all of Muon's gradient averages, unsharded. All processes must see the same folder; only the first process writes to
it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.utils.checkpoint import checkpoint as recomputed

from chipwise.core.arrays import AnyArray
from chipwise.core.digest import digest
from chipwise.errors import DoesNotFit, InputError, TrainingDiverged, Unsupported
from chipwise.model.arch.arch import ArchSpec
from chipwise.model.kinds.text.module import LayerModule, Transformer
from chipwise.model.nn.precision import Precision, fastest_precision, torch_dtype
from chipwise.model.walk.module import build
from chipwise.model.walk.weights import weight_shapes
from chipwise.training.data.dataset import Dataset, with_held
from chipwise.training.data.recipe import Recipe
from chipwise.training.loop import checkpoint
from chipwise.training.loop.checkpoint import Progress
from chipwise.training.loop.optimiser import gathered, shard_of
from chipwise.training.loop.progress import TrainingProgress, Update
from chipwise.training.loop.trainer import Run, TrainResult

Sharing = Literal["ddp", "fsdp"]
_PEAK_SIZE = {"cpu": 1024, "cuda": 8192}  # side of the square matrices whose product measures peak FLOP/s


@dataclass(frozen=True, slots=True, kw_only=True)
class Execution:
    """Device, precision and parallelism of a training run. With the defaults, it runs as in ``trainer.py``."""

    device: str = "cpu"
    precision: Precision | None = None  # precision of matrix products; the faster one on this device unless given
    accumulate: int = 1  # batches whose gradients are summed for one step
    recompute: bool = False  # recompute activations within layers instead of storing them
    sharing: Sharing = "ddp"
    peak_flops_per_s: float | None = None  # peak of one device, for MFU
    compiler: str | None = None  # backend of torch.compile, such as inductor; not compiled unless given
    device_share: float = 1.0  # share of the device's time that this training run gets, if several share it

    def __post_init__(self) -> None:
        if self.accumulate < 1:
            raise InputError(f"--accumulate must be at least 1, not {self.accumulate}")
        if self.precision not in (None, "bf16", "fp32"):
            raise InputError(f"--precision must be bf16 or fp32, not {self.precision!r}")
        if self.sharing not in ("ddp", "fsdp"):
            raise InputError(f"--sharing must be ddp or fsdp, not {self.sharing!r}")
        if self.peak_flops_per_s is not None and not self.peak_flops_per_s > 0:
            raise InputError(f"--peak must be above zero, not {self.peak_flops_per_s}")
        if not 0 < self.device_share <= 1:
            raise InputError(
                f"the share of the device for a training run must be above 0 and at most 1, not {self.device_share:g}"
            )

    @property
    def dtype(self) -> torch.dtype:
        """Number format of matrix products as a torch dtype."""
        if self.precision is None and self.device.startswith("cuda"):
            return torch.bfloat16
        return torch_dtype(self.precision or fastest_precision())


def train_accelerated(
    arch: ArchSpec,
    data: Dataset,
    *,
    execution: Execution,
    steps: int | None = None,
    cpu_budget_s: float | None = None,
    gpu_budget_s: float | None = None,
    seed: int,
    folder: str | Path,
    recipe: Recipe | None = None,
    start: Mapping[str, AnyArray] | None = None,
    on_progress: Callable[[TrainingProgress], None] | None = None,
    checkpoint_every_s: float = 30.0,
    max_validation_bytes: int | None = None,
) -> TrainResult:
    """Trains ``arch`` on ``data`` for a number of steps, CPU seconds or GPU seconds; continues a run in ``folder``.

    On a GPU, a batch is computed in microbatches if it does not fit into memory: whenever memory runs out, their size
    is halved. Gradients are summed over microbatches, so the result of a step is the same.

    Args:
        arch: The architecture.
        data: Training data that fits the model.
        execution: Device, precision and parallelism.
        steps: Budget in optimiser steps. Give exactly one of the three budgets.
        cpu_budget_s: Budget in CPU seconds; only for one process without a GPU.
        gpu_budget_s: Budget in GPU seconds of the steps; only for one process. Training runs that share a device are
            charged their share of the time.
        seed: Random seed of the weights and of the order of the data.
        folder: Folder for checkpoints and weights.
        recipe: Training recipe; its batch is the batch of one process.
        start: Weights to start from, with the names of the torch module. Default: random weights.
        on_progress: Called about once a second.
        checkpoint_every_s: Seconds of training between checkpoints.
        max_validation_bytes: Limit, in bytes, on the validation text that is evaluated. Default: all of it.

    Raises:
        InputError: Not exactly one budget is given, or this budget cannot be used with ``execution``.
        DoesNotFit: The device has too little memory for even one window of text.
        TrainingDiverged: The loss was no longer finite; the last good state stays in ``folder``.
        KeyboardInterrupt: After Ctrl-C, once the current step is finished and its state is written.
    """
    given = [value for value in (steps, cpu_budget_s, gpu_budget_s) if value is not None]
    if len(given) != 1:
        raise InputError("give one budget: --steps, --tokens or --cpu-seconds")
    budget = float(given[0])
    if not 0 < budget < float("inf"):
        raise InputError(f"the budget must be positive, not {budget:g}")
    data.require_fit(arch)
    if cpu_budget_s is not None and (processes() > 1 or execution.device != "cpu"):
        raise InputError("--cpu-seconds works only with one process and without a GPU; give --steps or --tokens")
    if gpu_budget_s is not None and processes() > 1:
        raise InputError("a budget in GPU seconds works only with one process; give --steps or --tokens")
    clock = time.process_time if execution.device == "cpu" and gpu_budget_s is None else time.perf_counter
    run = AcceleratedRun(
        arch,
        data,
        budget,
        seed,
        Path(folder),
        recipe or Recipe(),
        execution,
        counted=steps is not None,
        start=start,
        clock=lambda: clock() * execution.device_share,
    )
    try:
        with run.interruptible():
            return run.go(on_progress, checkpoint_every_s, max_validation_bytes)  # type: ignore[arg-type]
    except TrainingDiverged as error:
        raise TrainingDiverged(f"{error}; the last good state is kept in {folder}") from None


class AcceleratedRun(Run):
    """A training run with an :class:`Execution`."""

    def __init__(
        self,
        arch: ArchSpec,
        data: Dataset,
        budget: float,
        seed: int,
        folder: Path,
        recipe: Recipe,
        execution: Execution,
        *,
        counted: bool,
        start: Mapping[str, AnyArray] | None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.execution = execution
        self.pieces = 1  # microbatches per batch; more when larger ones run out of device memory
        self.rank, self.world = rank(), processes()
        self.stop = False
        self.began = (time.perf_counter(), -1)  # time and step at which this call started
        on_gpu: Precision | None = "bf16" if execution.device != "cpu" else None
        super().__init__(
            arch,
            data,
            budget,
            seed,
            folder,
            recipe,
            clock,
            counted=counted,
            given=start,
            precision=execution.precision or on_gpu,
        )
        parts = execution.accumulate * self.world
        if parts > 1:
            self.key = digest([self.key, parts])

    @property
    def step_tokens(self) -> int:
        """Number of tokens in one step, over all processes."""
        return super().step_tokens * self.execution.accumulate * self.world

    def start(self) -> None:
        """Initialises the model with the given weights or at random, and prepares it for the device."""
        model = with_held(build(self.arch, seed=self.seed), self.data)
        if self.given is not None:
            model.load_state_dict({name: torch.from_numpy(np.array(value)) for name, value in self.given.items()})
        self.model = model.to(self.execution.device).train()
        if self.execution.recompute:
            for layer in self.model.layers.values():
                _recompute(layer)
        self.loss: nn.Module = _Loss(self.model, self.data, lambda: torch_dtype(self.precision))
        if self.execution.compiler is not None:
            self.loss = torch.compile(self.loss, backend=self.execution.compiler, dynamic=False)  # type: ignore[assignment]
        if self.world > 1:
            self._share()
        self.optimiser = self._optimiser()
        self.at = Progress(precision=self.precision)

    def _share(self) -> None:
        if self.execution.sharing == "ddp":
            self.loss = nn.parallel.DistributedDataParallel(self.loss)
            return
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        mesh = init_device_mesh(torch.device(self.execution.device).type, (self.world,))
        for layer in self.model.layers.values():
            fully_shard(layer, mesh=mesh)
        fully_shard(self.loss, mesh=mesh)

    @property
    def _sharded(self) -> bool:
        return self.world > 1 and self.execution.sharing == "fsdp"

    def take(self, weights: dict[str, Tensor]) -> None:
        """Loads weights into the model; each process takes its shard."""
        if not self._sharded:
            super().take(weights)
            return
        with torch.no_grad():
            for name, p in self.model.named_parameters():
                p.copy_(shard_of(weights[name].to(self.execution.device), p))

    def weights(self) -> dict[str, Tensor]:
        """The full, unsharded weights in host memory. All processes must call this method at the same time."""
        return {name: gathered(value).cpu() for name, value in self.model.state_dict().items()}

    def save(self, path: Path) -> None:
        """Writes the current state: all processes gather it, and the first process writes it."""
        weights, averages = self.weights(), self.optimiser.state()
        if self.rank == 0:
            checkpoint.save(path, self.key, self.at, weights, averages)
        _together()

    def backward(self) -> Tensor:
        """Computes the gradient of this process's part of the batch, and averages gradients over all processes."""
        parts = self.execution.accumulate
        total = torch.zeros((), device=self.execution.device)
        for part in range(parts):
            number = (self.at.steps * parts + part) * self.world + self.rank
            batch = self.data.batch(self.arch, self.recipe, number, seed=self.seed)
            with self._without_exchange(part < parts - 1):
                total += self._in_pieces([tensor.to(self.execution.device) for tensor in batch], 1 / parts)
        if self.world > 1:
            dist.all_reduce(total)
            total /= self.world
        return total

    def _in_pieces(self, batch: Sequence[Tensor], weight: float) -> Tensor:
        """Adds ``weight`` times the gradient of one batch; returns ``weight`` times its mean loss.

        When memory runs out, this batch and all later ones are computed in microbatches of half the size.

        Raises:
            DoesNotFit: Not even one window fits into memory; or memory ran out in a run with several processes, where
                the size of microbatches is never reduced.
        """
        before = [None if p.grad is None else p.grad.clone() for p in self.model.parameters()] if weight < 1 else None
        while True:
            count = len(batch[0])
            size = -(-count // self.pieces)
            try:
                total = torch.zeros((), device=self.execution.device)
                for some in zip(*(torch.split(part, size) for part in batch), strict=True):
                    loss = self.loss(*some) * (weight * len(some[0]) / count)
                    loss.backward()
                    total += loss.detach()
                return total
            except torch.OutOfMemoryError:
                if size == 1 or self.world > 1:
                    tokens = super().step_tokens // self.recipe.batch_windows
                    held = sum(p.numel() * p.element_size() for p in self.model.parameters())
                    raise DoesNotFit(
                        f"{self.execution.device} has too little memory to train on {size} x {tokens} tokens at once "
                        f"({held / 1e9:.2f} GB of weights); use a smaller window or batch, or a device "
                        "with more memory"
                    ) from None
            self._give_back(before)
            self.pieces *= 2

    def _give_back(self, gradients: Sequence[Tensor | None] | None) -> None:
        """Frees memory after a step that ran out of memory, and restores the gradients from before the step."""
        for place, p in enumerate(self.model.parameters()):
            p.grad = None if gradients is None else gradients[place]
        if self.execution.device.startswith("cuda"):
            torch.cuda.empty_cache()

    @contextlib.contextmanager
    def _without_exchange(self, wanted: bool) -> Iterator[None]:
        """Context without gradient exchange between processes, for all accumulated batches except the last one."""
        if wanted and isinstance(self.loss, nn.parallel.DistributedDataParallel):
            with self.loss.no_sync():
                yield
        else:
            yield

    def after_step(self) -> None:
        """Writes the state and stops if Ctrl-C was pressed."""
        if self.stop:
            self.save_here()
            raise KeyboardInterrupt

    @contextlib.contextmanager
    def interruptible(self) -> Iterator[None]:
        """Delays Ctrl-C until the current step has ended; a second Ctrl-C stops at once."""
        if threading.current_thread() is not threading.main_thread() or self.world > 1:
            yield
            return

        def stop(number: int, frame: FrameType | None) -> None:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            self.stop = True

        before = signal.signal(signal.SIGINT, stop)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)

    def _update(self) -> TrainingProgress:
        at, (since, from_step) = self.at, self.began
        done, seconds = at.steps - from_step, max(time.perf_counter() - since, 1e-9)
        per_s = done * self.step_tokens / seconds
        peak = self.execution.peak_flops_per_s
        pace = (self.spent(at) - self._from) / seconds
        base = super()._update()
        return TrainingProgress(
            cpu_s=base.cpu_s,
            cpu_budget_s=base.cpu_budget_s,
            tokens=base.tokens,
            loss=base.loss,
            share=base.share,
            steps=at.steps,
            tokens_per_s=per_s,
            mfu=None if peak is None else 6 * multiplied(self.arch) * per_s / (peak * self.world),
            left_s=self.budget * (1 - base.share) / pace if pace > 0 else 0.0,
        )

    def loop(self, report: Callable[[Update], None] | None, checkpoint_every_s: float) -> None:
        """Runs the trainer's loop; reported throughput counts only steps of this call."""
        self.began, self._from = (time.perf_counter(), self.at.steps), self.spent(self.at)
        super().loop(report if self.rank == 0 else None, checkpoint_every_s)

    def whole_model(self) -> Transformer:
        """The unsharded model, on every process."""
        if not self._sharded:
            return self.model
        model = Transformer(self.arch)
        model.load_state_dict(self.weights())
        return model.to(self.execution.device)

    def keep(self, result: TrainResult, weights: bytes) -> None:
        """Writes weights and result, in the first process only."""
        if self.rank == 0:
            super().keep(result, weights)
        _together()


class _Loss(nn.Module):
    """Module whose forward pass computes the model's outputs and the loss, for wrapping in DDP or FSDP."""

    def __init__(self, model: Transformer, data: Dataset, dtype: Callable[[], torch.dtype]) -> None:
        super().__init__()
        self.model, self.data, self.dtype = model, data, dtype  # a checkpoint may change the dtype

    def forward(self, *batch: Tensor) -> Tensor:
        return self.data.loss(self.model, batch, self.dtype())


def _recompute(layer: nn.Module) -> None:
    """Makes ``layer`` store only its input in training and recompute its activations; parameter names do not change."""
    assert isinstance(layer, LayerModule)
    plain = layer.forward

    def forward(x: Tensor, angles: Any, cache: Any) -> tuple[Tensor, Any]:
        if not (layer.training and torch.is_grad_enabled()):
            return plain(x, angles, cache)
        return recomputed(lambda y: plain(y, angles, cache)[0], x, use_reentrant=False), None

    layer.forward = forward  # type: ignore[method-assign, assignment]


def multiplied(arch: ArchSpec) -> int:
    """Number of weights that each token is multiplied by: those of the head and of the layers' matrices.

    A matrix that several layers share counts once for each of these layers.
    """
    shapes = weight_shapes(arch)
    uses = [str(i if layer.shares is None else layer.shares) for i, layer in enumerate(arch.layers)]
    count = arch.vocab_size * arch.d_model
    for name, shape in shapes.items():
        if name.startswith("layers.") and len(shape) == 2:
            count += shape[0] * shape[1] * uses.count(name.split(".")[1])
    return count


def measured_peak(device: str, dtype: torch.dtype) -> float | None:
    """Measured peak FLOP/s of large square matrix products in ``dtype``, best of five.

    None if ``device`` is neither the CPU nor a CUDA device.
    """
    size = _PEAK_SIZE.get(torch.device(device).type)
    if size is None:
        return None
    a = torch.ones(size, size, dtype=dtype, device=device)
    best = float("inf")
    for _ in range(5):
        begin = time.perf_counter()
        product = a @ a
        float(product[0, 0])  # waits for the device
        best = min(best, time.perf_counter() - begin)
    return 2 * size**3 / best


def rank() -> int:
    """This process's rank in ``torchrun``."""
    return dist.get_rank() if dist.is_available() and dist.is_initialized() else 0


def processes() -> int:
    """Number of processes in ``torchrun``."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def _together() -> None:
    if processes() > 1:
        dist.barrier()


@contextlib.contextmanager
def joined(execution: Execution) -> Iterator[Execution]:
    """Context that joins the process group of ``torchrun``, if any; yields the execution with this process's device."""
    if int(os.environ.get("WORLD_SIZE", "1")) < 2:
        yield execution
        return
    if not dist.is_available():
        raise Unsupported("this torch was built without torch.distributed; train in one process")
    gpu = execution.device.startswith("cuda")
    if gpu:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        execution = replace(execution, device=f"cuda:{os.environ['LOCAL_RANK']}")
    dist.init_process_group("nccl" if gpu else "gloo")
    try:
        yield execution
    finally:
        dist.destroy_process_group()
