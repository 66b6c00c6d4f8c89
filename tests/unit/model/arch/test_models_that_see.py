"""Models that see or hear: published sizes, transformers' own classes as peers, and tokens of images and sound."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chipwise.errors import SpecError
from chipwise.model.arch.arch import ArchSpec, uniform
from chipwise.model.arch.ends import Tokens
from chipwise.model.arch.image_tokens import image_tokens, sound_tokens
from chipwise.model.arch.io import from_data, to_data
from chipwise.model.kinds.question.projector.spec import Projector
from chipwise.model.published import families
from chipwise.model.published.read import read_config, resolve

# Exact counts of the safetensors files on the Hugging Face Hub (the number that a model's page rounds).
PUBLISHED = {
    "llava-hf/llava-1.5-7b-hf": 7_063_427_072,
    "llava-hf/llava-v1.6-mistral-7b-hf": 7_566_747_648,
    "llava-hf/llava-v1.6-vicuna-7b-hf": 7_063_431_168,
    "Qwen/Qwen2-VL-2B-Instruct": 2_208_985_600,
    "Qwen/Qwen2-VL-7B-Instruct": 8_291_375_616,
    "Qwen/Qwen2-VL-72B-Instruct": 73_405_560_320,
    "Qwen/Qwen2.5-VL-3B-Instruct": 3_754_622_976,
    "Qwen/Qwen2.5-VL-7B-Instruct": 8_292_166_656,
    "Qwen/Qwen2.5-VL-72B-Instruct": 73_410_777_344,
    "Qwen/Qwen3-VL-2B-Instruct": 2_127_532_032,
    "Qwen/Qwen3-VL-4B-Instruct": 4_437_815_808,
    "Qwen/Qwen3-VL-8B-Instruct": 8_767_123_696,
    "Qwen/Qwen3-VL-30B-A3B-Instruct": 31_070_754_032,
    "HuggingFaceTB/SmolVLM-256M-Instruct": 256_484_928,
    "HuggingFaceTB/SmolVLM2-500M-Video-Instruct": 507_482_304,
    "HuggingFaceTB/SmolVLM-Instruct": 2_246_272_880,
    "google/gemma-3-4b-it": 4_300_079_472,
    "google/gemma-3-12b-it": 12_187_325_040,
    "google/gemma-3-27b-it": 27_432_406_640,
    "google/paligemma-3b-pt-224": 2_923_466_480,
    "google/paligemma2-3b-pt-224": 3_032_242_416,
    "Qwen/Qwen2-Audio-7B-Instruct": 8_397_094_912,
    "meta-llama/Llama-4-Scout-17B-16E-Instruct": 108_641_793_536,
    "meta-llama/Llama-4-Maverick-17B-128E-Instruct": 401_583_781_376,
}
SHAPES = settings(max_examples=60, deadline=None, derandomize=True)
SIDES = st.integers(30, 4000)


@pytest.mark.parametrize(("name", "count"), PUBLISHED.items())
def test_parameters_are_those_of_the_published_weights(name: str, count: int) -> None:
    assert resolve(name).parameters() == count


def tower(name: str) -> ArchSpec:
    return resolve(name).towers[0]


@pytest.mark.parametrize(
    "name",
    [
        "HuggingFaceTB/SmolVLM-256M-Instruct", "Qwen/Qwen2-VL-2B-Instruct", "Qwen/Qwen2.5-VL-32B-Instruct",
        "Qwen/Qwen3-VL-32B-Instruct", "google/gemma-3-4b-pt", "google/paligemma2-10b-pt-224",
        "llava-hf/llava-onevision-qwen2-0.5b-ov-hf", "llava-hf/llava-1.5-13b-hf", "OpenGVLab/InternVL3-1B-hf",
    ],
)  # fmt: skip
def test_parameters_are_those_of_transformers_own_classes(name: str) -> None:
    """What published configs state and ours need not: the width of the decoder, again, in the tower's part."""
    import torch
    from transformers import AutoConfig, AutoModelForImageTextToText

    config, arch = families.config_of(name), resolve(name)
    kind = config.pop("model_type")
    vision = dict(config["vision_config"])
    if kind == "qwen2_vl":
        vision["hidden_size"] = arch.d_model
    elif kind.startswith("qwen"):
        vision["out_hidden_size"] = arch.d_model
    elif kind == "paligemma":
        config["projection_dim"] = vision["projection_dim"] = arch.d_model
    config |= {"vision_config": vision, "tie_word_embeddings": arch.tie_embeddings}
    with torch.device("meta"):
        model = AutoModelForImageTextToText.from_config(AutoConfig.for_model(kind, **config))
    assert sum(parameter.numel() for parameter in model.parameters()) == arch.parameters()


