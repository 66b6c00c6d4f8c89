"""Known models: published sizes, transformers' own models as peers, repositories that tune or quantise them."""

from __future__ import annotations

from typing import Any

import pytest

from chipwise.errors import SpecError, UnknownName
from chipwise.model.published import families
from chipwise.model.published.quantised import default_weights
from chipwise.model.published.read import read_config, resolve
from support.models import kv_cache_bytes

# Exact counts as model cards, safetensors metadata on the Hub, or the papers' released weights give them. Heads that
# predict further tokens (DeepSeek-V3, GLM-4.5) and vision towers (Gemma 3) are not part of these.
PUBLISHED = {
    "gpt2": 124_439_808,
    "gpt2-medium": 354_823_168,
    "gpt2-large": 774_030_080,
    "gpt2-xl": 1_557_611_200,
    "Llama-2-7b-hf": 6_738_415_616,
    "Llama-2-13b-hf": 13_015_864_320,
    "Llama-2-70b-hf": 68_976_648_192,
    "TinyLlama-1.1B-Chat-v1.0": 1_100_048_384,
    "CodeLlama-34b-hf": 33_743_970_304,
    "Llama-3-8B": 8_030_261_248,
    "Meta-Llama-3-70B": 70_553_706_496,
    "meta-llama/Llama-3.1-8B": 8_030_261_248,
    "meta-llama/Llama-3.1-70B": 70_553_706_496,
    "meta-llama/Llama-3.1-405B": 405_853_388_800,
    "Llama-3.2-1B": 1_235_814_400,
    "Llama-3.2-3B": 3_212_749_824,
    "Llama-3.3-70B-Instruct": 70_553_706_496,
    "SmolLM2-135M": 134_515_008,
    "SmolLM2-360M": 361_821_120,
    "SmolLM2-1.7B": 1_711_376_384,
    "SmolLM3-3B": 3_075_098_624,
    "Qwen2.5-0.5B": 494_032_768,
    "Qwen2.5-1.5B": 1_543_714_304,
    "Qwen2.5-3B": 3_085_938_688,
    "Qwen2.5-7B": 7_615_616_512,
    "Qwen2.5-14B": 14_770_033_664,
    "Qwen2.5-32B": 32_763_876_352,
    "Qwen2.5-72B": 72_706_203_648,
    "DeepSeek-R1-Distill-Qwen-1.5B": 1_777_088_000,
    "DeepSeek-R1-Distill-Qwen-7B": 7_615_616_512,
    "Qwen2.5-Coder-14B-Instruct": 14_770_033_664,
    "Qwen3-0.6B": 596_049_920,
    "qwen3-4b": 4_022_468_096,
    "Qwen3-8B": 8_190_735_360,
    "Qwen3-14B": 14_768_307_200,
    "Qwen3-32B": 32_762_123_264,
    "Qwen3-30B-A3B": 30_532_122_624,
    "Qwen3-235B-A22B": 235_093_634_560,
    "Qwen3-Coder-480B-A35B-Instruct": 480_154_875_392,
    "Qwen1.5-MoE-A2.7B": 14_315_784_192,
    "Mistral-7B-v0.1": 7_241_732_096,
    "Mistral-7B-v0.3": 7_248_023_552,
    "Mistral-Nemo-Base-2407": 12_247_782_400,
    "Mistral-Small-24B-Base-2501": 23_572_403_200,
    "Mistral-Large-Instruct-2407": 122_610_069_504,
    "Mistral-Small-3.1-24B-Instruct-2503": 23_572_403_200,
    "Codestral-22B-v0.1": 22_247_282_688,
    "Mixtral-8x7B-v0.1": 46_702_792_704,
    "gemma-2-2b": 2_614_341_888,
    "gemma-2-9b": 9_241_705_984,
    "gemma-2-27b": 27_227_128_320,
    "gemma-3-270m": 268_098_176,
    "gemma-3-1b-pt": 999_885_952,
    "Phi-3-mini-4k-instruct": 3_821_079_552,
    "Phi-3.5-mini-instruct": 3_821_079_552,
    "Phi-3-medium-4k-instruct": 13_960_238_080,
    "phi-4": 14_659_507_200,
    "Phi-4-mini-instruct": 3_836_021_760,
    "pythia-70m": 70_426_624,
    "pythia-160m": 162_322_944,
    "pythia-410m": 405_334_016,
    "pythia-1b": 1_011_781_632,
    "pythia-1.4b": 1_414_647_808,
    "pythia-2.8b": 2_775_208_960,
    "pythia-6.9b": 6_857_302_016,
    "pythia-12b": 11_846_072_320,
    "gpt-neox-20b": 20_554_567_680,
    "opt-125m": 125_239_296,
    "opt-1.3b": 1_315_758_080,
    "opt-2.7b": 2_651_596_800,
    "opt-6.7b": 6_658_473_984,
    "falcon-7b": 6_921_720_704,
    "OLMo-2-1124-7B": 7_298_617_344,
    "OLMo-2-1124-13B": 13_716_198_400,
    "gpt-oss-20b": 20_914_757_184,
    "gpt-oss-120b": 116_829_156_672,
    "DeepSeek-V2-Lite": 15_706_484_224,
    "DeepSeek-V2": 235_741_434_880,
    "DeepSeek-V3": 671_026_419_200,
    "bert-base-uncased": 109_482_240,
    "bert-large-uncased": 335_141_888,
    "all-MiniLM-L6-v2": 22_713_216,
    "t5-small": 60_506_624,
    "t5-base": 222_903_552,
    "t5-large": 737_668_096,
    "flan-t5-small": 76_961_152,
    "flan-t5-base": 247_577_856,
    "flan-t5-large": 783_150_080,
    "flan-t5-xl": 2_849_757_184,
    "chatglm3-6b": 6_243_584_000,
    "gemma-2b": 2_506_172_416,
    "gemma-7b": 8_537_680_896,
    "phi-2": 2_779_683_840,
    "LFM2-1.2B": 1_170_340_608,
    "LFM2-350M": 354_483_968,
}

