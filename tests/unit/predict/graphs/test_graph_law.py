"""The law for graphs: amounts of work by hand, scaling with a chip, and that nothing unknown counts as zero."""

from __future__ import annotations

from dataclasses import replace

import pytest

from chipwise.errors import Unsupported
from chipwise.hardware import datasheet
from chipwise.model.graphs.graph import Graph, GraphInput, GraphOp
from chipwise.predict.cost.model import Bound
from chipwise.predict.graphs.explanation import explained, modules_of
from chipwise.predict.graphs.law import Speeds, amounts_of, law
from chipwise.predict.graphs.pricing import Chip, by_sheet, estimate_on, operators_on

CONV = GraphOp(
    name="stem.conv", op_type="Conv", kind="conv", module="stem.conv", flops=1_000_000, weight_bytes=400,
    read_bytes=6000, write_bytes=4000, gemm=(1, 100, 24, 27), inputs=((1, 3, 20, 20),), outputs=((1, 24, 10, 10),),
)  # fmt: skip
ADD = GraphOp(
    name="body.add", op_type="Add", kind="elementwise", module="body.add", flops=2400, read_bytes=9600, write_bytes=9600
)
ODD = GraphOp(name="odd", op_type="Own", kind="unknown", module="", flops=None)
GRAPH = Graph(
    path="net.onnx", inputs=(GraphInput(name="x", dtype="float32", shape=(1, 3, 20, 20)),), outputs=("y",), values={},
    ops=(CONV, ADD), opset=17, parameters=100, weight_bytes=400, dtype="fp32",
)  # fmt: skip


def chip(times: float = 1.0) -> Chip:
    held = law().reference
    rates = {name: times * rate for name, rate in held.flops_per_s.items()}
    speeds = Speeds(flops_per_s=rates, bytes_per_s=times * held.bytes_per_s, call_s=held.call_s / times)
    return Chip(name="chip", speeds=speeds, fitted=True, dtype="fp32")


def test_a_convolution_is_counted_by_lanes_channels_and_bytes() -> None:
    assert amounts_of(CONV) == {
        "node calls": 1,
        "few channels conv flops": 1_000_000 * 32 / 24,  # 24 columns take two vectors of 16
        "conv weights bytes": 400,
        "conv bytes": 10_000,
    }


def test_what_has_no_blocked_layout_is_unfolded_into_products_of_positions() -> None:
    line = replace(CONV, inputs=((1, 24, 100),), outputs=((1, 24, 100),), gemm=(1, 100, 24, 72))
    assert amounts_of(line)["unfolded conv flops"] == 1_000_000 * 112 / 100  # 100 positions take seven vectors
    assert amounts_of(line)["unfolded conv bytes"] == 4 * 100 * 72


def test_runs_in_a_loop_multiply_all_amounts() -> None:
    assert amounts_of(replace(CONV, runs=7)) == {name: 7 * each for name, each in amounts_of(CONV).items()}


def test_a_chip_twice_as_fast_in_everything_halves_the_time() -> None:
    slow, fast = (estimate_on(GRAPH, chip(times)).latency_s for times in (1.0, 2.0))
    assert fast == pytest.approx(slow / 2)


def test_a_view_starts_no_kernel_and_costs_the_same_on_all_chips() -> None:
    view = replace(ADD, op_type="Flatten", kind="view", flops=0, read_bytes=0, write_bytes=0)
    assert law().seconds_of(view, chip(0.1).speeds) == law().seconds_of(view, chip().speeds)


def test_the_pass_is_the_sum_of_its_operators_and_one_call() -> None:
    here = chip()
    seconds = [each.seconds for each in operators_on(GRAPH, here)]
    assert estimate_on(GRAPH, here).latency_s == pytest.approx(sum(filter(None, seconds)) + law().pass_s(here.speeds))


def test_an_operator_that_cannot_be_counted_has_no_time_and_the_pass_no_interval() -> None:
    graph = replace(GRAPH, ops=(*GRAPH.ops, ODD))
    found = explained(graph, chip(), estimate_on(graph, chip()))
    own = next(each for each in found.operators if each.name == "odd")
    assert (own.seconds, own.flops, own.bytes) == (None, None, None)
    assert found.uncounted == ("Own odd",)
    assert found.estimate.metrics["latency_s"].high is None


def test_what_bounds_an_operator_follows_from_the_chip() -> None:
    held = law().reference
    starved = replace(chip(), speeds=Speeds(flops_per_s=held.flops_per_s, bytes_per_s=1e6, call_s=held.call_s))
    weak = replace(chip(), speeds=Speeds(flops_per_s={"fp32": 1e6}, bytes_per_s=held.bytes_per_s, call_s=held.call_s))
    assert operators_on(GRAPH, starved)[0].bound is Bound.MEMORY
    assert operators_on(GRAPH, weak)[0].bound is Bound.COMPUTE
    assert operators_on(GRAPH, starved)[1].limit_s == pytest.approx(19_200 / 1e6)


def test_a_sheet_is_wider_than_a_measured_machine_and_says_so() -> None:
    sheet = by_sheet(datasheet.load("l4"), GRAPH, "fp16")
    found = estimate_on(GRAPH, sheet)
    assert found.metrics["latency_s"].log_halfwidth > law().halfwidth  # type: ignore[operator]
    assert "not fitted: the chip (l4), the format (fp16)" in found.notes[0]
    assert sheet.shrink == 0.5  # 16 of 32 bits


def test_a_part_without_rates_is_refused() -> None:
    with pytest.raises(Unsupported, match="no rate for a graph in fp32"):
        by_sheet(datasheet.load("snapdragon-8-elite:npu"), GRAPH, None)


def test_modules_are_told_apart_by_their_names() -> None:
    shares = modules_of(operators_on(GRAPH, chip()))
    assert set(shares) == {"stem.conv", "body.add"}
    assert sum(shares.values()) == pytest.approx(1)
    assert modules_of(operators_on(replace(GRAPH, ops=(replace(CONV, module=""),)), chip())) == {}
