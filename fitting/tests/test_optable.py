"""Tables of single operators: what rows of a group may differ in, and sizes that do not go together."""

from __future__ import annotations

import pytest

from chipwise_fitting.optable import price_rows

MOE = {"op": "moe", "device": "h100_sxm", "tokens": "64", "d_model": "2048", "width": "768", "topk": "8"}
ATTENTION = {"op": "attention", "device": "h100", "heads": "32", "head_dim": "128", "query_tokens": "64"}
LATENT = {"op": "mla", "device": "h100", "heads": "128", "query_tokens": "2048", "past_tokens": "0"}


def seconds(*rows: dict[str, str]) -> list[float]:
    answers = price_rows(rows)
    assert [row["error"] for row in answers] == [""] * len(rows)
    return [float(row["latency_s"]) for row in answers]


def test_mixtures_of_several_sizes_are_answered_as_each_alone() -> None:
    rows = [MOE | {"experts": "128"}, MOE | {"experts": "64"}, MOE | {"experts": "64", "local_experts": "16"}]
    assert seconds(*rows) == [seconds(row)[0] for row in rows]


def test_latent_attention_is_absorbed_or_expanded() -> None:
    absorbed, expanded = seconds(LATENT | {"absorbed": "1"}, LATENT | {"absorbed": "0"})
    assert expanded < absorbed  # of a prompt: 128 + 64 + 128 values a head and key, not 512 + 64 + 512


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        (MOE | {"experts": "4"}, "topk: is 8, more than 4 experts"),
        (MOE | {"experts": "16", "local_experts": "32"}, "local_experts: is 32, more than 16"),
        (ATTENTION | {"kv_heads": "5"}, "kv_heads: 5 do not divide 32 heads"),
        (ATTENTION | {"kv_heads": "0"}, "kv_heads: must be a size from 1"),
    ],
)
def test_sizes_that_do_not_go_together(row: dict[str, str], problem: str) -> None:
    assert problem in price_rows([row])[0]["error"]


@pytest.mark.parametrize("dtype", ["bf16", "fp8", "nvfp4", "w8a8"])
@pytest.mark.parametrize("device", ["h100-sxm", "b300-sxm", "a100-sxm-80gb", "mi300x", "xeon-8480-plus"])
def test_no_product_takes_fewer_seconds_than_its_flops_at_the_dense_peak(device: str, dtype: str) -> None:
    size = str(2**17)
    row = {"op": "gemm", "device": device, "dtype": dtype, "m": size, "n": size, "k": size}
    answer = price_rows([row])[0]
    if not answer["error"]:  # the device has no rate for it
        assert float(answer["latency_s"]) >= 0.9999 * float(answer["compute_s"])