# Billions that a token meets, as published, to the last digit given.
ACTIVE = {
    "Mixtral-8x7B-v0.1": 12.9,  # Jiang et al. 2024: "13B active", 12.9 on the release page
    "Mixtral-8x22B-v0.1": 39,  # release page: 39B active
    "Qwen3-30B-A3B": 3.3,  # model card
    "Qwen3-235B-A22B": 22,  # model card
    "Qwen3-Coder-480B-A35B-Instruct": 35,  # model card
    "Qwen1.5-MoE-A2.7B": 2.7,  # model card
    "Qwen2-57B-A14B": 14,  # model card
    "DeepSeek-V2": 21,  # arXiv:2405.04434, abstract
    "DeepSeek-V3": 37,  # arXiv:2412.19437, abstract
    "Kimi-K2-Instruct": 32,  # model card
    "Kimi-K2.5": 32,  # model card
    "GLM-4.5": 32,  # model card
    "GLM-4.5-Air": 12,  # model card
    "MiniMax-M2": 10,  # model card
    "gemma-4-26B-A4B": 3.8,  # model card
    "Hunyuan-A13B-Instruct": 13,  # model card
    "LFM2-8B-A1B": 1.5,  # model card
    "Llama-4-Scout-17B-16E": 17,  # model card
    "Llama-4-Maverick-17B-128E": 17,  # model card
}


@pytest.mark.parametrize(("name", "parameters"), PUBLISHED.items())
def test_published_parameter_counts(name: str, parameters: int) -> None:
    assert resolve(name).parameters() == parameters


