"""TVM: all but its program with a stand-in that runs ONNX Runtime, and the real one where its environment is.

The graph is softmax(x w), of ONNX's own operators.
"""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import chipwise
from chipwise.cli.app import app
from chipwise.core.environments import install_command
from chipwise.deploy.runtimes import RUNTIMES, missing
from chipwise.errors import InputError, MeasurementError, Unreachable
from support.stand_in_program import write_program

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")
from onnx import TensorProto, helper, numpy_helper  # noqa: E402

SIZES = (4, 8, 16)  # rows, and width in and out
STAND_IN = """#!{python}
import sys, time
sys.path[:0] = {path!r}
from chipwise.core.workers import serve
from chipwise.deploy.graphs import sessions
from chipwise.deploy.graphs.inputs import read_arrays

held = []

def answer(job, report):
    match job["do"]:
        case "tune":
            for done in (1, job["trials"]):
                report(done=done, of=job["trials"])
            return {{"folder": job["room"] + "/some"}}
        case "open":
            session, feed = sessions.opened(job["model"], threads=1), read_arrays(job["feed"])
            sessions.outputs(session, feed, job["model"])
            held.append((session, feed))
            return {{"number": len(held) - 1}}
        case "run":
            seconds = []
            for _ in range(job["passes"]):
                start = time.perf_counter()
                held[job["number"]][0].run(None, held[job["number"]][1])
                seconds.append(time.perf_counter() - start)
            return {{"seconds": seconds, "cpu_s": seconds}}
        case "race":
            assert job["schedules"].endswith("tvm-schedules/some")
            return {{"seconds": 2e-6, "other_s": 1e-6, "slower": [2.0, 1.9, 2.1], "difference": 1e-7}}
        case "usage":
            return {{"cpu_s": time.process_time()}}
        case "version":
            return {{"version": "stand-in"}}
    return {{}}

serve(answer)
"""


def saved(path: Path, *nodes, domain: str = "") -> Path:
    """A graph from ``x`` to ``y`` with the weights ``w``."""
    _, wide, out = SIZES
    weight = numpy_helper.from_array(np.random.default_rng(1).standard_normal((wide, out), np.float32), "w")
    given = [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["rows", wide])]
    told = [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["rows", out])]
    opsets = [helper.make_opsetid("", 17), *([helper.make_opsetid(domain, 1)] if domain else [])]
    graph = helper.make_graph(list(nodes), "g", given, told, [weight])
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), str(path))
    return path


@pytest.fixture
def graph(tmp_path: Path) -> Path:
    product = helper.make_node("MatMul", ["x", "w"], ["scores"])
    return saved(tmp_path / "scores.onnx", product, helper.make_node("Softmax", ["scores"], ["y"], axis=-1))


@pytest.fixture
def stand_in(tmp_path, monkeypatch):
    """A program in the place of the environment's Python."""
    monkeypatch.setenv("CHIPWISE_TVM", str(write_program(tmp_path / "python", STAND_IN)))


SHAPE = {"shapes": {"x": SIZES[:2]}, "keep": False}


def test_a_graph_is_tuned_then_measured_then_raced(stand_in, graph) -> None:
    seen = []
    found = chipwise.measure_compiled(graph, trials=40, on_progress=lambda done, of: seen.append((done, of)), **SHAPE)
    assert seen == [(1, 40), (40, 40)]
    assert found.trials == 40
    assert found.race.slower == (2.0, 1.9, 2.1)
    measured = found.measurement
    assert (measured.runtime, measured.runtime_version, measured.encodes) == ("tvm", "stand-in", True)
    assert measured.environment["schedules"] == "tuned"
    assert measured.environment["inputs"] == {"x": list(SIZES[:2])}
    assert 0 < measured.percentile("ttft", 0.5) <= measured.percentile("ttft", 0.99)
    assert measured.peak_memory_bytes is None  # the program compiles, too


def test_without_trials_nothing_is_tuned(stand_in, graph) -> None:
    found = chipwise.measure_compiled(graph, trials=0, on_progress=lambda *_: pytest.fail("it tuned"), **SHAPE)
    assert found.race is None
    assert found.measurement.environment["schedules"] == "TVM's own"