@pytest.mark.parametrize("name", ["Qwen/Qwen2-Audio-7B-Instruct", "mistralai/Voxtral-Mini-3B-2507"])
def test_models_that_hear_are_those_of_transformers(name: str) -> None:
    import torch
    import transformers

    config = families.config_of(name)
    kind = config.pop("model_type")
    classes = {"qwen2_audio": "Qwen2AudioForConditionalGeneration", "voxtral": "VoxtralForConditionalGeneration"}
    with torch.device("meta"):
        settings = transformers.AutoConfig.for_model(kind, **config, tie_word_embeddings=False)
        model = getattr(transformers, classes[kind])(settings)
    assert sum(parameter.numel() for parameter in model.parameters()) == resolve(name).parameters()


@pytest.mark.parametrize(
    ("name", "seconds", "passes", "tokens"),
    [
        ("Qwen2-Audio-7B-Instruct", 30.0, 1, 750 + 2),  # 3,000 frames, halved by a convolution, every two averaged
        ("Qwen2-Audio-7B-Instruct", 4.0, 1, 100 + 2),  # 25 tokens a second
        ("Voxtral-Mini-3B-2507", 4.0, 1, 375 + 1),  # silence fills the window: 1,500 positions, four joined
        ("Voxtral-Mini-3B-2507", 31.0, 2, 750 + 1),
    ],
)
def test_tokens_of_sound_by_pencil(name: str, seconds: float, passes: int, tokens: int) -> None:
    read = sound_tokens(tower(name), seconds=seconds)
    assert (read.passes, read.positions, read.tokens) == (passes, 1500, tokens)


def test_sound_that_is_too_long_or_not_heard_is_refused() -> None:
    with pytest.raises(SpecError, match="audio_s: the model reads at most 30 s, not 31"):
        sound_tokens(tower("Qwen2-Audio-7B-Instruct"), seconds=31.0)
    with pytest.raises(SpecError, match="not a tower that reads sound"):
        sound_tokens(tower("gemma-3-4b-it"), seconds=3.0)


@pytest.mark.parametrize(
    ("name", "size", "passes", "positions", "tokens"),
    [
        ("llava-1.5-7b-hf", (640, 480), 1, 577, 576),  # 24 x 24 patches of 336 pixels; the class token is dropped
        ("gemma-3-4b-it", (640, 480), 1, 4096, 260),  # 64 x 64 patches, averaged 4 x 4; four marks
        ("paligemma-3b-pt-448", (640, 480), 1, 1024, 1024),
        ("Qwen2-VL-7B-Instruct", (644, 476), 1, 46 * 34, 23 * 17 + 2),  # 644 / 28 = 23, 476 / 28 = 17
        ("Qwen3-VL-8B-Instruct", (640, 480), 1, 40 * 30, 20 * 15 + 2),
        (
            "SmolVLM-256M-Instruct",
            (512, 512),
            17,
            1024,
            16 * (64 + 2) + 4 + 64 + 3,
        ),  # 4 x 4, and whole
        ("InternVL3-1B-hf", (448, 448), 1, 1025, 256 + 2),
        ("InternVL3-1B-hf", (1792, 448), 5, 1025, 5 * 256 + 2),
        ("Llama-4-Scout-17B-16E", (336, 336), 1, 577, 144 + 3),
        ("Llama-4-Scout-17B-16E", (672, 672), 5, 577, 5 * 144 + 4 + 3),
        ("llava-v1.6-mistral-7b-hf", (672, 672), 5, 577, 48 * 48 + 48 + 576),  # 2 x 2 tiles, a newline a row, and whole
    ],
)
def test_tokens_of_an_image_by_pencil(
    name: str, size: tuple[int, int], passes: int, positions: int, tokens: int
) -> None:
    read = image_tokens(tower(name), width=size[0], height=size[1])
    assert (read.passes, read.positions, read.tokens) == (passes, positions, tokens)


