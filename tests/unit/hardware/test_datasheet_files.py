"""All device files that ship: schema, plausibility, arithmetic, and truths of the field."""

from __future__ import annotations

import re
from itertools import pairwise

import pytest

from chipwise.errors import Unsupported
from chipwise.hardware import typed
from chipwise.hardware.datasheet import DeviceProfile, load, load_all, names

DEVICES = load_all()
every_device = pytest.mark.parametrize("device", DEVICES, ids=lambda device: device.name)


def test_the_library_holds_at_least_sixty_devices_of_every_kind() -> None:
    assert len(DEVICES) >= 60
    assert {device.kind for device in DEVICES} == {"gpu", "tpu", "cpu", "soc", "accelerator"}
    assert len({device.vendor for device in DEVICES}) >= 9


def test_no_name_or_alias_is_used_twice() -> None:
    seen: dict[str, str] = {}
    for device in DEVICES:
        for name in (device.name, *device.aliases):
            key = typed.key_of(name)
            assert key not in seen, f"{name} is both {seen.get(key)} and {device.name}"
            seen[key] = device.name


@pytest.mark.parametrize(
    ("name", "device"),
    [
        ("a100_sxm", "a100-sxm-80gb"),
        ("a100_pcie", "a100-pcie-80gb"),
        ("h100_sxm", "h100-sxm"),
        ("h100_pcie", "h100-pcie"),
        ("h200_sxm", "h200-sxm"),
        ("l40s", "l40s"),
        ("l4", "l4"),
        ("a30", "a30"),
        ("b200_sxm", "b200-sxm"),
        ("b300_sxm", "b300-sxm"),
        ("gb200", "gb200"),
        ("gb300", "gb300"),
        ("b60", "arc-pro-b60"),
        ("rtx_pro_6000_server", "rtx-pro-6000-server"),
        ("NVIDIA B200", "b200-sxm"),
    ],
)
def test_names_of_the_tables_of_measured_silicon_resolve(name: str, device: str) -> None:
    assert load(name).name == device


@every_device
def test_a_file_is_named_as_its_device_and_its_head_holds_the_names(device: DeviceProfile) -> None:
    path = typed.DATA / f"{device.name}.yaml"
    text = path.read_text(encoding="utf-8")
    assert path.stem in names()
    assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", device.name)
    assert ("\naliases:" in text.partition("\n\n")[0]) == bool(device.aliases)
    for alias in device.aliases:
        assert load(alias) is load(device.name)


@every_device
def test_every_fact_has_a_source(device: DeviceProfile) -> None:
    facts = list(device.facts())
    assert len(facts) >= 6
    for path, fact in facts:
        assert len(fact.source) >= 8, path


@every_device
def test_stated_peaks_follow_from_units_and_clock_within_3_percent(device: DeviceProfile) -> None:
    for engine in device.engines:
        for dtype, stated in engine.peak.items():
            derived = engine.derived(dtype)
            if derived is not None:
                assert derived == pytest.approx(stated.number, rel=0.03), f"{engine.name} {dtype}"


@every_device
def test_capacity_grows_and_bandwidth_falls_from_the_units_outwards(device: DeviceProfile) -> None:
    # Registers are left out: a GPU's register file is larger than its first cache.
    levels = [level for level in device.memory if level.name != "registers"]
    capacities = [level.capacity.number for level in levels if level.capacity is not None]
    assert capacities == sorted(set(capacities))
    bandwidths = []
    for level in levels:
        try:
            bandwidths.append(device.bandwidth_bytes_per_s(level.name))
        except Unsupported:
            continue
    assert bandwidths == sorted(set(bandwidths), reverse=True)


@every_device
def test_numbers_are_plausible(device: DeviceProfile) -> None:
    assert 2012 <= device.year <= 2026
    assert 5e8 <= device.mem_capacity_bytes <= 8e12
    assert 3e9 <= device.mem_bandwidth_bytes_per_s <= 1e13
    # Time to read all of memory once: phones to large-memory servers.
    assert 0.01 <= device.mem_capacity_bytes / device.mem_bandwidth_bytes_per_s <= 15
    for fact, low, high in [
        (device.board_power, 5, 1500),
        (device.idle_power, 0.5, 200),
        (device.clock, 0.5e9, 6e9),
        (device.launch_overhead, 1e-7, 1e-4),
        (device.price, 0.05 / 3600, 20 / 3600),
    ]:
        assert fact is None or low <= fact.number <= high
    if device.idle_power is not None and device.board_power is not None:
        most = 0.85 if device.name == "riscv-p550" else 0.6  # as measured: that board hardly rests
        assert device.idle_power.number < most * device.board_power.number
    for link in device.links:
        # A way out is never faster than the memory behind it.
        assert 1e9 <= link.bandwidth.number <= device.mem_bandwidth_bytes_per_s


