"""A chip that is k times slower than the law is taught k by five files; bad tables are one line each."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")
np = pytest.importorskip("numpy")

from onnx import TensorProto, helper, numpy_helper  # noqa: E402

import chipwise  # noqa: E402
from chipwise.cli.app import app  # noqa: E402
from chipwise.errors import InputError, SpecError, UnknownName  # noqa: E402
from chipwise.hardware import datasheet, taught  # noqa: E402

SHEET = "snapdragon-7s-gen-4"  # nobody published runs of its NPU
SHAPE = {"x": (1, 32, 32, 32)}


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHIPWISE_HOME", str(tmp_path / "home"))


def network(path: Path, layers: int, width: int) -> Path:
    """Convolutions of 3 x 3 on images of open size."""
    weights = [np.ones((width, 32 if i == 0 else width, 3, 3), np.float32) for i in range(layers)]
    nodes = [
        helper.make_node("Conv", ["x" if i == 0 else f"y{i}", f"w{i}"], [f"y{i + 1}"], pads=[1, 1, 1, 1])
        for i in range(layers)
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 32, "height", "width"])],
        [helper.make_tensor_value_info(f"y{layers}", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(each, f"w{i}") for i, each in enumerate(weights)],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    return path


def law_s(path: Path, **asked: str) -> float:
    return chipwise.estimate(path, shapes=SHAPE, device=SHEET, **asked).latency_s


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    sizes = ((1, 32), (2, 64), (4, 64), (4, 128), (8, 96))
    return [network(tmp_path / f"net{i}.onnx", *size) for i, size in enumerate(sizes)]


def table(files: list[Path], seconds: list[object], *, precision: str = "w8a8", more: str = "", cell: str = "") -> Path:
    path = files[0].parent / "results.csv"
    lines = [f"file,seconds,precision,shape{more and ',' + more}"]
    for file, each in zip(files, seconds, strict=True):
        lines.append(f'{file.name},{each},{precision},"x=1,32,32,32"{cell and "," + cell}')
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.mark.parametrize("times", [0.5, 3.0])
def test_five_results_of_a_chip_recover_how_many_times_slower_it_is(files: list[Path], times: float) -> None:
    rows = table(files, [times * law_s(file, weights="w8a8") for file in files])
    found = chipwise.teach("my-phone", rows, base=SHEET)
    assert found.headline() == f"my-phone@1: taught from 5 files on {SHEET}"
    other = network(files[0].parent / "other.onnx", 6, 80)
    here = chipwise.estimate(other, shapes=SHAPE, device="my-phone", weights="w8a8")
    truth = times * law_s(other, weights="w8a8")
    assert here.device == "my-phone:npu"
    assert here.latency_s == pytest.approx(truth, rel=0.06)  # shrunk a little towards the chip's generation
    assert here.metrics["latency_s"].low < truth < here.metrics["latency_s"].high
    assert "the chip to 5 results of my-phone@1, 5 of them in this format (w8a8)" in here.notes[0]


def test_the_interval_is_narrower_in_the_format_of_the_results_alone(files: list[Path]) -> None:
    rows = table(files, [law_s(file, weights="w8a8") for file in files])
    chipwise.teach("my-phone", rows, base=SHEET)

    def width(device: str, weights: str) -> float:
        found = chipwise.estimate(files[0], shapes=SHAPE, device=device, weights=weights).metrics["latency_s"]
        assert found.low is not None
        assert found.high is not None
        return found.high / found.low

    assert width("my-phone", "w8a8") < width(SHEET, "w8a8")
    assert width("my-phone", "w8a16") == pytest.approx(width(SHEET, "w8a16"))
    untaught = chipwise.estimate(files[0], shapes=SHAPE, device="my-phone", weights="w8a16")
    assert "not fitted: the chip" in untaught.notes[0]


def test_a_profile_comes_back_from_its_file_and_grows(files: list[Path]) -> None:
    rows = table(files, [2e-3] * 5)
    first = chipwise.teach("my-phone", rows, base=SHEET)
    assert taught.load("my-phone@1") == first.teaching
    second = chipwise.teach("my-phone", table(files[:1], [3e-3]), base=SHEET, add=True)
    assert [each.seconds for each in second.teaching.files] == [2e-3] * 5 + [3e-3]
    # language models are priced as before, and a table of them keeps the files
    assert chipwise.estimate("gpt2", device="my-phone").tpot_s == chipwise.estimate("gpt2", device=SHEET).tpot_s
    named = files[0].parent / "named.csv"
    named.write_text("model,prompt_tokens,ttft_ms\ngpt2,64,50\ngpt2,128,100\n")
    third = chipwise.teach("my-phone", named, base=SHEET)
    assert third.teaching.rows == 2
    assert third.teaching.files == second.teaching.files


def test_a_part_of_a_taught_machine_is_known_by_its_name(files: list[Path]) -> None:
    rows = table(files, [2.0 * law_s(file, weights="w8a8") for file in files])
    chipwise.teach("my-phone", rows, base=SHEET)
    whole = chipwise.estimate(files[0], shapes=SHAPE, device="my-phone", weights="w8a8")
    for name in ("my-phone:npu", "my-phone@1:NPU"):
        assert datasheet.load(name).label == "my-phone:npu"
        assert datasheet.said_of(name) is None
        named = datasheet.load(name)
        for device in (name, named):
            found = chipwise.estimate(files[0], shapes=SHAPE, device=device, weights="w8a8")
            assert (found.device, found.latency_s) == ("my-phone:npu", whole.latency_s)
    with pytest.raises(UnknownName, match=f"{SHEET}:cpu"):
        datasheet.load("my-phone:tpu")
    with pytest.raises(UnknownName, match="version of my-phone"):
        datasheet.load("my-phone@7:npu")


def test_measured_language_models_correct_the_part_on_which_they_ran_alone(files: list[Path]) -> None:
    named = files[0].parent / "named.csv"
    named.write_text("model,prompt_tokens,ttft_ms\ngpt2,64,50\ngpt2,128,100\n")
    chipwise.teach("my-phone", named, base=SHEET)
    part = chipwise.estimate("gpt2", device="my-phone:cpu")
    assert part.device == "my-phone:cpu"
    assert part.tpot_s == chipwise.estimate("gpt2", device=f"{SHEET}:cpu").tpot_s
    assert "nothing taught" in part.provenance
    before = taught.revision("my-phone:cpu")
    chipwise.teach("my-phone", named, base=SHEET, add=True)  # another version is seen at once
    assert taught.revision("my-phone:cpu") > before > 0


def test_bad_tables_are_one_line_each(files: list[Path]) -> None:
    good: list[object] = [2e-3] * 5
    with pytest.raises(SpecError, match="no such file"):
        chipwise.teach("my-phone", files[0].parent / "none.csv", base=SHEET)
    with pytest.raises(SpecError, match=r"needs results of at least 5 files in one format; there are 4 in w8a8"):
        chipwise.teach("my-phone", table(files[:4], good[:4]), base=SHEET)
    for wrong in ("-0.002", "nan", "0", "inf"):
        with pytest.raises(SpecError, match=r"there are 4 in w8a8; line 6: .*must be above 0"):
            chipwise.teach("my-phone", table(files, [*good[:4], wrong]), base=SHEET)
    with pytest.raises(SpecError, match="there are 1 in w8a8"):
        chipwise.teach("my-phone", table([files[0]] * 5, good), base=SHEET)
    gone = [*files[:4], files[0].parent / "gone.onnx"]
    with pytest.raises(SpecError, match=r"line 6: .*gone\.onnx: no such file"):
        chipwise.teach("my-phone", table(gone, good), base=SHEET)
    with pytest.raises(InputError, match=r"results are from Samsung Galaxy S24 .*, but the base is snapdragon-7s"):
        chipwise.teach("my-phone", table(files, good, more="device", cell="Samsung Galaxy S24"), base=SHEET)
    with pytest.raises(SpecError, match="ran on the CPU, but l4 has none"):
        chipwise.teach("my-card", table(files, good, precision="fp32", more="backend", cell="cpu"), base="l4")
    with pytest.raises(SpecError, match="number format 'w8a8'"):
        chipwise.teach("my-card", table(files, good), base="l4")
    with pytest.raises(SpecError, match="number format of NPUs"):
        chipwise.teach("my-phone", table(files, good, precision="q4_k_m"), base=SHEET)
    untimed = files[0].parent / "untimed.csv"
    untimed.write_text("file,precision\nnet0.onnx,w8a8\n")
    with pytest.raises(SpecError, match="no column has a time"):
        chipwise.teach("my-phone", untimed, base=SHEET)
    mixed = files[0].parent / "mixed.csv"
    mixed.write_text("model,seconds\nnet0.onnx,0.1\ngpt2,0.1\n")
    with pytest.raises(SpecError, match="teach each kind from a separate table"):
        chipwise.teach("my-phone", mixed, base=SHEET)


def test_on_the_command_line(files: list[Path]) -> None:
    rows = table(files, [2e-3] * 5)
    told = CliRunner().invoke(app, ["teach", "my-phone", "--from", str(rows), "--base", SHEET])
    assert told.exit_code == 0, told.output
    assert "corrected for ONNX files only, by 5 results" in " ".join(told.output.split())
    assert datasheet.load("my-phone").taught is not None
    asked = ["estimate", str(files[0]), "--device", "my-phone", "--weights", "w8a8", "--shape", "x=1,32,32,32"]
    answer = CliRunner().invoke(app, asked)
    assert "5 results of my-phone@1" in " ".join(answer.output.split())