def _peer_count(config: dict[str, Any]) -> int:
    """What transformers counts in its own model of ``config``, with the score corrections that it keeps as buffers."""
    import torch
    from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, AutoModelForSeq2SeqLM

    kind = config.pop("model_type")
    maker = {"t5": AutoModelForSeq2SeqLM, "bert": AutoModel, "modernbert": AutoModel}.get(kind, AutoModelForCausalLM)
    kind = "deepseek_v3" if kind == "kimi_k2" else kind  # Kimi-K2's own code is DeepSeek-V3's
    with torch.device("meta"):
        model = maker.from_config(AutoConfig.for_model(kind, **config))
    weights = sum(p.numel() for p in {id(p): p for p in model.parameters()}.values())
    return weights + sum(
        b.numel() for name, b in model.named_buffers() if name.endswith(("e_score_correction_bias", "expert_bias"))
    )


NO_PEER = {
    *(name for name in families.names() if "flan" in name),  # transformers 5 ties its head whatever the config says
    "THUDM/chatglm2-6b",  # not among transformers' own models
    "THUDM/chatglm3-6b",
    "google/gemma-4-26B-A4B",  # tested below
}


ELSEWHERE = {  # test_image_models.py, test_models_that_see.py and test_speech_models.py
    name
    for name in families.names()
    if not (arch := resolve(name)).reads_tokens or arch.towers or arch.encoder_stem is not None
}


@pytest.mark.parametrize("name", [name for name in families.names() if name not in NO_PEER | ELSEWHERE])
def test_parameters_are_those_of_transformers(name: str) -> None:
    """All but those that transformers has no equal of; their counts are published."""
    assert resolve(name).parameters() == _peer_count(families.config_of(name))


def test_the_mixture_of_gemma_4_lacks_the_norms_and_scales_around_its_experts() -> None:
    """In each of 30 layers three norms and the router's scales: 4·2816 + 128, in all 0.0014 % of the parameters."""
    name = "google/gemma-4-26B-A4B"
    assert _peer_count(families.config_of(name)) - resolve(name).parameters() == 30 * (4 * 2816 + 128)


@pytest.mark.parametrize(("name", "billions"), ACTIVE.items())
def test_active_parameters_are_those_published(name: str, billions: float) -> None:
    """Rounded or cut to the digits published, token table and head counted or not: authors differ in both."""
    arch = resolve(name)
    table = arch.vocab_size * arch.d_model
    scale = 1e8 if isinstance(billions, float) else 1e9
    counts = [(arch.active_parameters() - left_out * table) / scale for left_out in (0, 1, 2)]
    assert round(billions * 1e9 / scale) in {shown for count in counts for shown in (round(count), int(count))}
    assert arch.active_parameters() < arch.parameters()


def test_gpt_oss_counts_its_active_parameters_without_the_token_table() -> None:
    """The model card's table 1: 116.83B and 20.91B in all, 5.13B and 3.61B active, unembedding in, embedding out."""
    for name, total, active in (("gpt-oss-120b", 116.83, 5.13), ("gpt-oss-20b", 20.91, 3.61)):
        arch = resolve(name)
        assert round(arch.parameters() / 1e9, 2) == total
        assert round((arch.active_parameters() - arch.vocab_size * arch.d_model) / 1e9, 2) == active


def test_caches_by_kind_of_layer() -> None:
    """DeepSeek-V3: 61 layers of 512 + 64 values a token, 70 kB in bf16 (Llama 3.1 405B: 516 kB, as the paper compares).

    gpt-oss-120b: of 36 layers half keep 128 tokens; 2·8·64 values a token and layer.
    """
    assert kv_cache_bytes(resolve("DeepSeek-V3"), 1, cache="bf16") == 61 * 576 * 2 == 70_272
    assert kv_cache_bytes(resolve("Llama-3.1-405B"), 1, cache="bf16") == 126 * 2 * 8 * 128 * 2 == 516_096
    assert kv_cache_bytes(resolve("gpt-oss-120b"), 1000, cache="bf16") == 2 * 1024 * 18 * (1000 + 128)


def test_states_of_recurrences_do_not_grow() -> None:
    """Nemotron-H-8B: 24 Mamba-2 layers of 8192·128 states and 10240·3 inputs, fp32; 4 of attention, 2·8·128 values."""
    arch = resolve("nvidia/Nemotron-H-8B-Base-8K")
    state = 24 * 4 * (8192 * 128 + 10_240 * 3)
    assert kv_cache_bytes(arch, 0) == state
    assert kv_cache_bytes(arch, 1000, batch=2, cache="bf16") == 2 * (state + 4 * 2 * 8 * 128 * 1000 * 2)