@every_device
def test_ridge_points_are_plausible(device: DeviceProfile) -> None:
    peaks = device.peak_flops_per_s
    assert peaks, "at least one format has a rate"
    for dtype, peak in peaks.items():
        ridge = peak / device.mem_bandwidth_bytes_per_s  # operations a byte
        assert 0.05 <= ridge <= 4000, f"{dtype}: {ridge:.2f}"


@every_device
def test_narrower_formats_are_never_slower_on_the_same_engine(device: DeviceProfile) -> None:
    for engine in device.engines:
        for formats in (("fp64", "fp32", "tf32", "bf16", "fp8", "fp4"), ("fp32", "fp16", "fp8"), ("int8", "int4")):
            rates = [rate for rate in map(engine.rate, formats) if rate is not None]
            for wider, narrower in pairwise(rates):
                assert narrower >= 0.97 * wider, f"{engine.name}: {formats}"


def test_a100_rates_are_those_of_the_white_paper_out_of_sm_count_and_clock() -> None:
    sms, clock = 108, 1.41e9
    device = load("a100")
    assert device.unit_count == sms
    assert device.clock_hz == clock
    assert sms * 64 * 2 * clock == pytest.approx(device.peak("fp32"), rel=0.005)  # 64 FP32 cores an SM
    assert device.peak("fp32") == 19.5e12
    assert device.peak("tf32") == 156e12
    assert device.peak("bf16") == device.peak("fp16") == 312e12
    assert device.peak("int8") == 624e12
    matrix = next(engine for engine in device.engines if engine.kind == "matrix")
    for dtype, fma in {"tf32": 512, "bf16": 1024, "int8": 2048}.items():
        assert matrix.derived(dtype) == sms * fma * 2 * clock


def test_a_70b_model_takes_at_least_70_ms_a_token_at_two_terabytes_a_second() -> None:
    weights = 70e9 * 2  # 140 GB in 16 bits
    slower, faster = load("a100-pcie"), load("a100")  # 1.935 and 2.039 TB/s
    assert weights / slower.mem_bandwidth_bytes_per_s > 0.07 > weights / faster.mem_bandwidth_bytes_per_s > 0.068
    assert weights > faster.mem_capacity_bytes, "and it needs two of them"


def test_a_square_16_bit_product_of_4096_is_compute_bound_on_an_a100() -> None:
    intensity = 2 * 4096**3 / (3 * 4096**2 * 2)  # two FLOPs a multiply-add; three matrices of two bytes
    assert intensity == pytest.approx(1365, rel=0.001)
    device = load("a100")
    assert intensity > device.peak("fp16") / device.mem_bandwidth_bytes_per_s


def test_sparse_rates_are_not_listed_as_dense() -> None:
    # Each next to the sparse figure of the same data sheet.
    for name, dtype, sparse in [
        ("h100-sxm", "fp8", 3958e12),
        ("l4", "fp8", 485e12),
        ("rtx-4090", "int8", 1321e12),
        ("b200", "fp4", 18e15),
        ("mi300x", "fp8", 5229e12),
        ("jetson-agx-orin", "int8", 170e12),
        ("jetson-thor", "fp4", 2070e12),
    ]:
        assert load(name).peak(dtype) == pytest.approx(sparse / 2, rel=0.01), name


def test_links_are_counted_one_way() -> None:
    assert load("h100-sxm").link("device").bandwidth.number == 900e9 / 2
    assert load("b200").link("device").bandwidth.number == 1800e9 / 2
    assert load("a100").link("host").bandwidth.number == 64e9 / 2
    assert load("gh200").link("host").bandwidth.number == 900e9 / 2


def test_second_generation_blackwell_traded_int8_for_fp4() -> None:
    assert load("b300").peak("int8") < load("b200").peak("int8") / 20
    assert load("b300").peak("fp4") > load("b200").peak("fp4") * 1.4


def test_devices_of_one_package_share_a_family() -> None:
    hopper = {device.name for device in DEVICES if device.family == "hopper"}
    blackwell = {device.name for device in DEVICES if device.family == "blackwell"}
    assert {"h100-sxm", "h200-sxm"} <= hopper
    assert {"b200-sxm", "gb200", "b300-sxm", "gb300"} <= blackwell
