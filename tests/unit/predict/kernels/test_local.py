"""Kernels of runtimes that serve one user: the law by pencil, its laws over chips, and widths that never shrink."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import chipwise
from chipwise.hardware import datasheet
from chipwise.hardware.facts import Bandwidth
from chipwise.model.ops.matmul import Matmul
from chipwise.model.ops.routing import ExpertsOp
from chipwise.predict.kernels import local, local_engines

NOTHING = local.Constants(
    stacks=frozenset(),
    terms={"kernel": np.log(1e-6), "pass": np.log(1e-5), "bytes": 0.0, "few": -50.0, "many": 0.0},
    halfwidths={f"{phase}|{known}|*": 0.5 for phase in ("decode", "prefill") for known in local.DISTANCES},
    devices=frozenset(),
    architectures=frozenset(),
    classes=frozenset(),
)


def test_a_decode_product_is_its_bytes_over_the_bandwidth_and_a_kernel() -> None:
    op = Matmul(m=1, k=4096, n=4096, weights="fp16", activations="fp16")
    device = datasheet.load("apple-m1-max")  # 400 GB/s
    moved = 4096 * 4096 * 2 + 2 * 4096 * 2
    assert local.times(op, device, stack="llama.cpp", constants=NOTHING).latency_s == pytest.approx(
        1e-6 + moved / 400e9
    )


def test_equal_times_of_bytes_and_arithmetic_join_to_the_cube_root_of_two() -> None:
    """(1³ + 1³)^(1/3) = 1.26: neither hides behind the other completely."""
    assert local.joined(np.array(3.0), np.array(3.0)) == pytest.approx(3 * 2 ** (1 / 3))
    assert local.joined(np.array(3.0), np.array(0.03)) == pytest.approx(3.0, rel=1e-6)


@given(share=st.floats(1.0, 10.0), rows=st.sampled_from([1, 8, 64, 512]))
def test_more_bandwidth_never_makes_a_product_slower(share: float, rows: int) -> None:
    op = Matmul(m=rows, k=2048, n=2048, weights="q4_k_m", activations="fp16")
    slow = datasheet.load("rtx-3060")
    dram = slow.level("dram")
    faster = dataclasses.replace(dram, bandwidth=Bandwidth(value=f"{360 * share} GB/s", source="a faster memory"))
    fast = dataclasses.replace(slow, memory=(*slow.memory[:-1], faster))
    before, after = (local.times(op, device, stack="llama.cpp").latency_s for device in (slow, fast))
    assert after <= before * (1 + 1e-9)


@pytest.mark.parametrize("name", datasheet.names())
def test_the_less_is_known_of_a_device_the_wider_is_its_interval(name: str) -> None:
    device, held = datasheet.load(name), local.shipped()
    part = local.part_of(device, "llama.cpp")
    known = held.distance(device, part)
    kind = local.interval_class(device, part)
    for phase in ("decode", "prefill"):
        widths = [
            held.halfwidths.get(f"{phase}|{distance}|{kind}", held.halfwidths[f"{phase}|{distance}|*"])
            for distance in local.DISTANCES
        ]
        assert widths == sorted(widths)
        assert held.halfwidth(phase, device, part) == widths[local.DISTANCES.index(known)]


def test_the_slopes_are_multiples_of_the_logarithms_that_they_go_with() -> None:
    """With a slope of 0.1 a chip of twice the bandwidth is 2^0.9 = 1.87 times as fast."""
    op = Matmul(m=1, k=65536, n=65536, weights="fp16", activations="fp16")
    held = dataclasses.replace(NOTHING, terms={**NOTHING.terms, "kernel": -50.0, "bytes": 1.0, "bytes:bandwidth": 0.1})
    slow = datasheet.load("rtx-3060")
    dram = dataclasses.replace(slow.level("dram"), bandwidth=Bandwidth(value="720 GB/s", source="twice as much"))
    fast = dataclasses.replace(slow, memory=(*slow.memory[:-1], dram))
    before, after = (local.times(op, device, stack="llama.cpp", constants=held).latency_s for device in (slow, fast))
    assert float(before / after) == pytest.approx(2**0.9)


def test_a_prompt_gains_a_power_of_what_matrix_units_are_faster() -> None:
    """RTX 4090: 660.6 INT8 over 82.6 FP32 TFLOP/s is 8; with a slope of -0.5 prompts run √8 times the vector rate.

    512 rows at once are 8 × 32 tiles on 128 units, of which half a round of 128 is idle: a quarter more time.
    """
    device = datasheet.load("rtx-4090")
    op = Matmul(m=4096, k=4096, n=4096, weights="q4_k", activations="fp16")
    held = dataclasses.replace(NOTHING, terms={**NOTHING.terms, "kernel": -50.0, "bytes": -20.0, "many:matrix": -0.5})
    expected = 1.25 * 2 * 4096**3 / (local.vector_flops_per_s(device, "gpu") * 8**0.5)
    found = local.times(op, device, stack="llama.cpp", constants=held).latency_s
    assert float(found) == pytest.approx(expected, rel=0.01)


@pytest.mark.parametrize(
    ("name", "share"),
    [("rtx-4090", 0.5), ("a30", 1.0), ("gtx-1060", 1.0), ("rx-7900-xtx", 0.5), ("apple-m3-max", 1.0)],
)
def test_integer_lanes_over_those_of_fp32(name: str, share: float) -> None:
    """64 of 128 in Ampere's GeForce chips and Ada, all in the A30 and Pascal; RDNA 3 counts two FP32 at once."""
    assert local.integer_share(datasheet.load(name), "gpu") == share


