"""Identity, number formats, and tables of names."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chipwise.core.digest import digest, plain
from chipwise.core.dtypes import DType, weight_format
from chipwise.core.tables import Table
from chipwise.errors import UnknownName


@dataclass(frozen=True)
class Point:
    x: int
    y: tuple[float, ...]


def test_plain_values() -> None:
    assert plain({1: Point(x=1, y=(2.0,)), "d": DType.INT4}) == {"1": {"x": 1, "y": [2.0]}, "d": "int4"}


@given(st.dictionaries(st.text(max_size=3), st.integers()))
def test_the_order_of_fields_does_not_change_identity(data: dict[str, int]) -> None:
    assert digest(data) == digest(dict(reversed(data.items())))


def test_identity_is_the_same_in_every_process() -> None:
    code = "from chipwise.core.digest import digest; print(digest({'a': [1, 2.5, 'ü']}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == digest({"a": [1, 2.5, "ü"]})
    assert len(digest("x")) == 16


def test_identity_refuses_numbers_that_are_none() -> None:
    with pytest.raises(ValueError, match="JSON"):
        digest(float("nan"))


def test_matrix_bytes_by_hand() -> None:
    """A 64×10 matrix: fp32 4 bytes a value; int8 a scale a column; int4 half a byte and a scale per 32 of k.

    A last block that is not full is stored whole.
    """
    assert weight_format("fp32").matrix_bytes(64, 10) == 2560
    assert weight_format("bf16").matrix_bytes(64, 10) == 1280
    assert weight_format("int8").matrix_bytes(64, 10) == 640 + 10 * 4
    assert weight_format("int4").matrix_bytes(64, 10) == 320 + 10 * 2 * 4
    assert weight_format("int4").matrix_bytes(33, 1) == 64 // 2 + 2 * 4


def test_formats_by_their_usual_names() -> None:
    assert DType.named("bfloat16") is DType.BF16
    assert DType.named("Float32") is DType.FP32
    assert DType.TF32.size_bytes == 4
    with pytest.raises(UnknownName, match="did you mean 'int8'"):
        DType.named("int88")
    with pytest.raises(UnknownName, match="unknown weight format 'int3'; did you mean 'int"):
        weight_format("int3")


def test_tables_load_when_used_and_offer_near_names() -> None:
    table = Table("thing", "chipwise.nothing", {"join": "os.path:join", "absent": "no_such_module:x"})
    import os.path

    assert table.load("join") is os.path.join
    assert table.names() == ["join", "absent"]
    with pytest.raises(UnknownName, match="unknown thing 'jion'; did you mean 'join'"):
        table.load("jion")
