"""Trains on this machine's CUDA devices: in bf16, compiled if that saves time, with several small runs per GPU.

A training run is charged the GPU seconds of its steps; runs that share a device are charged their share of the seconds.
A batch is computed in the largest microbatches that fit into memory (``training/loop/accelerated.py``), so a step has
the same result on any device.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from chipwise.core.files import build
from chipwise.core.workers import Event, WorkerPool
from chipwise.errors import Unsupported
from chipwise.model.arch.arch import ArchSpec
from chipwise.training.data.recipe import Recipe, tokens_per_step
from chipwise.training.loop.worker import Job, TrainJob, training_pool
from chipwise.training.trainers.protocol import BaseTrainer, Setup

MOST_PACKED = 4  # training runs on one device at the same time; more would only wait for each other
ROOM = 0.8  # share of the free memory to fill
PROCESS_BYTES = 600e6  # memory of a CUDA context and its libraries
STATE_BYTES = 16  # per parameter: weight, gradient and two averages in FP32
COMPILED_FROM_S, COMPILED_FROM_STEPS = 300.0, 5_000  # a shorter run loses more time to compilation than it saves
LOOK_S = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """A CUDA device: its torch name, its product name, and its free memory."""

    device: str
    name: str
    free_bytes: float


def gpus(on: str) -> tuple[Gpu, ...]:
    """The CUDA devices that ``cuda`` or ``cuda:0,1`` names.

    Raises:
        Unsupported: This machine has no CUDA device, or none with a given number.
    """
    import torch

    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if not count:
        raise Unsupported(
            f"train.on: {on}: torch finds no CUDA device (torch {torch.__version__}); use local, ray or jobs, such "
            "as --train-on local"
        )
    wanted = [int(part) for part in on.partition(":")[2].split(",") if part] or list(range(count))
    missing = [number for number in wanted if number >= count]
    if missing:
        raise Unsupported(f"train.on: {on}: this machine has no CUDA device {missing[0]}, only 0 to {count - 1}")
    return tuple(
        Gpu(
            device=f"cuda:{number}",
            name=torch.cuda.get_device_name(number),
            free_bytes=float(torch.cuda.mem_get_info(number)[0]),
        )
        for number in wanted
    )


class CudaTrainer(BaseTrainer):
    """Runs jobs on CUDA devices, each in a separate process.

    Args:
        setup: ``on`` names the devices.
        devices: The devices to use. Default: those that ``on`` names.

    Raises:
        Unsupported: There is no such device.
    """

    accounts: ClassVar[frozenset[str]] = frozenset({"gpu", "tokens"})
    whole: ClassVar[bool] = False

    def __init__(self, setup: Setup, *, devices: Sequence[Gpu] | None = None) -> None:
        self._devices = tuple(devices) if devices is not None else gpus(setup.on)
        self._pools: dict[tuple[str, int], WorkerPool] = {}

    def run(self, jobs: Sequence[Job]) -> Iterator[Event]:
        """Runs jobs and yields their events; see :class:`~chipwise.training.trainers.protocol.Trainer`."""
        trainings = [job for job in jobs if isinstance(job, TrainJob)]
        for wave in packed(trainings, self._devices):
            yield from self._wave(wave)

    def _wave(self, wave: Wave) -> Iterator[Event]:
        """Runs the jobs of a wave on all devices; devices do not wait for each other."""
        under_way: dict[tuple[str, int], int] = {}
        pools = {gpu.device: self._pool(gpu, wave.slots) for gpu in self._devices}
        for number, (place, job) in enumerate(wave.jobs):
            gpu = self._devices[number % len(self._devices)]
            under_way[gpu.device, pools[gpu.device].submit(on_device(job, gpu, wave.slots).to_data())] = place
        while under_way:
            for name, pool in pools.items():
                for event in pool.poll(LOOK_S) if pool.unfinished else []:
                    place = under_way.get((name, event.job), -1)
                    if place < 0:
                        continue
                    if event.kind != "progress":
                        del under_way[name, event.job]
                    yield Event(job=place, kind=event.kind, data=event.data, died=event.died)

    def _pool(self, gpu: Gpu, slots: int) -> WorkerPool:
        """The pool of ``slots`` workers for a device; stops a pool with a different number of workers first."""
        key = gpu.device, slots
        if key not in self._pools:
            for other in [known for known in self._pools if known[0] == gpu.device]:
                self._pools.pop(other).close()
            self._pools[key] = training_pool(slots)
        return self._pools[key]

    def close(self) -> None:
        """Stops the workers immediately."""
        for pool in self._pools.values():
            pool.close()


@dataclass(frozen=True)
class Wave:
    """A group of jobs, each with its index; every device runs ``slots`` of them at the same time."""

    slots: int
    jobs: tuple[tuple[int, TrainJob], ...]


def packed(jobs: Sequence[TrainJob], devices: Sequence[Gpu]) -> list[Wave]:
    """Groups jobs into two waves: first the jobs that are small enough to share a device, then all others.

    A job is small enough if two jobs of its size fit on the device with the least free memory. The largest job of the
    first wave determines how many of its jobs share a device, at most ``MOST_PACKED``. All other jobs have a
    device to themselves.
    """
    room = ROOM * min(gpu.free_bytes for gpu in devices)
    needs = [training_bytes(job) for job in jobs]
    small = [i for i, need in enumerate(needs) if 2 * need <= room]
    large = [i for i in range(len(jobs)) if i not in small]
    waves = []
    if small:
        fitting = int(room / max(needs[i] for i in small))
        slots = max(1, min(MOST_PACKED, fitting, -(-len(small) // len(devices))))
        waves.append(Wave(slots, tuple((i, jobs[i]) for i in small)))
    if large:
        waves.append(Wave(1, tuple((i, jobs[i]) for i in large)))
    return waves


def training_bytes(job: TrainJob) -> float:
    """Upper bound on a training run's device memory: state, stored activations of a batch, logits, and the process."""
    tokens = tokens_per_step(job.arch, build(Recipe, job.recipe, field="recipe"))
    return PROCESS_BYTES + STATE_BYTES * job.arch.parameters() + tokens * activation_bytes(job.arch)


def activation_bytes(arch: ArchSpec) -> float:
    """Upper bound on bytes stored per token for the backward pass: layer activations in bf16, and logits.

    A layer stores about 34 bytes per unit of width (Korthikanti et al. 2022, arXiv:2205.05198, equation 1,
    without the term of unfused attention). Each logit takes 10 bytes: 2 in bf16, 4 in FP32,
    and 4 for its gradient.
    """
    return 34.0 * arch.d_model * len(arch.layers) + 10.0 * arch.vocab_size


def on_device(job: TrainJob, gpu: Gpu, slots: int) -> TrainJob:
    """The job with settings for its device: compiled if long enough, and charged for its share of the device's time."""
    long = (job.gpu_budget_s or 0.0) >= COMPILED_FROM_S or (job.steps or 0) >= COMPILED_FROM_STEPS
    return replace(job, device=gpu.device, compiler="inductor" if long else None, device_share=1 / slots)