def test_a_model_that_generates_is_causal_and_an_encoder_is_not() -> None:
    assert resolve("gemma-3-1b-it").causal
    assert resolve("flan-t5-base").causal
    assert not resolve("ModernBERT-base").causal
    assert kv_cache_bytes(resolve("ModernBERT-base"), 100) == 0


def test_layers_that_read_an_earlier_cache_keep_none() -> None:
    """Gemma 4 E2B: of 35 layers 15 keep keys and values, 12 of them 512 positions of 2·256, 3 all of 2·512."""
    arch = resolve("gemma-4-E2B-it")
    assert kv_cache_bytes(arch, 1000, cache="fp16") == 2 * (12 * 512 * 512 + 3 * 1000 * 1024)


def test_values_that_are_keys_are_kept_all_the_same() -> None:
    """Gemma 4 31B: 10 layers of 60 see all through 4 heads of 512; they save the projection, not the cache."""
    full = resolve("gemma-4-31B").layers[5].attention
    assert full.cache_values(1) == 2 * 4 * 512
    assert full.parameters(5376) == 5376 * (32 + 4) * 512 + 32 * 512 * 5376 + 2 * 512


def test_a_short_convolution_keeps_its_last_inputs() -> None:
    """LFM2-1.2B: 10 of 16 layers of 2 inputs of 2048 channels in fp32, 6 of attention, 2·8·64 values a token."""
    assert kv_cache_bytes(resolve("LFM2-1.2B"), 100, cache="fp16") == 10 * 2 * 2048 * 4 + 6 * 1024 * 100 * 2


def test_the_width_of_older_lfm2_configs_is_two_thirds_rounded_up() -> None:
    """The config says 12288 and adjusts it: 2/3 is 8192, a multiple of 256."""
    config = families.config_of("LiquidAI/LFM2-1.2B")
    older = config | {"block_ff_dim": 12288, "block_auto_adjust_ff_dim": True}
    assert read_config(older).arch.parameters() == 1_170_340_608
    odd = read_config(older | {"block_ff_dim": 12300}).arch.layers[0].ffn
    assert odd.width == 8448


def test_attention_to_an_encoder_keeps_its_keys_and_values() -> None:
    """T5-small: 6 layers, 2·512 values a position, of the decoder's own and of the encoder's."""
    arch = resolve("t5-small")
    assert kv_cache_bytes(arch, 10, encoder_tokens=30, cache="fp16") == 6 * 1024 * (10 + 30) * 2


@pytest.mark.parametrize(
    ("name", "known", "weights"),
    [
        ("nvidia/Llama-3.1-8B-Instruct-FP8", "meta-llama/Llama-3.1-8B", "fp8"),
        ("nvidia/DeepSeek-R1-NVFP4", "deepseek-ai/DeepSeek-R1", "nvfp4"),
        ("deepseek-ai/DeepSeek-R1-0528", "deepseek-ai/DeepSeek-R1", "fp8_block"),
        ("QWEN/qwen3-235b-a22b-fp8", "Qwen/Qwen3-235B-A22B", "fp8_block"),
        ("Qwen/Qwen3-32B-FP8-Static-PerTensor", "Qwen/Qwen3-32B", "fp8"),
        ("Qwen/Qwen3-30B-A3B-Thinking-2507", "Qwen/Qwen3-30B-A3B", None),
        ("Llama-2-13b-chat-AWQ", "meta-llama/Llama-2-13b-hf", "int4_g128"),
        ("meta-llama/Meta-Llama-3.1-8B-Instruct", "meta-llama/Llama-3.1-8B", None),
        ("google/gemma-3-27b-it", "google/gemma-3-27b-pt", None),
        ("mistralai/Mistral-7B-Instruct-v0.2", "mistralai/Mistral-7B-v0.2", None),
        ("nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", None),
        ("openai/gpt-oss-120b", "openai/gpt-oss-120b", "mxfp4"),
        ("LiquidAI/LFM2.5-1.2B-Instruct-GGUF", "LiquidAI/LFM2.5-1.2B", None),
        ("MiniMax-M2.7-UD-Q3_K_S", "MiniMaxAI/MiniMax-M2.7", "q3_k_s"),
        ("bartowski/nvidia_Nemotron-Cascade-2-30B-A3B-GGUF", "nvidia/Nemotron-Cascade-2-30B-A3B", None),
        ("unsloth/Qwen3.5-4B-Q4_K_M.gguf", "Qwen/Qwen3.5-4B", "q4_k_m"),
        ("mlx-community/gemma-4-E4B-it-4bit", "google/gemma-4-E4B", None),
        ("Llama 33B", "huggyllama/llama-30b", None),
    ],
)
def test_repositories_that_tune_or_quantise_a_model(name: str, known: str, weights: str | None) -> None:
    assert families.id_of(name) == known
    assert default_weights(name) == weights