@pytest.mark.parametrize(
    ("name", "part", "kind"),
    [
        ("rtx-4090", "gpu", "nvidia client gpu"),
        ("l40s", "gpu", "nvidia server gpu"),
        ("jetson-agx-orin", "gpu", "nvidia embedded gpu"),
        ("graviton3", "cpu", "arm server cpu"),
        ("raspberry-pi-5", "cpu", "mobile cpu"),
        ("apple-m3-max", "gpu", "apple gpu"),
    ],
)
def test_intervals_are_measured_on_chips_made_for_the_same_use(name: str, part: str, kind: str) -> None:
    assert local.interval_class(datasheet.load(name), part) == kind


@pytest.mark.parametrize(
    ("device", "part"),
    [
        ("apple-m3-max", "gpu"),
        ("rtx-4090", "gpu"),
        ("raspberry-pi-5", "cpu"),
        ("snapdragon-8-gen-3", "cpu"),
        ("ryzen-9-7950x", "cpu"),
        ("ryzen-ai-max-395", "gpu"),
    ],
)
def test_llama_cpp_runs_on_the_part_that_people_run_it_on(device: str, part: str) -> None:
    assert local.part_of(datasheet.load(device), "llama.cpp") == part


@pytest.mark.parametrize(
    ("name", "group"),
    [("fp16", "16"), ("q8_0", "8"), ("q6_k", "6"), ("q5_k_m", "6"), ("q4_k_m", "4"), ("mxfp4", "fp4"), ("q2_k", "3")],
)
def test_formats_are_grouped_by_the_bits_that_are_unpacked(name: str, group: str) -> None:
    assert local.format_group(name) == group


@pytest.mark.parametrize(
    ("device", "model", "weights", "published"),
    [  # tokens/s of llama-bench tg128, llama.cpp discussion 4167 (Apple) and 15013 (CUDA)
        ("apple-m1-max", "meta-llama/Llama-2-7b-hf", "q4_0", 61.19),
        ("apple-m1-max", "meta-llama/Llama-2-7b-hf", "fp16", 23.03),
        ("apple-m2-ultra", "meta-llama/Llama-2-7b-hf", "q8_0", 66.64),
        ("apple-m4-max", "meta-llama/Llama-2-7b-hf", "q4_0", 83.06),
        ("rtx-4090", "meta-llama/Llama-2-7b-hf", "q4_0", 189.0),
    ],
)
def test_decode_of_llama_cpp_as_published(device: str, model: str, weights: str, published: float) -> None:
    found = chipwise.estimate(model, device=device, runtime="llama.cpp", weights=weights, prompt=32, new=128)
    tpot = found.metrics["tpot_p50"]
    assert 1 / tpot.value == pytest.approx(published, rel=0.25)
    assert tpot.low is not None
    assert tpot.high is not None
    assert tpot.low <= 1 / published <= tpot.high


@pytest.mark.parametrize(
    ("name", "part", "stack", "weights", "gain"),
    [
        ("rtx-4090", "gpu", "llama.cpp", "q4_k", 8.0),  # 1,024 int8 multiply-adds an SM and clock to 128 of FP32
        ("rtx-4090", "gpu", "llama.cpp", "fp16", 4.0),  # half of that, adding up in 16 bits
        ("gtx-1060", "gpu", "llama.cpp", "q4_k", 4.0),  # four int8 a lane
        ("gtx-1060", "gpu", "llama.cpp", "fp16", 1.0),
        ("rx-6700-xt", "gpu", "llama.cpp", "q4_k", 4.0),
        ("rx-7900-xtx", "gpu", "llama.cpp-vulkan", "fp16", 2.0),
        ("rx-7900-xtx", "gpu", "llama.cpp-vulkan", "bf16", 1.0),  # no bf16 units in use: as fp32
        ("apple-m3-max", "gpu", "llama.cpp", "q4_k", 1.0),
        ("apple-m5", "gpu", "llama.cpp", "q4_k", 4.0),  # 512 of a Neural Accelerator to 128
        ("ryzen-9-7950x", "cpu", "llama.cpp", "q4_k", 4.0),  # VNNI: 64 int8 to 16 FP32
        ("threadripper-3970x", "cpu", "llama.cpp", "q4_k", 2.0),  # AVX2: two int16 to one FP32
        ("threadripper-3970x", "cpu", "llama.cpp", "fp16", 1.0),
        ("snapdragon-8-elite", "npu", "genie", "q4_0", 1.0),  # no rate is published
    ],
)
def test_prompts_gain_what_the_units_are_faster_that_a_runtime_uses(
    name: str, part: str, stack: str, weights: str, gain: float
) -> None:
    assert local_engines.product_gain(datasheet.load(name), part, stack, weights) == pytest.approx(gain, rel=0.01)


