"""Weights of GGUF files: what llama.cpp's quantize makes, against the sizes that published files have."""

import pytest

import chipwise
from chipwise.hardware.runtime import runtime_named
from chipwise.predict.served.formats import formats_of
from chipwise.predict.served.lowering import lower_pass
from chipwise.predict.served.memory import held, resident_bytes
from chipwise.predict.served.plan import Plan
from chipwise.predict.served.setting import Setting, Step

# Gigabytes as the model cards of TheBloke (Llama 2) and bartowski (the others) list them.
PUBLISHED_GB = {
    "meta-llama/Llama-2-7b-hf": {
        "q3_k_s": 2.95, "q3_k_m": 3.30, "q3_k_l": 3.60, "q4_0": 3.83, "q4_k_s": 3.86, "q4_k_m": 4.08,
        "q5_0": 4.65, "q5_k_s": 4.65, "q5_k_m": 4.78, "q6_k": 5.53, "q8_0": 7.16,
    },
    "meta-llama/Llama-3.1-8B": {
        "q2_k": 3.18, "q3_k_s": 3.66, "q3_k_m": 4.02, "q3_k_l": 4.32, "q4_k_s": 4.69, "q4_k_m": 4.92,
        "q5_k_s": 5.60, "q5_k_m": 5.73, "q6_k": 6.60, "q8_0": 8.54,
    },
    "Qwen/Qwen2.5-7B-Instruct": {"q3_k_m": 3.81, "q4_k_m": 4.68, "q5_k_m": 5.44, "q6_k": 6.25, "q8_0": 8.10},
    "Qwen/Qwen2.5-14B-Instruct": {"q4_k_m": 8.99, "q5_k_m": 10.51, "q6_k": 12.12},
    "meta-llama/Llama-3.2-1B": {"q4_k_m": 0.808, "q6_k": 1.02, "q8_0": 1.32},  # tied: the table is the head
    "meta-llama/Llama-3.1-70B-Instruct": {"q4_k_m": 42.52, "q6_k": 57.89},
}  # fmt: skip


@pytest.mark.parametrize(
    ("model", "file", "published_gb"),
    [(model, file, size) for model, files in PUBLISHED_GB.items() for file, size in files.items()],
)
def test_weights_are_within_2_percent_of_the_published_file(model: str, file: str, published_gb: float) -> None:
    setting = Setting(
        arch=chipwise.resolve(model),
        plan=Plan(),
        formats=formats_of(file, wide="fp16"),
        runtime=runtime_named("llama.cpp"),
    )
    parts = lower_pass(setting, Step(batch=1, query_tokens=1, past_tokens=1))
    assert float(held(setting, parts, resident_bytes)) / 1e9 == pytest.approx(published_gb, rel=0.02)