def test_names_that_compute_something_else_are_not_taken_for_a_model() -> None:
    """A distilled Llama is no DeepSeek-R1, and a size that does not exist is offered its neighbours."""
    assert resolve("deepseek-ai/DeepSeek-R1-Distill-Llama-8B").parameters() == 8_030_261_248
    for name in ("deepseek-ai/DeepSeek-R1-Distill-Llama-9B", "Qwen/Qwen3-33B"):
        with pytest.raises(UnknownName, match="did you mean"):
            families.id_of(name)


def test_the_language_model_of_a_model_that_sees_is_read() -> None:
    """Of a family whose tower is not read, and of a config that does not describe its tower."""
    text = families.config_of("google/gemma-3-4b-pt")["text_config"]
    outer = {"model_type": "gemma3", "text_config": text, "vision_config": {"hidden_size": 1152}}
    reading = read_config(outer)
    assert reading.arch.parameters() == resolve("google/gemma-3-4b-pt").without_towers().parameters() == 3_880_263_168
    assert read_config(outer | {"model_type": "another"}).arch.digest == reading.arch.digest
    assert reading.notes[0].startswith("text_config: only the part of the model that reads text")


def test_layers_of_nemotron_by_either_name() -> None:
    """Older configs spell the layers as signs, newer ones as words; a sign that is unknown is named."""
    config = families.config_of("nvidia/Nemotron-H-8B-Base-8K")
    words = {"M": "mamba", "*": "attention", "-": "mlp"}
    pattern = config.pop("hybrid_override_pattern")
    newer = read_config(config | {"layers_block_type": [words[sign] for sign in pattern]}).arch
    assert newer.digest == resolve("nvidia/Nemotron-H-8B-Base-8K").digest
    with pytest.raises(SpecError, match=r"hybrid_override_pattern\[1\]: layers of type '\?' are not supported"):
        read_config(config | {"hybrid_override_pattern": "M?" + pattern[2:]})


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"model_type": "opt", "hidden_size": 8, "word_embed_proj_dim": 4}, "word_embed_proj_dim: a token table narrower"),
    ({"model_type": "opt", "hidden_size": 8, "do_layer_norm_before": False}, "do_layer_norm_before: norms after"),
    ({"model_type": "falcon", "alibi": True}, "alibi: ALiBi positions are not supported"),
    ({"model_type": "t5", "num_heads": 2, "d_kv": 4, "feed_forward_proj": "gated-sulu"}, "feed_forward_proj: unknown"),
    ({"model_type": "whatever", "text_config": {"model_type": "rwkv"}}, "models of type 'rwkv' are not supported"),
]


@pytest.mark.parametrize(("config", "words"), REFUSED)
def test_configs_that_ask_for_more_are_refused_by_field(config: dict[str, Any], words: str) -> None:
    with pytest.raises(SpecError, match=words):
        read_config(config)