def test_a_long_prompt_reads_the_weights_for_every_piece() -> None:
    """2,048 positions are four pieces of 512 in llama.cpp and one of 2,048 in MLX."""
    op = Matmul(m=2048, k=4096, n=4096, weights="fp16", activations="fp16")
    device = datasheet.load("apple-m1-max")  # 400 GB/s
    matrix, values = 2 * 4096 * 4096, 2 * 2 * 2048 * 4096
    for stack, pieces in (("llama.cpp", 4), ("mlx", 1)):
        memory_s, _, launches = local.demands(op, device, "gpu", stack)
        assert launches == pieces
        assert memory_s == pytest.approx((pieces * matrix + values) / 400e9)


def test_few_cores_draw_less_than_the_memory_gives() -> None:
    """A Raspberry Pi 5: 4 × 2.4 GHz × 8 × 2 = 153.6 GFLOP/s draw 19.2 GB/s, the memory gives 17.1: together 14.4."""
    op = Matmul(m=1, k=4096, n=4096, weights="fp16", activations="fp16")
    memory_s, _, _ = local.demands(op, datasheet.load("raspberry-pi-5"), "cpu", "llama.cpp")
    both = (17.1e9**-3 + 19.2e9**-3) ** (-1 / 3)
    assert memory_s == pytest.approx((2 * 4096 * 4096 + 2 * 2 * 4096) / both)


def test_the_distance_to_the_nearest_chip_of_the_fit() -> None:
    held = dataclasses.replace(
        NOTHING,
        devices=frozenset({"rtx-4090|gpu"}),
        architectures=frozenset({"gpu|Ada Lovelace"}),
        classes=frozenset({"nvidia gpu"}),
    )
    found = [held.distance(datasheet.load(name), "gpu") for name in ("rtx-4090", "rtx-4070", "rtx-3090", "rx-7600")]
    assert found == ["seen", "kin", "sibling", "unseen"]
    known = [held.situation(datasheet.load(name), "gpu") for name in ("rtx-4090", "rtx-4070", "rtx-3090", "rx-7600")]
    assert known == ["seen", "sibling", "sibling", "unseen"]


def test_experts_that_get_few_rows_take_longer_than_their_arithmetic() -> None:
    """512 rows, 4 of 32 experts each: 64 rows an expert, and 8 more for the tiles that they do not fill."""
    op = ExpertsOp(
        tokens=512, d_model=1024, width=1024, experts=32, local_experts=32, topk=4, gated=True,
        weights="q4_k", activations="fp16", bias=False, grouped=True,
    )  # fmt: skip
    device = datasheet.load("rtx-4090")
    _, compute_s, _ = local.demands(op, device, "gpu", "llama.cpp")
    exact = op.work().flops / local.vector_flops_per_s(device, "gpu")
    assert compute_s == pytest.approx(exact * (64 + 8) / 64)


@pytest.mark.parametrize(
    ("kin", "part"),
    [
        (("ryzen-ai-max-395", "rx-7600", "radeon-890m"), "gpu"),  # RDNA 3 and 3.5 have one set of matrix instructions
        (("core-ultra-7-155h", "core-ultra-meteor-lake"), "gpu"),
        (("raspberry-pi-5", "rk3588"), "cpu"),  # both Cortex-A76
        (("snapdragon-8-elite", "snapdragon-8-elite-gen5"), "gpu"),
        (("ryzen-9-7950x", "epyc-9654"), "cpu"),
    ],
)
def test_parts_of_one_architecture_are_kin_in_arithmetic(kin: tuple[str, ...], part: str) -> None:
    assert len({local_engines.engine_architecture(datasheet.load(name), part) for name in kin}) == 1


def test_a_phones_graphics_are_not_those_of_the_mac_of_its_year() -> None:
    phone, mac = (
        local_engines.engine_architecture(datasheet.load(name), "gpu") for name in ("apple-a19-pro", "apple-m5")
    )
    assert phone != mac


def test_npus_are_counted_as_fast_as_they_were_measured_against_each_other() -> None:
    rates = [
        local_engines.vector_flops_per_s(datasheet.load(name), "npu")
        for name in ("snapdragon-8-gen-1", "snapdragon-8-gen-2", "snapdragon-8-gen-3", "snapdragon-8-elite")
    ]
    assert rates == sorted(rates)
    assert rates[-1] / rates[0] == pytest.approx(2.3)
