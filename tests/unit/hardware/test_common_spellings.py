"""Formats, runtimes, chips and models as people write them in published tables."""

from __future__ import annotations

import pytest

import chipwise
from chipwise.core.dtypes import FORMATS, format_name
from chipwise.errors import AmbiguousName, InputError, UnknownName, Unsupported
from chipwise.hardware.datasheet import load
from chipwise.hardware.runtime import part_named, runtime_named
from chipwise.hardware.suited import format_in
from chipwise.model.published.families import id_of


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("UD-Q4_K_XL", "q4_k_m"),
        ("Q3_K_XL", "q3_k_l"),
        ("Q8_K_XL", "q8_0"),
        ("Q2_K_S", "q2_k"),
        ("Q4_0_4_8", "q4_0"),
        ("MXFP4_MOE", "mxfp4"),
        ("4bit", "mlx_4bit"),
        ("MLX-8bit", "mlx_8bit"),
        ("AWQ-int4-g128", "int4_g128"),
        ("gptq-int8", "int8"),
        ("GPTQ g128", "int4_g128"),
        ("EXL2 4.0 bpw", "int4_g128"),
        ("OV-INT4-mixed", "int4_g128"),
        ("INT8-channel", "int8"),
        ("INT4 (mixed, blockwise gs32)", "int4_g32"),
        ("4-bit palettized (uniform g32)", "int4_g32"),
        ("MLC-q4f16_1", "int4_g128"),
    ],
)
def test_formats_of_files_go_by_the_nearest_plain_one(written: str, name: str) -> None:
    assert format_name(written) == name
    assert name in FORMATS


@pytest.mark.parametrize("written", ["q99", "11bit", "bits", "", "int8/int4 head:int8", "int8 head:int4"])
def test_what_is_no_format_stays_as_it_was_written(written: str) -> None:
    assert format_name(written) not in FORMATS


def test_mlx_stores_two_16_bit_numbers_for_each_64_values() -> None:
    assert [FORMATS[f"mlx_{bits}bit"].bits_per_weight for bits in (2, 3, 4, 5, 6, 8)] == [2.5, 3.5, 4.5, 5.5, 6.5, 8.5]


def test_a_back_end_after_a_runtime_tells_the_part_of_the_chip() -> None:
    assert [runtime_named(name).name for name in ("llama.cpp-rocm", "Ollama (Metal)", "llama.cpp Vulkan")] == [
        "llama.cpp",
        "llama.cpp",
        "llama.cpp-vulkan",
    ]
    assert [part_named(f"llama.cpp-{end}") for end in ("opencl", "cpu", "hexagon", "mystery")] == [
        "gpu",
        "cpu",
        "npu",
        None,
    ]
    with pytest.raises(UnknownName, match="mystery"):
        runtime_named("llama.cpp-mystery")


def test_the_cpu_of_a_chip_is_asked_by_its_back_end_or_by_its_name() -> None:
    by_runtime = chipwise.estimate("gpt2", device="apple-m2", runtime="llama.cpp-cpu", weights="q8_0")
    by_device = chipwise.estimate("gpt2", device="apple-m2:cpu", runtime="llama.cpp", weights="q8_0")
    assert by_runtime.tpot_s == by_device.tpot_s
    assert by_runtime.tpot_s != chipwise.estimate("gpt2", device="apple-m2", runtime="llama.cpp", weights="q8_0").tpot_s


def test_genies_formats_are_its_own() -> None:
    assert format_in(runtime_named("genie"), "w4a16") == "q4_0"
    assert format_in(runtime_named("genie (qnn_context_binary)"), "w4") == "q8_0"
    assert format_in(runtime_named("vllm"), "w4a16") == "int4"


@pytest.mark.parametrize(
    ("runtime", "four", "eight"),
    [
        ("mlx", "mlx_4bit", "mlx_8bit"),
        ("llama.cpp", "q4_0", "q8_0"),
        ("genie", "q4_0", "q8_0"),
        ("vllm", "int4", "int8"),
        ("onnxruntime", "int4", "int8"),
    ],
)
def test_a_bare_number_of_bits_is_a_format_that_the_runtime_reads(runtime: str, four: str, eight: str) -> None:
    assert [format_in(runtime_named(runtime), name) for name in ("4bit", "4-bit", "8bit")] == [four, four, eight]


def test_a_chip_with_fewer_gpu_cores_has_their_share_of_the_rate_and_its_own_memory() -> None:
    whole, binned = load("apple-m3-max"), load("apple-m3-max:binned-30c")
    assert binned.peak("fp32", part="gpu") == pytest.approx(whole.peak("fp32", part="gpu") * 30 / 40)
    assert binned.mem_bandwidth_bytes_per_s == 300e9
    assert load("M3 Max 30-core GPU").name == binned.name
    assert load("apple-m3-max:full") is whole
    assert load("apple-m2:binned-8c").mem_bandwidth_bytes_per_s == load("apple-m2").mem_bandwidth_bytes_per_s
    with pytest.raises(InputError, match=r"GPU cores must be from 1 to 40, as in its data sheet, not 41"):
        load("apple-m3-max:binned-41c")


@pytest.mark.parametrize(
    ("written", "known"),
    [
        ("qwen3_0_6b", "Qwen/Qwen3-0.6B"),
        ("qwen3_5_0_8b", "Qwen/Qwen3.5-0.8B"),
        ("Llama-v3.2-1B-Instruct", "meta-llama/Llama-3.2-1B"),
        ("mistral_7b_instruct_v0_3", "mistralai/Mistral-7B-v0.3"),
        ("phi_3_5_mini_instruct", "microsoft/Phi-3.5-mini-instruct"),
    ],
)
def test_underscores_in_numbers_are_points_where_that_names_one_model(written: str, known: str) -> None:
    assert id_of(written) == known


def test_a_phone_that_is_sold_with_two_chips_is_the_one_on_which_the_runtime_runs() -> None:
    found = chipwise.estimate("Qwen/Qwen3-0.6B", device="Samsung Galaxy S24", runtime="genie", weights="w4a16")
    assert found.device == "snapdragon-8-gen-3"
    assert any("taken as the one on which the runtime runs" in note for note in found.notes)
    with pytest.raises(AmbiguousName):
        chipwise.estimate("Qwen/Qwen3-0.6B", device="Samsung Galaxy S24", runtime="llama.cpp")


def test_a_runtime_of_a_part_that_a_chip_lacks_is_refused() -> None:
    with pytest.raises(Unsupported, match=r"llama\.cpp-cpu runs on a CPU, and rtx-4090 lists none"):
        chipwise.estimate("gpt2", device="rtx-4090", runtime="llama.cpp-cpu")
