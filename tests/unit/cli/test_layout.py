"""What commands print at 80 and 160 columns: nothing cut off, no number broken over lines, no line too long."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest
from example_record import example_record
from typer.testing import CliRunner

from chipwise.cli import show
from chipwise.cli.app import app
from chipwise.core.layout import Column, Table, paragraph
from chipwise.deploy.measure.store import MeasurementStore
from chipwise.design.limits import parse_constraints
from chipwise.model.arch import io
from chipwise.model.arch.arch import uniform

runner = CliRunner()
LLAMA, A100 = "meta-llama/Llama-2-7b-hf", "a100-sxm-80gb"
OUTPUTS = [
    ("explain", "gpt2", "--device", "l4"),
    ("explain", LLAMA, "--device", A100, "--prompt", "32768", "--batch", "4"),
    ("explain", "google/gemma-3-1b-pt", "--device", "apple-m3-max", "--runtime", "llama.cpp", "--weights", "fp16"),
    ("explain", "bert-base-uncased", "--device", "t4", "--weights", "fp16"),
    ("explain", "gpt2", "--device", A100, "--train", "--batch", "12"),
    ("explain", "meta-llama/Llama-3.1-8B", "--device", "h100-sxm", "--tp", "2", "--all"),
    ("estimate", "gpt2", "--device", "l4"),
    ("estimate", "meta-llama/Llama-3.1-8B", "--device", "h100-sxm", "--weights", "fp8", "--batch", "16"),
    ("estimate", LLAMA, "--device", A100, "--batch", "4", "--prompt", "30000"),
    ("training-step", "Qwen/Qwen3-0.6B", "--device", A100, "--batch", "8"),
    ("estimate", "bert-base-uncased", "--device", "l4"),
    ("estimate", "gpt2", "--device", "all"),
    ("compare", "gpt2", "Qwen/Qwen3-0.6B", LLAMA, "--device", "l4,h100-sxm"),
    ("compare", "bert-base-uncased", "gpt2", "--device", "t4", "--weights", "fp16"),
    ("devices",),
    ("devices", "show", "h100-sxm"),
    ("devices", "show", "raspberry-pi-5"),
    ("space", "examples/smoke.yaml", "--device", "raspberry-pi-5", "--draws", "200"),
    ("space", "examples/smoke.yaml", "--device", "l4", "--draws", "200", "--samples", "2"),
    ("strategies",),
    ("models",),
    ("runtimes",),
]
BROKEN = re.compile(r"\d\n\s*(?:%|[nµm]?s|min|[kMG]?B|[kMG]?tokens/s|[mk]?[JW])(?![A-Za-z])")


def printed(arguments: tuple[str, ...], width: int, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("COLUMNS", str(width))
    outcome = runner.invoke(app, list(arguments), catch_exceptions=False)
    assert outcome.exit_code == 0, outcome.output
    return outcome.stdout


def check_fits(text: str, width: int) -> None:
    """Nothing of ``text`` is wider than ``width``, cut off, or broken inside a number."""
    assert max(map(len, text.splitlines())) <= width
    assert "…" not in text.replace("2 and 3, …", "")
    assert not BROKEN.search(text)
    assert not re.search(r"[│┃╭╰━╞]─|\x1b", text.replace("│   ", "")), "no boxes and no colours"
    assert not re.search(r"\d%", text), "percent has a space"
    assert not re.search(r"\d(?:\.\d+)?e[+-]\d\d", text), "no exponents"


@pytest.mark.parametrize("arguments", OUTPUTS, ids=" ".join)
def test_every_output_fits_its_width(arguments: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(Path(__file__).parents[3])
    at = {width: printed(arguments, width, monkeypatch) for width in (80, 160)}
    for width, text in at.items():
        check_fits(text, width)
    assert len(at[160].splitlines()) <= len(at[80].splitlines())


@pytest.mark.usefixtures("measured_once")
@pytest.mark.parametrize("width", [80, 160])
def test_measurements_fit(width: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CHIPWISE_HOME", "home")  # relative, where a worker must find it too
    name = "an-organisation/a-model-with-a-long-name"
    design = uniform(vocab_size=64, d_model=32, depth=1, heads=1, ffn_width=64, max_tokens=64, name=name)
    io.save(design, "spec.json")
    asked = ("measure", "spec.json", "--runtime", "fake", "--prompt", "4", "--new", "5")
    check_fits(printed(asked, width, monkeypatch), width)
    listed = printed(("measurements",), width, monkeypatch)
    check_fits("\n".join(line for line in listed.splitlines() if str(tmp_path) not in line), width)
    entry = MeasurementStore().entries()[0].id[:8]
    assert name in listed.replace("\n", "") or width == 80
    check_fits(printed(("measurements", "show", entry), width, monkeypatch), width)


@pytest.mark.parametrize("width", [80, 160, None])
@pytest.mark.parametrize("case", ["winner", "no winner yet", "soft limits"])
def test_the_end_of_a_search_fits(
    case: str, width: int | None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also into a pipe, where nobody says how wide it is: 120 at most, and 80 without soft limits."""
    monkeypatch.delenv("COLUMNS", raising=False)
    if width is not None:
        monkeypatch.setenv("COLUMNS", str(width))
    record = example_record()
    if case == "no winner yet":
        record = dataclasses.replace(record, winner=None, baseline=None, knee=None, status="partial")
    if case == "soft limits":
        limits = parse_constraints({"tpot_p99": {"limit": "<= 0.1 ms", "penalty": "10 %"}, "peak_memory": "<= 58 MB"})
        record = dataclasses.replace(record, constraints=limits)
    least = 120 if case == "soft limits" else 80
    show.result(record, Path("runs/a-run-with-a-rather-long-name"))
    text = capsys.readouterr().out
    paths = [line for line in text.splitlines() if line.startswith(("report:", "card:", "winner:", "  chipwise"))]
    check_fits("\n".join(line for line in text.splitlines() if line not in paths), width or least)


def test_columns_that_do_not_fit_are_left_out_by_importance_and_named() -> None:
    columns = [Column(head="name"), Column(head="time", right=True), Column(head="less", right=True, drop=1)]
    table = Table(columns=[*columns, Column(head="least", right=True, drop=2)])
    table.add("a" * 10, "1.5 ms", "2 %", "3 %")
    assert next(line for line, _ in table.lines(40)).split() == ["name", "time", "less", "least"]
    lines = [line for line, _ in table.lines(26)]
    assert lines[0].split() == ["name", "time", "less"]
    assert "least" in " ".join(lines[2:])


def test_empty_columns_disappear_and_long_names_break_at_separators() -> None:
    table = Table(columns=[Column(head="model"), Column(head="empty"), Column(head="time", right=True)])
    table.add("organisation/a-model-with-a-long-name", "", "1.5 ms")
    lines = [line for line, _ in table.lines(40)]
    assert lines[0].split() == ["model", "time"]
    assert (
        "".join(line.split("  ")[0] for line in table_lines(table, 30)[1:]) == "organisation/a-model-with-a-long-name"
    )


def table_lines(table: Table, width: int) -> list[str]:
    return [line for line, _ in table.lines(width)]


def test_a_paragraph_keeps_quantities_whole() -> None:
    text = "TPOT 5.86 ms (4.8 to 7.2) at 12 % of the limit and 105 MB"
    for width in range(12, 60):
        lines = paragraph(text, width)
        assert " ".join(lines) == text
        assert not BROKEN.search("\n".join(lines))
