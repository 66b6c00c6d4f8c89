"""Columns of people's tables: what is guessed, what is mapped, and what is an error."""

from __future__ import annotations

import pytest

from chipwise.deploy.teach.columns import find_columns
from chipwise.errors import SpecError, UnknownName


@pytest.mark.parametrize(
    ("column", "field", "seconds"),
    [
        ("latency_ms", "total", 1e-3),
        ("Latency (s)", "total", 1.0),
        ("TTFT [ms]", "ttft", 1e-3),
        ("tpot_us", "tpot", 1e-6),
        ("time_per_output_token_ms", "tpot", 1e-3),
        ("seconds", "total", 1.0),
    ],
)
def test_times_carry_their_unit(column: str, field: str, seconds: float) -> None:
    found = find_columns(["model", column])
    assert found.fields[field] == column
    assert found.scale[field] == seconds


@pytest.mark.parametrize(
    ("column", "field"),
    [
        ("prefill_tokens_per_s", "prefill_rate"),
        ("decode tok/s", "decode_rate"),
        ("tokens/s", "total_rate"),
        ("quant", "weights"),
        ("isl", "prompt"),
        ("gen_tokens", "new"),
        ("encoder_embed_dim", "encoder_d_model"),
        ("decoder_ffn_embed_dim_avg", "decoder_ffn"),
    ],
)
def test_other_fields_by_their_usual_names(column: str, field: str) -> None:
    assert find_columns([column]).fields == {field: column}


def test_a_map_goes_before_a_guess_and_dash_leaves_out() -> None:
    found = find_columns(["model", "lat", "latency_ms"], {"lat": "total_ms", "latency_ms": "-"})
    assert found.fields == {"total": "lat", "model": "model"}
    assert found.scale == {"total": 1e-3}
    assert found.left_out == ("latency_ms",)


def test_what_cannot_be_mapped() -> None:
    with pytest.raises(UnknownName, match="unknown column 'lat'"):
        find_columns(["model"], {"lat": "total_ms"})
    with pytest.raises(UnknownName, match="unknown field 'speed'"):
        find_columns(["model", "lat"], {"lat": "speed"})
    with pytest.raises(SpecError, match="both mapped to total"):
        find_columns(["a", "b"], {"a": "total_s", "b": "total_ms"})
