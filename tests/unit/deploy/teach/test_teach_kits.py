"""CPUs and GPUs are taught by measured ONNX files, from tables and straight from what a kit's script wrote."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")
np = pytest.importorskip("numpy")

from onnx import TensorProto, helper, numpy_helper  # noqa: E402

import chipwise  # noqa: E402
from chipwise.cli.app import app  # noqa: E402
from chipwise.errors import InputError, SpecError  # noqa: E402
from chipwise.hardware import taught  # noqa: E402
from chipwise.predict.graphs.law import law  # noqa: E402

SHEET = "raspberry-pi-5"
SHAPES = {f"x{i}": (1, 16, 24, 24) for i in range(5)}
SIZES = ((1, 16), (2, 24), (3, 32), (4, 48), (6, 32))


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHIPWISE_HOME", str(tmp_path / "home"))


def network(path: Path, layers: int, width: int, name: str = "x") -> Path:
    """Convolutions of 3 x 3 on images of open size, each of ``layers`` followed by a Relu."""
    weights = [np.ones((width, 16 if i == 0 else width, 3, 3), np.float32) for i in range(layers)]
    nodes = []
    for i in range(layers):
        nodes.append(helper.make_node("Conv", [name if i == 0 else f"r{i}", f"w{i}"], [f"c{i + 1}"], pads=[1, 1, 1, 1]))
        nodes.append(helper.make_node("Relu", [f"c{i + 1}"], [f"r{i + 1}"]))
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 16, f"{name}_rows", f"{name}_columns"])],
        [helper.make_tensor_value_info(f"r{layers}", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(each / each[0].size, f"w{i}") for i, each in enumerate(weights)],
    )
    path.parent.mkdir(exist_ok=True)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    return path


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    return [network(tmp_path / f"net{i}.onnx", *size, name=f"x{i}") for i, size in enumerate(SIZES)]


def shape_of(file: Path) -> dict[str, tuple[int, ...]]:
    name = f"x{file.stem.removeprefix('net')}"
    return {name: SHAPES[name]}


def law_s(file: Path, device: str, **asked: str) -> float:
    return chipwise.estimate(file, shapes=shape_of(file), device=device, **asked).latency_s


def table(files: list[Path], times: float, device: str, more: dict[str, str], **asked: str) -> Path:
    path = files[0].parent / "results.csv"
    lines = [",".join(("file", "seconds", "shape", *more))]
    for file in files:
        ((name, shape),) = shape_of(file).items()
        cells = (file.name, f"{times * law_s(file, device, **asked)}", f'"{name}={",".join(map(str, shape))}"')
        lines.append(",".join((*cells, *more.values())))
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.mark.parametrize("times", [0.4, 3.0])
def test_five_files_of_a_cpu_recover_how_many_times_slower_it_is(files: list[Path], times: float) -> None:
    chipwise.teach("my-board", table(files, times, f"{SHEET}:1-core", {"threads": "1"}), base=SHEET)
    other = network(files[0].parent / "net0.onnx", 5, 40, name="x0")
    found = chipwise.estimate(other, shapes=shape_of(other), device="my-board")
    truth = times * law_s(other, f"{SHEET}:1-core")
    assert found.device == "my-board:1-core"  # where the files ran
    assert found.latency_s == pytest.approx(truth, rel=0.1)
    assert found.metrics["latency_s"].log_halfwidth == pytest.approx(law().taught_halfwidth)
    assert found.metrics["latency_s"].low < truth < found.metrics["latency_s"].high
    assert "the chip to 5 results of my-board@1, 5 of them in this format (fp32)" in found.notes[0]
    again = chipwise.estimate(other, shapes=shape_of(other), device="my-board:1-core")
    assert again.latency_s == found.latency_s
    more_cores = chipwise.estimate(other, shapes=shape_of(other), device="my-board:4-cores")
    assert more_cores.latency_s == law_s(other, f"{SHEET}:4-cores")  # no file ran on four
    assert "not fitted: the chip (my-board:4-cores)" in more_cores.notes[0]
    explained = chipwise.explain(other, shapes=shape_of(other), device="my-board")
    limits = chipwise.explain(other, shapes=shape_of(other), device=f"{SHEET}:1-core")
    assert {op.name: op.limit_s for op in explained.operators} == {op.name: op.limit_s for op in limits.operators}


def test_a_gpu_is_taught_in_its_runtime_and_format(files: list[Path]) -> None:
    more = {"runtime": "TensorRT", "precision": "fp16"}
    chipwise.teach("my-card", table(files, 2.0, "l4", more, weights="fp16"), base="l4")
    found = chipwise.estimate(files[3], shapes=shape_of(files[3]), device="my-card", weights="fp16")
    assert (found.device, found.runtime) == ("my-card", "tensorrt")
    assert found.latency_s == pytest.approx(2 * law_s(files[3], "l4", weights="fp16"), rel=0.1)
    elsewhere = chipwise.estimate(files[3], shapes=shape_of(files[3]), device="my-card", runtime="onnxruntime")
    assert elsewhere.latency_s == law_s(files[3], "l4")  # nothing was measured in this runtime
    width = law().unfitted_halfwidth  # of a format without results
    own = chipwise.estimate(files[3], shapes=shape_of(files[3]), device="my-card")
    assert own.metrics["latency_s"].log_halfwidth == pytest.approx(width)


def test_the_cpu_of_a_phone_is_taught_beside_its_npu(files: list[Path]) -> None:
    base = "snapdragon-7s-gen-4"
    cpu = table(files, 2.0, f"{base}:2-cores", {"backend": "cpu", "threads": "2"})
    chipwise.teach("my-phone", cpu, base=base)
    assert chipwise.estimate(files[0], shapes=shape_of(files[0]), device="my-phone").device == "my-phone:2-cores"
    npu = table(files, 2.0, base, {"precision": "w8a8"}, weights="w8a8")
    chipwise.teach("my-phone", npu, base=base, add=True)
    whole = chipwise.estimate(files[0], shapes=shape_of(files[0]), device="my-phone", weights="w8a8")
    assert whole.device == "my-phone:npu"
    assert "5 results of my-phone@2" in whole.notes[0]
    part = chipwise.estimate(files[0], shapes=shape_of(files[0]), device="my-phone:2-cores")
    assert part.latency_s == pytest.approx(2 * law_s(files[0], f"{base}:2-cores"), rel=0.1)


def test_what_a_kits_script_wrote_teaches_the_cpu_where_it_ran(files: list[Path], tmp_path: Path) -> None:
    shapes = [text for file in files for text in ("--shape", f"{next(iter(shape_of(file)))}=1,16,24,24")]
    packed = CliRunner().invoke(app, ["kit", *map(str, files), "--out", str(tmp_path / "kit"), *shapes])
    assert packed.exit_code == 0, packed.output
    script = [sys.executable, "kit.py", "--rounds", "1", "--seconds", "0.01", "--prefills", "3", "--steps", "3"]
    done = subprocess.run(script, cwd=tmp_path / "kit", capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    results = tmp_path / "kit" / "kit-results.json"
    told = CliRunner().invoke(app, ["teach", "my-board", "--from", str(results), "--base", SHEET])
    assert told.exit_code == 0, told.output
    assert "corrected for ONNX files only, by 5 results" in " ".join(told.output.split())
    profile = taught.load("my-board")
    assert profile is not None
    assert {(each.runtime, each.precision, each.part) for each in profile.files} == {("onnxruntime", "fp32", "1-core")}
    rounds = {item["file"]: item["rounds"][0]["ttft_s"] for item in json.loads(results.read_text())["measured"]}
    assert sorted(each.seconds for each in profile.files) == pytest.approx(sorted(map(np.median, rounds.values())))
    found = chipwise.estimate(files[2], shapes=shape_of(files[2]), device="my-board")
    assert (found.device, found.runtime) == ("my-board:1-core", "onnxruntime")
    assert "5 results of my-board@1" in found.notes[0]
    with pytest.raises(SpecError, match="ran on the CPU, but l4 has none"):
        chipwise.teach("my-card", results, base="l4")
    with pytest.raises(InputError, match=r"columns \(--map\) and where \(--where\) apply only to tables"):
        chipwise.teach("my-board", results, base=SHEET, where={"model": "x"})
    network(tmp_path / "kit" / "models" / "2" / "net2.onnx", 1, 8)
    with pytest.raises(
        SpecError, match=r"there are 4 in fp32 .*line 3: models/2/net2\.onnx: differs from the file that"
    ):
        chipwise.teach("my-board", results, base=SHEET)
    alone = tmp_path / "elsewhere.json"
    alone.write_text(results.read_text())
    with pytest.raises(SpecError, match=r"none of 5 models can be used; models/0/net0\.onnx: is not in .*, where the"):
        chipwise.teach("my-board", alone, base=SHEET)


def test_a_kit_of_several_files_refuses_what_fits_none_of_them(files: list[Path], tmp_path: Path) -> None:
    with pytest.raises(InputError, match="y: no model of this kit has an input of this name"):
        chipwise.kit(files[:2], out=tmp_path / "kit", shapes={"x0": SHAPES["x0"], "x1": SHAPES["x1"], "y": (2,)})
    with pytest.raises(InputError, match="can contain only ONNX files and modules"):
        chipwise.kit([files[0], "gpt2"], out=tmp_path / "kit")
    same = [network(tmp_path / folder / "net0.onnx", 1, 16, name="x0") for folder in ("a", "b")]
    packed = chipwise.kit(same, out=tmp_path / "kit", shapes={"x0": (1, 16, 8, 8)})
    assert [each.file for each in packed.kit.models] == ["models/0/net0.onnx", "models/1/net0.onnx"]
    assert packed.kit.models[1].inputs == {"x0": (1, 16, 8, 8)}
