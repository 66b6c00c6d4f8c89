"""The law for NPUs: amounts by pencil, more work takes longer, what is not fitted is said, results teach a chip."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from chipwise.errors import UnknownName
from chipwise.model.graphs.graph import Graph, GraphOp
from chipwise.predict.graphs import npu_law
from chipwise.predict.graphs.npu_chips import chip_named
from chipwise.predict.graphs.npus import npu_of
from chipwise.predict.graphs.pricing import estimate_on

CONV = GraphOp(
    name="conv", op_type="Conv", kind="pointwise conv", module="", flops=2 * 100 * 48 * 64, weight_bytes=4 * 48 * 64,
    read_bytes=4 * 48 * 100, write_bytes=4 * 64 * 100, gemm=(1, 100, 64, 48), inputs=((1, 48, 10, 10),),
    outputs=((1, 64, 10, 10),),
)  # fmt: skip
GRAPH = Graph(
    path="model.onnx", inputs=(), outputs=(), values={}, ops=(CONV,), opset=17, parameters=48 * 64,
    weight_bytes=4 * 48 * 64, dtype="fp32",
)  # fmt: skip


def seconds(**changes: str) -> float:
    npu = npu_of("snapdragon-8-elite", GRAPH, runtime=changes.get("runtime"), weights=changes.get("weights"))
    assert npu is not None
    return estimate_on(replace(GRAPH, ops=(CONV,) * int(changes.get("times", 1))), npu).latency_s


def test_channels_count_in_whole_blocks_and_bytes_in_the_format() -> None:
    found = npu_law.amounts_of(CONV, "w8a16")
    # 48 channels fill two blocks of 32, and 10 x 10 positions fill 16 x 12 of blocks of 8 x 4
    assert found["pointwise conv flops"] == pytest.approx(2 * 16 * 12 * 64 * 64)
    assert found["weights bytes"] == 48 * 64  # one byte each
    assert found["product bytes"] == 2 * 100 * (48 + 64)
    assert found["node calls"] == 1


def test_patches_of_a_film_are_one_matrix_product_and_other_volumes_are_not() -> None:
    film = ((1, 3, 4, 32, 32),)
    # 2 frames x 16 x 16 pixels x 3 channels = 1,536 values a patch; 2 x 2 x 2 patches, 8 rows of a block of 32
    patches = replace(CONV, kind="conv", gemm=(1, 8, 64, 1536), flops=2 * 8 * 64 * 1536, inputs=film,
                      outputs=((1, 64, 2, 2, 2),))  # fmt: skip
    overlapping = replace(patches, gemm=(1, 4096, 64, 81), flops=2 * 4096 * 64 * 81, outputs=((1, 64, 4, 32, 32),))
    assert npu_law.amounts_of(patches, "float")["matmul flops"] == 2 * 8 * 64 * 1536
    assert npu_law.amounts_of(overlapping, "float")["volume conv flops"] == 2 * 4096 * 64 * 81


def test_a_format_shifts_all_rates_of_a_unit_alike() -> None:
    chip = chip_named("galaxy-s25")
    plain, shifted = (npu_law.rates(terms, chip, "qnn", "w8a8") for terms in ({}, {"format|w8a8|bytes": 1.0}))
    for name in npu_law.NOMINAL_S:
        assert shifted[name] == pytest.approx(plain[name] * (math.e if name.endswith(" bytes") else 1))
    assert npu_law.rates({"format|w8a8|bytes": 1.0}, chip, "qnn", "float") == npu_law.rates({}, chip, "qnn", "float")


def test_numbers_already_in_eight_bits_are_not_halved_again() -> None:
    quantised = replace(CONV, dtype="int8", weight_bytes=48 * 64, read_bytes=4800, write_bytes=6400)
    assert npu_law.amounts_of(quantised, "w8a8") == npu_law.amounts_of(CONV, "w8a8")


def test_what_cannot_be_counted_has_no_amounts_and_no_interval() -> None:
    odd = GraphOp(name="odd", op_type="Own", kind="unknown", module="", flops=None)
    assert not npu_law.amounts_of(odd, "float")
    npu = npu_of("galaxy-s25", GRAPH, runtime="tflite", weights=None)
    assert npu is not None
    found = estimate_on(replace(GRAPH, ops=(CONV, odd)), npu)
    assert found.metrics["latency_s"].low is None


def test_more_operators_take_longer_and_fewer_bits_less() -> None:
    assert seconds(times="1") < seconds(times="2") < seconds(times="4")
    assert seconds(times="500", weights="w8a8") < seconds(times="500")


def test_an_answer_says_what_was_fitted() -> None:
    known = npu_of("Samsung Galaxy S24", GRAPH, runtime="litert", weights="w8a8")
    new = npu_of("snapdragon-7s-gen-4", GRAPH, runtime=None, weights="w8a8")
    four = npu_of("galaxy-s25", GRAPH, runtime=None, weights="int4")
    assert known is not None
    assert new is not None
    assert four is not None
    assert "the chip, the runtime (tflite) and the format (w8a8) were fitted" in known.note
    assert "not fitted: the chip (snapdragon-7s-gen-4:npu)" in new.note
    assert "not fitted: the format (w4a16)" in four.note
    assert known.halfwidth < new.halfwidth


def test_other_parts_and_vendors_have_no_such_npu_and_odd_words_are_refused() -> None:
    assert npu_of("galaxy-s25:gpu", GRAPH, runtime=None, weights=None) is None
    assert npu_of("l4", GRAPH, runtime=None, weights=None) is None
    with pytest.raises(UnknownName, match="tflite"):
        npu_of("galaxy-s25", GRAPH, runtime="vllm", weights=None)
