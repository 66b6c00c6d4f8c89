"""How device files are read, asked and refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from chipwise.errors import SpecError, UnknownName, Unsupported
from chipwise.hardware import datasheet
from chipwise.hardware.datasheet import DeviceProfile, load, read

TOY = """\
name: toy
title: Toy accelerator
vendor: Toys
family: toy
architecture: Toy 1
kind: accelerator
year: 2024
aliases: [toy-1]

unit: core
units: {value: 10, source: pencil}
clock: {value: 1 GHz, source: pencil}
engines:
  - name: arrays
    kind: matrix
    part: npu
    units: {value: 10, source: pencil}
    clock: {value: 1 GHz, source: pencil}
    fma_per_clock:
      bf16: {value: 100, source: pencil}
      int8: {value: 200, source: pencil}
    peak:
      bf16: {value: 2 TFLOP/s, source: pencil}
    tile:
      bf16: {value: 16x8x4, source: pencil}
      int8: {value: 16x4, source: pencil}
  - name: lanes
    kind: vector
    part: npu
    peak:
      fp32: {value: 100 GFLOP/s, source: pencil}
      bf16: {value: 200 GFLOP/s, source: pencil}
memory:
  - name: l1
    per: unit
    capacity: {value: 1 KiB, source: pencil}
    bytes_per_clock: {value: 64, source: pencil}
  - name: l2
    bytes_per_clock: {value: 256, source: pencil}
  - name: dram
    capacity: {value: 1 GB, source: pencil}
    bandwidth: {value: 100 GB/s, source: pencil}
links:
  - name: slow
    to: device
    bandwidth: {value: 1 GB/s, source: pencil}
  - name: fast
    to: device
    bandwidth: {value: 5 GB/s, source: pencil}