def test_a_folder_stands_for_the_graph_in_it(stand_in, graph) -> None:
    (graph.parent / "winner").mkdir()
    graph.rename(graph.parent / "winner" / "model.onnx")
    assert chipwise.measure_compiled(graph.parent / "winner", trials=0, **SHAPE).measurement.runtime == "tvm"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"trials": -1}, "trials: must be 0 or more, not -1"),
        ({"threads": 4096}, "threads: this machine has"),
        ({"model": "gpt2"}, "gpt2: tvm measures only ONNX files and PyTorch modules; write ONNX with"),
        ({"shapes": {"x": (4, 9)}}, "cannot be (4, 9)"),
    ],
)
def test_wrong_requests_are_refused(stand_in, graph, arguments, words) -> None:
    with pytest.raises(InputError, match=re.escape(words)):
        chipwise.measure_compiled(**{"model": graph, **SHAPE, **arguments})


def test_measure_names_the_function_that_compiles(graph) -> None:
    with pytest.raises(InputError, match=r"measure_compiled \(--runtime tvm\)"):
        chipwise.measure(graph, runtime="tvm", **SHAPE)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--runtime", "tvm", "--prompt", "4"], "--prompt does not apply to --runtime tvm"),
        (["--runtime", "tvm", "--trials", "-1"], "greater than or equal to 0"),
        (["--trials", "4"], "--trials only applies with --runtime tvm"),
    ],
)
def test_options_that_would_have_no_effect_are_refused(graph, arguments, words) -> None:
    found = CliRunner().invoke(app, ["measure", str(graph), "--shape", "x=4,8", *arguments])
    assert found.exit_code == 2
    assert words in found.output


def test_the_command_prints_the_race(stand_in, graph) -> None:
    arguments = ["--runtime", "tvm", "--shape", "x=4,8", "--trials", "40", "--no-keep"]
    found = CliRunner().invoke(app, ["measure", str(graph), *arguments])
    assert found.exit_code == 0, found.output
    assert "40 trials" in found.output
    assert "2 (1.9 to 2.1) times as long" in " ".join(found.output.split())


def test_a_missing_environment_is_one_line_that_says_how_to_make_it(graph, tmp_path, monkeypatch) -> None:
    monkeypatch.delenv("CHIPWISE_TVM", raising=False)
    monkeypatch.setenv("CHIPWISE_CACHE", str(tmp_path / "cache"))
    with pytest.raises(Unreachable) as refused:
        chipwise.measure_compiled(graph, **SHAPE)
    assert install_command("tvm") in str(refused.value)
    assert str(refused.value).count("\n") == 0


def test_the_runtime_needs_arrays(stand_in, graph) -> None:
    with pytest.raises(MeasurementError, match="tvm needs arrays for the graph's inputs"):
        RUNTIMES.load("tvm")().open(graph, capacity=1, batch=1, threads=1, options={})


real = [pytest.mark.slow, pytest.mark.timeout(1200)]
real += [pytest.mark.skipif(missing("tvm") is not None, reason=f"{missing('tvm')}")]


class TestTvm:
    pytestmark = real

    def test_outputs_are_those_of_onnx_runtime(self, graph, tmp_path, monkeypatch) -> None:
        monkeypatch.setenv("CHIPWISE_TVM", str(Path.home() / ".cache/chipwise/tvm"))
        monkeypatch.setenv("CHIPWISE_CACHE", str(tmp_path / "cache"))
        seen = []
        for _ in range(2):  # what the first call tried is not tried again
            found = chipwise.measure_compiled(graph, trials=8, on_progress=lambda *told: seen.append(told), **SHAPE)
            assert found.race.difference < 1e-5
        assert seen[-1] == (8, 8)
        assert seen.count((8, 8)) == 1

    def test_operators_of_onnx_runtime_alone_are_refused_by_name(self, tmp_path) -> None:
        both = helper.make_node("FusedMatMul", ["x", "w"], ["y"], domain="com.microsoft")
        with pytest.raises(MeasurementError, match=r"not com\.microsoft\.FusedMatMul"):
            chipwise.measure_compiled(saved(tmp_path / "m.onnx", both, domain="com.microsoft"), trials=0, **SHAPE)