@SHAPES
@given(height=SIDES, width=SIDES)
def test_qwen_rounds_sides_as_transformers_does(height: int, width: int) -> None:
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import smart_resize

    read = image_tokens(tower("Qwen2-VL-7B-Instruct"), height=height, width=width)
    rows, columns = smart_resize(height, width, factor=28, min_pixels=3136, max_pixels=12_845_056)
    assert (read.positions, read.tokens) == (rows * columns // 14**2, rows * columns // 28**2 + 2)


@SHAPES
@given(height=SIDES, width=SIDES)
def test_llava_cuts_tiles_as_transformers_does(height: int, width: int) -> None:
    from transformers.models.llava_next.processing_llava_next import LlavaNextProcessor
    from transformers.models.llava_onevision.processing_llava_onevision import LlavaOnevisionProcessor

    for name, theirs, side, patch, extra in (
        ("llava-v1.6-mistral-7b-hf", LlavaNextProcessor, 336, 14, 0),
        ("llava-onevision-qwen2-0.5b-ov-hf", LlavaOnevisionProcessor, 384, 14, 0),
    ):
        ours = tower(name)
        assert ours.head is not None
        pinpoints = [list(pair) for pair in ours.head.pinpoints]
        held: Any = theirs.__new__(theirs)
        held.image_processor = SimpleNamespace(image_grid_pinpoints=pinpoints)
        held.patch_size, held.num_additional_image_tokens, held.num_image_tokens = patch, extra, 729
        held.vision_aspect_ratio = "anyres_max_9"
        expected = held._get_number_of_features(height, width, side, side)
        assert image_tokens(ours, height=height, width=width).tokens == expected


@SHAPES
@given(height=SIDES, width=SIDES)
def test_internvl_chooses_the_grid_that_transformers_does(height: int, width: int) -> None:
    from transformers.models.got_ocr2.image_processing_pil_got_ocr2 import get_optimal_tiled_canvas

    columns, rows = get_optimal_tiled_canvas((height, width), (448, 448), 1, 12)
    tiles = rows * columns
    assert image_tokens(tower("InternVL3-1B-hf"), height=height, width=width).passes == tiles + (tiles > 1)


@SHAPES
@given(height=SIDES, width=SIDES)
def test_smolvlm_cuts_tiles_as_transformers_does(height: int, width: int) -> None:
    from transformers.models.idefics3.image_processing_pil_idefics3 import Idefics3ImageProcessorPil

    theirs = Idefics3ImageProcessorPil(size={"longest_edge": 2048}, max_image_size={"longest_edge": 512})
    passes, rows, _ = theirs.get_number_of_image_patches(height, width, {})
    read = image_tokens(tower("SmolVLM-256M-Instruct"), height=height, width=width)
    assert read.passes == max(1, passes)
    assert read.tokens == read.passes * 64 + (passes > 1) * (2 * (passes - 1) + rows) + 3


def test_bad_sizes_and_towers_are_refused() -> None:
    seeing = tower("llava-1.5-7b-hf")
    with pytest.raises(SpecError, match="200 times"):
        image_tokens(seeing, height=10_000, width=20)
    with pytest.raises(SpecError, match="from 1 to"):
        image_tokens(seeing, height=0, width=20)
    decoder = uniform(vocab_size=20, d_model=64, depth=1, heads=2, ffn_width=64)
    with pytest.raises(SpecError, match=r"towers\[0\].projector.widths: gives tokens of 4096 values"):
        ArchSpec(stem=Tokens(vocab_size=20), d_model=64, layers=decoder.layers, towers=(seeing,))
    with pytest.raises(SpecError, match="pinpoints"):
        Projector(widths=(8,), tiling="pinpoints")


def test_a_model_that_sees_survives_its_file() -> None:
    arch = resolve("Qwen/Qwen3-VL-2B-Instruct")
    assert from_data(to_data(arch)) == arch
    assert arch.without_towers().parameters() == arch.parameters() - arch.towers[0].parameters()
    assert arch.without_towers().digest != arch.digest


def test_configs_leave_fields_to_transformers_classes() -> None:
    """LLaVA's published config names Vicuna by a repository and a vocabulary; its sizes are those of LlamaConfig."""
    config = families.config_of("llava-1.5-7b-hf") | {"text_config": {"model_type": "llama", "vocab_size": 32064}}
    assert read_config(config).arch.parameters() == 7_063_427_072