board_power: {value: 50 W, source: pencil}
price: {value: 3.6 USD/h, source: pencil}
"""


@pytest.fixture
def toy(tmp_path: Path) -> DeviceProfile:
    path = tmp_path / "toy.yaml"
    path.write_text(TOY)
    return read(path)


def refused(tmp_path: Path, old: str, new: str) -> str:
    """The message with which the toy file is refused after one change."""
    assert old in TOY
    path = tmp_path / "toy.yaml"
    path.write_text(TOY.replace(old, new, 1))
    with pytest.raises(SpecError) as caught:
        read(path)
    assert str(path) in str(caught.value)
    return str(caught.value)


def test_a_peak_is_the_stated_one_and_else_follows_from_units_and_clock(toy: DeviceProfile) -> None:
    assert toy.peak("bf16") == 2e12
    assert toy.peak("int8") == 10 * 200 * 2 * 1e9  # units × multiply-adds × 2 × clock
    assert toy.peak("bf16", kind="vector") == 200e9
    assert toy.peak("float32") == 100e9
    assert toy.peak_flops_per_s == {"fp32": 100e9, "bf16": 2e12, "int8": 4e12}


def test_a_rate_that_is_not_listed_is_an_error_that_says_what_is_listed_and_what_to_add(toy: DeviceProfile) -> None:
    with pytest.raises(
        Unsupported,
        match=r"toy has no fp8 throughput \(it lists bf16, fp32, int8\); .*your own device file with peak\.fp8",
    ):
        toy.peak("fp8")
    with pytest.raises(Unsupported, match=r"no vector int8 throughput \(it lists bf16, fp32\)"):
        toy.peak("int8", kind="vector")
    with pytest.raises(Unsupported, match=r"no gpu bf16 throughput \(it lists nothing\)"):
        toy.peak("bf16", part="gpu")
    with pytest.raises(UnknownName, match="unknown number format 'fp17'; did you mean 'fp16'"):
        toy.peak("fp17")


def test_bandwidth_of_a_level_is_stated_or_counted_per_clock_over_all_its_instances(toy: DeviceProfile) -> None:
    assert toy.bandwidth_bytes_per_s("l1") == 64 * 1e9 * 10  # each of ten cores
    assert toy.bandwidth_bytes_per_s("l2") == 256 * 1e9  # one for all
    assert toy.bandwidth_bytes_per_s() == toy.mem_bandwidth_bytes_per_s == 100e9
    assert toy.capacity_bytes("l1") == 1024
    assert toy.mem_capacity_bytes == 1e9


def test_what_nobody_publishes_raises_and_names_the_field(toy: DeviceProfile) -> None:
    for ask, field in [
        (lambda: toy.idle_power_w, "idle_power"),
        (lambda: toy.launch_overhead_s, "launch_overhead"),
        (lambda: toy.capacity_bytes("l2"), "l2.capacity"),
        (lambda: toy.link("host"), "to: host"),
        (lambda: toy.tile("fp32"), "tile.fp32"),
        (lambda: toy.level("l3"), "memory"),
    ]:
        with pytest.raises(Unsupported, match=field):
            ask()


def test_scalars_are_in_si_units(toy: DeviceProfile) -> None:
    assert toy.unit_count == 10
    assert toy.clock_hz == 1e9
    assert toy.board_power_w == 50
    assert toy.price_usd_per_s == pytest.approx(0.001)  # 3.6 dollars in 3,600 seconds
    assert toy.link("device").name == "fast"
    assert toy.tile("bf16") == (16, 8, 4)
    assert toy.tile("int8") == (1, 16, 4)  # an array takes any number of rows


def test_every_fact_is_listed_with_its_path_and_source(toy: DeviceProfile) -> None:
    facts = dict(toy.facts())
    assert facts["memory.dram.bandwidth"].value == "100 GB/s"
    assert facts["engines.arrays.fma_per_clock.int8"].value == 200
    assert facts["links.fast.bandwidth"].source == "pencil"
    assert len(facts) == TOY.count("source:")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            "1 GB, source: pencil",
            "1 GB, source: ''",
            "memory[2].capacity.source: must say where the figure is published",
        ),
        ("{value: 50 W, source: pencil}", "{value: 50 W}", "board_power.source: this field is missing"),
        ("{value: 50 W, source: pencil}", "50 W", "board_power: must be a mapping of fields"),
        ("50 W", "50 GB", "board_power: unknown unit 'GB' for power"),
        ("50 W", "0 W", "board_power.value: must be above zero"),
        ("int8: {value: 200", "int9: {value: 200", "engines[0].fma_per_clock.int9: unknown number format"),
        ("16x8x4", "16 by 8", "engines[0].tile.bf16.value: must be MxNxK or NxK"),
        ("name: l2", "name: registers", "memory: must list memory levels in this order"),
        ("name: dram", "name: host", "memory: must list the level dram"),
        ("kind: accelerator", "kind: toaster", "kind: 'toaster' is not an accepted value"),
        ("year: 2024", "yaer: 2024", "yaer: unknown field; did you mean 'year'"),
        ("board_power:", "links: []\nboard_power:", "the field 'links' is given twice"),
    ],
)
def test_a_wrong_file_is_refused_with_file_field_and_reason(tmp_path: Path, old: str, new: str, message: str) -> None:
    assert message in refused(tmp_path, old, new)


def test_text_that_nests_without_end_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "deep.yaml"
    path.write_text("x: " + "[" * 100_000 + "]" * 100_000)
    with pytest.raises(SpecError, match="nested too deep"):
        read(path)


def test_names_are_found_in_any_case_with_either_dash_and_by_alias() -> None:
    for name in ("h100-sxm", "h100_sxm", "H100_SXM", " H100 sxm ", "h100"):
        assert load(name).name == "h100-sxm"


def test_an_unknown_name_offers_the_nearest() -> None:
    with pytest.raises(UnknownName, match="unknown device 'h100-smx'; did you mean 'h100-sxm'"):
        load("h100-smx")
    with pytest.raises(UnknownName):
        load("../data/h100-sxm")


def test_a_path_loads_a_device_of_ones_own(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(TOY)
    assert load(str(path)).title == "Toy accelerator"
    with pytest.raises(SpecError, match="there is no such file"):
        load(str(tmp_path / "other.yaml"))


def test_one_device_is_read_without_reading_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    datasheet._shipped.cache_clear()
    opened: list[str] = []
    original = datasheet.read

    def spy(path: str | Path) -> DeviceProfile:
        opened.append(Path(path).name)
        return original(path)

    monkeypatch.setattr(datasheet, "read", spy)
    load("tpu-v5e")
    assert opened == ["tpu-v5e.yaml"]


@pytest.mark.parametrize(
    ("name", "part", "fp32"),
    [
        ("apple-m3-max:cpu", "cpu", None),
        ("M3-Max:GPU", "gpu", 2 * 40 * 128 * 1.398e9),
        ("snapdragon-8-elite:npu", "npu", None),
    ],
)
def test_one_part_of_a_system_on_a_chip(name: str, part: str, fp32: float | None) -> None:
    """M3 Max: 40 GPU cores of 128 lanes at 1.398 GHz; memory is the whole chip's."""
    found, whole = load(name), load(name.partition(":")[0])
    assert {engine.part for engine in found.engines} == {part}
    assert found.name == f"{whole.name}:{part}"
    assert found.mem_bandwidth_bytes_per_s == whole.mem_bandwidth_bytes_per_s
    if fp32 is not None:
        assert found.peak("fp32") == pytest.approx(fp32)


def test_a_chip_of_one_part_is_that_part_and_another_part_is_refused() -> None:
    assert load("rtx-4090:gpu") is load("rtx-4090")
    with pytest.raises(UnknownName, match="unknown part 'rtx-4090:npu'; did you mean 'rtx-4090:gpu'"):
        load("rtx-4090:npu")


@pytest.mark.parametrize("name", datasheet.names())
def test_every_part_of_every_sheet_loads(name: str) -> None:
    whole = load(name)
    for part in {engine.part for engine in whole.engines}:
        engines = load(f"{name}:{part}").engines
        assert engines == tuple(engine for engine in whole.engines if engine.part == part)


@pytest.mark.parametrize(
    ("name", "usable"),
    [
        ("apple-m4-max", 96e9),  # three quarters of 128 GB
        ("m4 max 64GB", 48e9),
        ("m3 pro 36gb", 27e9),
        ("apple-m2", 16e9),  # two thirds of 24 GB
        ("m1 pro 16gb", 16e9 * 2 / 3),
        ("apple-m4-max:cpu", 128e9),  # the limit is the GPU's
        ("apple-a18-pro", 8e9),  # no Mac
        ("rtx-3060", 12 * 2**30),
    ],
)
def test_macs_let_their_gpu_hold_a_part_of_the_memory(name: str, usable: float) -> None:
    device = load(name)
    assert device.usable_bytes == pytest.approx(usable)
    assert ("for its GPU" in device.memory_said) == (usable < device.mem_capacity_bytes)
