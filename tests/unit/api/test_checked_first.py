"""Missing inputs are reported before any work, and names in files and folders are used."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

import chipwise
from chipwise import api
from chipwise.cli.app import app
from chipwise.core.digest import plain
from chipwise.core.files import write_json
from chipwise.errors import InputError, MissingExtra, UnknownName, Unsupported

EXAMPLES = Path(__file__).parents[3] / "examples"


def test_a_page_without_plotly_is_refused_before_anything_is_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "plotly", None)
    done = CliRunner().invoke(app, ["explain", "gpt2", "--device", "l4", "--html", str(tmp_path / "x.html")])
    assert isinstance(done.exception, MissingExtra)
    assert not done.stdout


def test_a_baseline_without_scikit_learn_is_refused_before_the_model_is_read(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "sklearn", None)
    for name in ("config.json", "model.safetensors", "tokenizer.json"):
        (tmp_path / name).write_text("not read")
    with pytest.raises(MissingExtra, match="scikit-learn"):
        api.evaluate(tmp_path, "chapters")


def test_a_run_is_loaded_from_its_folder(tmp_path: Path) -> None:
    spec = chipwise.load_run(EXAMPLES / "smoke.yaml")
    write_json(tmp_path / "spec.json", {"identity": spec.identity, "spec": plain(spec)})
    assert chipwise.load_run(tmp_path).identity == spec.identity
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="this folder holds no run"):
        chipwise.load_run(tmp_path / "empty")


def test_a_space_is_priced_by_the_device_that_its_file_names() -> None:
    from chipwise.design.phases.overview import overview_of

    found = overview_of(EXAMPLES / "phone.yaml", draws=50, samples=0)
    assert found.priced_by is not None
    assert "predicted" in found.priced_by


def test_the_next_command_is_the_one_that_reads_the_file(tmp_path: Path) -> None:
    for kind, command in (("agent", "agent"), ("smoke", "search")):
        target = tmp_path / f"{kind}.yaml"
        done = CliRunner().invoke(app, ["init", kind, "--out", str(target)])
        assert f"next: chipwise {command} {target}" in done.output.replace("\n", "")
    with pytest.raises(UnknownName, match="chipwise init --list"):
        CliRunner().invoke(app, ["init", "esp32"], catch_exceptions=False)


def test_a_cluster_that_does_not_answer_is_named_at_once() -> None:
    from chipwise.training.trainers.ray_cluster import _require_answer

    for address in ("ray://127.0.0.1:1", "ray://nohost.invalid:1"):
        with pytest.raises(Unsupported, match=rf"train.on: no Ray cluster answers at {address}"):
            _require_answer(address)


def test_a_frame_has_runtime_intervals_and_memory() -> None:
    pytest.importorskip("pandas", reason="frames: pip install pandas")
    frame = chipwise.estimate("gpt2", devices=["l4", "h100-sxm"]).to_pandas()
    assert {"device", "runtime", "tpot_p50", "tpot_p50_low", "tpot_p50_high", "memory_weights_bytes"} <= set(frame)
    assert (frame["tpot_p50_low"] < frame["tpot_p50"]).all()
