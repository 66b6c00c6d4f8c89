"""Packing of trainings on CUDA devices, by pencil, and the message without a device."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from chipwise.api.testing.trainer_suite import toy_job
from chipwise.errors import Unsupported
from chipwise.training.trainers import cuda
from chipwise.training.trainers.cuda import Gpu, gpus, on_device, packed, training_bytes


def gpu(number: int, free_bytes: float) -> Gpu:
    return Gpu(device=f"cuda:{number}", name="toy", free_bytes=free_bytes)


@pytest.fixture
def jobs(tmp_path) -> list:
    return [toy_job(tmp_path, f"j{i}") for i in range(6)]


def test_the_memory_of_a_training_by_pencil(tmp_path) -> None:
    """Width 16, two layers, 20 tokens; a step of 4 windows of 16: 64 tokens keep 34 x 16 x 2 + 10 x 20 bytes each."""
    job = toy_job(tmp_path, "a")
    state = 16 * job.arch.parameters()
    assert training_bytes(job) == cuda.PROCESS_BYTES + state + 64 * (34 * 16 * 2 + 200)


def test_as_many_run_side_by_side_as_fit_and_no_more_than_there_are(jobs, monkeypatch) -> None:
    monkeypatch.setattr(cuda, "training_bytes", lambda job: 1e9)
    assert [(wave.slots, len(wave.jobs)) for wave in packed(jobs, [gpu(0, 4e9)])] == [(3, 6)]  # 0.8 x 4 GB hold three
    assert [wave.slots for wave in packed(jobs, [gpu(0, 80e9)])] == [cuda.MOST_PACKED]
    assert [wave.slots for wave in packed(jobs, [gpu(0, 80e9), gpu(1, 80e9)])] == [3]  # six on two devices
    assert [wave.slots for wave in packed(jobs, [gpu(0, 80e9), gpu(1, 4e9)])] == [3]
    assert [wave.slots for wave in packed(jobs[:1], [gpu(0, 80e9)])] == [1]


def test_large_ones_have_the_device_to_themselves(jobs, monkeypatch) -> None:
    sizes = {job.folder: 1e9 for job in jobs} | {jobs[2].folder: 5e9}
    monkeypatch.setattr(cuda, "training_bytes", lambda job: sizes[job.folder])
    small, large = packed(jobs, [gpu(0, 10e9)])
    assert [place for place, _ in small.jobs] == [0, 1, 3, 4, 5]
    assert [place for place, _ in large.jobs] == [2]
    assert large.slots == 1


def test_each_is_charged_its_share_and_long_ones_are_compiled(tmp_path) -> None:
    job = toy_job(tmp_path, steps=None, gpu_budget_s=10.0)
    short = on_device(job, gpu(1, 1e9), 4)
    assert (short.device, short.device_share, short.compiler) == ("cuda:1", 0.25, None)
    long = on_device(toy_job(tmp_path, steps=None, gpu_budget_s=cuda.COMPILED_FROM_S), gpu(0, 1e9), 1)
    assert long.compiler == "inductor"


def test_a_machine_without_one_says_so(monkeypatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(Unsupported, match=r"torch finds no CUDA device .*; use local, ray or jobs"):
        gpus("cuda")


def test_devices_are_those_that_are_named(monkeypatch) -> None:
    fake = SimpleNamespace(
        is_available=lambda: True,
        device_count=lambda: 3,
        get_device_name=lambda number: f"gpu {number}",
        mem_get_info=lambda number: (number * 1e9, 8e9),
    )
    monkeypatch.setattr(torch, "cuda", fake)
    assert [item.device for item in gpus("cuda")] == ["cuda:0", "cuda:1", "cuda:2"]
    assert [(item.name, item.free_bytes) for item in gpus("cuda:2,1")] == [("gpu 2", 2e9), ("gpu 1", 1e9)]
    with pytest.raises(Unsupported, match="this machine has no CUDA device 7, only 0 to 2"):
        gpus("cuda:0,7")
