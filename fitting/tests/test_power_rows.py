"""Tables of measured power."""

from __future__ import annotations

import numpy as np
import pytest


def test_tables_are_answered_row_by_row() -> None:
    pandas = pytest.importorskip("pandas")
    from chipwise_fitting.power_rows import validate_power

    common = {"device": "NVIDIA B200", "kv_cache_dtype": "bfloat16", "num_heads": 12, "head_dim": 128, "isl": 1536}
    common |= {"num_key_value_heads": 1, "window_size": 128, "step": 0}
    rows = [
        {"row_id": "a", "op": "context_attention", "batch_size": 2, "latency_s": 1.84249e-05, **common},
        {"row_id": "b", "op": "context_attention", "batch_size": 16, "latency_s": 1.1e-4, **common, "window_size": 0},
    ]
    answer = validate_power(pandas.DataFrame(rows).iloc[::-1])
    assert list(answer["row_id"]) == ["b", "a"]
    assert np.all((answer["low_w"] < answer["power_w"]) & (answer["power_w"] < answer["high_w"]))
    assert np.all((answer["power_w"] > 240) & (answer["power_w"] <= 1000))
