"""Fitting of the products' model: which rows are read, what physics and network find again in made-up kernels."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from chipwise.hardware import datasheet
from chipwise.predict.kernels.gemm_formats import path_of
from chipwise.predict.kernels.gemm_physics import OWN, SHARED, Machine, parts
from chipwise_fitting import common, gemm, gemm_network

pyarrow = pytest.importorskip("pyarrow", reason="needs the extra: fit")
H100 = datasheet.load("h100-sxm")


def write(root: Path, device: str, stack: str, version: str, rows: list[tuple[str, int, int, int, float]]) -> None:
    """A table as aiconfigurator keeps them: rows of format, m, n, k and milliseconds."""
    import pyarrow.parquet as parquet

    folder = root / "data" / device / "gemm" / stack / version
    folder.mkdir(parents=True)
    columns = list(zip(*rows, strict=True))
    names = ("gemm_dtype", "m", "n", "k", "latency")
    parquet.write_table(pyarrow.table(dict(zip(names, columns, strict=True))), folder / "gemm_perf.parquet")


def test_the_newest_version_is_read_without_held_out_sites_and_in_seconds(tmp_path: Path) -> None:
    assert (256, 64) in common.held_out("gemm")
    write(tmp_path, "h100_sxm", "vllm", "0.9.1", [("bfloat16", 1, 4096, 4096, 1.0)])
    write(tmp_path, "h100_sxm", "vllm", "0.24.0", [("bfloat16", 8, 4096, 4096, 2.0), ("bfloat16", 8, 256, 64, 3.0)])
    groups = list(gemm.read(tmp_path))
    assert [(g.device.name, g.key, g.m.tolist(), g.seconds.tolist()) for g in groups] == [
        ("h100-sxm", "vllm|bf16", [8.0], [0.002])
    ]


def test_tables_of_the_host_of_unknown_devices_and_of_formats_without_a_rate_are_left_out(tmp_path: Path) -> None:
    write(tmp_path, "h100_sxm", "vllm", "1", [("fp8_block", 8, 4096, 4096, 2.0)])
    write(tmp_path, "no_such_gpu", "vllm", "1", [("bfloat16", 8, 4096, 4096, 2.0)])
    write(tmp_path, "b60", "vllm", "1", [("bfloat16", 8, 4096, 4096, 2.0)])
    assert list(gemm.read(tmp_path)) == []


def test_there_are_seventy_two_held_out_sites() -> None:
    assert len(common.held_out("gemm")) == 72


def made_up(rows: int = 400) -> list[gemm.Group]:
    """Kernels of three devices that obey the physics with other constants than the priors."""
    draw = np.random.default_rng(0)
    shared = {name: value for name, (value, _) in SHARED.items()} | {"memory_share": np.log(0.6)}
    own = {name: value for name, (value, _) in OWN.items()} | {"launch": np.log(9e-6)}
    found = []
    for name in ("a100-sxm-80gb", "h100-sxm", "l40s"):
        device = datasheet.load(name)
        machine = Machine.of(device, path_of("bf16", "bf16", device))
        m, n, k = (2.0 ** draw.integers(low, 14, rows) for low in (0, 6, 6))
        seconds = parts(m, n, k, machine, shared, own).total_s
        found.append(gemm.Group(device=device, machine=machine, stack="vllm", m=m, n=n, k=k, seconds=seconds))
    return found


def test_physics_finds_launch_and_bandwidth_again() -> None:
    pytest.importorskip("scipy", reason="needs the extra: fit")
    physics = gemm.fit_physics(made_up())
    assert np.exp(physics.own["vllm|bf16"]["launch"]) == pytest.approx(9e-6, rel=0.05)
    assert np.exp(physics.shared["memory_share"]) == pytest.approx(0.6, rel=0.05)


def test_the_network_learns_what_a_kind_adds_and_stays_in_its_bound() -> None:
    pytest.importorskip("torch", reason="needs the extra: fit")
    draw = np.random.default_rng(0)
    x = draw.normal(size=(8192, 3)).astype(np.float32)
    kinds = draw.integers(0, 2, len(x))
    targets = np.where(kinds == 0, 0.3, -0.2) + 0.1 * x[:, 0]
    net = gemm_network.train(x, kinds, targets, ["a", "b"], hidden=(16, 8), epochs=40, bound=0.5, seed=0)
    assert float(np.mean(net(x[kinds == 0].T, "a"))) == pytest.approx(0.3, abs=0.03)
    assert float(np.mean(net(x[kinds == 1].T, "b"))) == pytest.approx(-0.2, abs=0.03)
    assert float(np.max(np.abs(net(100 * x.T, "a")))) <= 0.5


def test_devices_of_one_class_share_one_weight() -> None:
    assert gemm._shares(made_up()) == pytest.approx([1.0, 1.0, 1.0])
    twice = [*made_up(), made_up()[1]]  # the Hopper twice
    assert gemm._shares(twice) == pytest.approx([4 / 3, 2 / 3, 4 / 3, 2 / 3])
