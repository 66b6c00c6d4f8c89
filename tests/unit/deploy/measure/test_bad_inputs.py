"""User mistakes: each gives one clear error with the name of the argument, before anything expensive runs."""

from __future__ import annotations

import json
import math
import os
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from chipwise import api
from chipwise.cli.app import app
from chipwise.core.files import check_output
from chipwise.deploy.calibrate.calibrate import calibrate
from chipwise.deploy.calibrate.learning import fit_from_measurements, predict_seconds
from chipwise.deploy.calibrate.random_models import random_designs
from chipwise.deploy.export import exporters as exporting
from chipwise.deploy.export.exporters import EXPORTERS, check_memory, export_for
from chipwise.deploy.measure import store
from chipwise.deploy.measure.harness import measure
from chipwise.deploy.measure.measurement import Measurement
from chipwise.deploy.measure.store import MeasurementStore, profile_path, save_thermal, saved_profile
from chipwise.deploy.runtimes import RUNTIMES
from chipwise.errors import DoesNotFit, InputError, SpecError, StorageError, Unsupported
from chipwise.hardware.device import MachineProfile
from chipwise.model.arch.arch import uniform
from chipwise.model.arch.design import Design
from chipwise.model.ops.workload import Phase, Workload
from support.machines import core_like

WORKLOAD = Workload(prompt_tokens=16, new_tokens=16)


def row(**changes: object) -> dict[str, object]:
    """A line of an exported file."""
    measured = Measurement(
        design="",
        name="toy",
        runtime="fake",
        runtime_version="1",
        threads=1,
        workload=WORKLOAD,
        device="toy",
        ttft_s=(1e-3,),
        tpot_s=(1e-4,),
        cpu_s=0.1,
        peak_memory_bytes=10**7,
        clean=True,
    )
    return {"schema": store.SCHEMA, "source": "measure", "measurement": measured.to_data() | changes}


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"ttft_s": [math.nan]}, "ttft_s"),
        ({"tpot_s": [1e-4, -1e-4]}, "tpot_s"),
        ({"tpot_s": [0.0]}, "tpot_s"),
        ({"ttft_s": [math.inf]}, "ttft_s"),
        ({"threads": 10**30}, "threads"),
        ({"threads": 0}, "threads"),
        ({"cpu_s": -1.0}, "cpu_s"),
        ({"cpu_s": math.nan}, "cpu_s"),
        ({"peak_memory_bytes": -5}, "peak_memory_bytes"),
        ({"peak_memory_bytes": 10**30}, "peak_memory_bytes"),
        ({"energy_j": math.nan}, "energy_j"),
        ({"drift": {"prefill": math.nan, "decode": 1.0, "log_halfwidth": 0.1}}, "prefill_slowdown"),
    ],
)
def test_an_imported_row_with_an_impossible_value(changes, field: str, tmp_path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps(row()) + "\n" + json.dumps(row(**changes)) + "\n")
    kept = MeasurementStore(tmp_path / "s")
    with pytest.raises(SpecError, match=rf"rows\.jsonl, line 2: .*{field}"):
        kept.import_(path)
    assert kept.entries() == []


@pytest.mark.parametrize("text", ["[" * 100_000, '{"a":' * 5000, "{" * 50_000])
def test_a_deeply_nested_row(text: str, tmp_path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(text)
    with pytest.raises(SpecError, match=r"rows\.jsonl"):
        MeasurementStore(tmp_path / "s").import_(path)


def test_drift_of_older_versions_is_read(tmp_path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps(row(drift={"prefill": 1.2, "decode": 1.1, "log_halfwidth": 0.1})))
    kept = MeasurementStore(tmp_path / "s")
    assert kept.import_(path) == 1
    since = kept.entries()[0].measurement.drift
    assert since is not None
    assert (since.prefill_slowdown, since.decode_slowdown) == (1.2, 1.1)


def test_imported_rows_do_not_change_the_profile_of_the_machine_that_they_name(tmp_path) -> None:
    """Anybody can write this machine's name into a file."""
    theirs, mine = MeasurementStore(tmp_path / "theirs"), MeasurementStore(tmp_path / "mine")
    for design in random_designs(4, seed=0):
        ttft, tpot = (9 * predict_seconds(core_like(), design, phase, WORKLOAD) for phase in Phase)
        data = row(device="known", ttft_s=[ttft] * 3, tpot_s=[tpot] * 3)["measurement"]
        theirs.add(Measurement.from_data(data), design=design, source="measure")
    assert len(fit_from_measurements(core_like(), theirs).used) == 4
    theirs.export(tmp_path / "rows.jsonl")
    assert mine.import_(tmp_path / "rows.jsonl") == 4
    said = "mine holds 0 measurements of known in fake with 1 thread that were taken here .*; learning needs at least 3"
    with pytest.raises(InputError, match=said):
        fit_from_measurements(core_like(), mine)


@pytest.mark.parametrize("runtime", ["../../x", "/etc/passwd", "", ".", "..", "a/b", "a\\b"])
def test_a_profile_stays_in_its_folder(runtime: str) -> None:
    with pytest.raises(InputError, match="not the name of a runtime"):
        profile_path(runtime, 1)


@pytest.mark.parametrize("threads", [0, -1, 1.5, "2"])
def test_a_profile_of_no_threads(threads) -> None:
    with pytest.raises(InputError, match="threads"):
        profile_path("onnxruntime", threads)


def test_machines_that_share_a_data_folder_have_profiles_of_their_own(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("CHIPWISE_HOME", str(tmp_path))
    core_like().save(profile_path("fake", 1))
    assert saved_profile("fake", 1) == core_like()
    here = store.detect()
    monkeypatch.setattr(store, "detect", lambda: replace(here, name="another board, 4 cores"))
    assert saved_profile("fake", 1) is None
    core_like().save(tmp_path / "profiles" / "fake-1.json")  # of an older version, and of the machine named known
    assert saved_profile("fake", 1) is None
    monkeypatch.setattr(store, "detect", lambda: replace(here, name="known"))
    assert saved_profile("fake", 1) == core_like()


def test_a_data_folder_that_cannot_be_read(tmp_path, monkeypatch) -> None:
    stat = Path.stat

    def denied(self: Path, **settings: bool) -> os.stat_result:
        if tmp_path in self.parents:
            raise PermissionError(13, "Permission denied")
        return stat(self, **settings)

    monkeypatch.setenv("CHIPWISE_HOME", str(tmp_path))
    monkeypatch.setattr(Path, "stat", denied)
    for reading in (MeasurementStore().entries, lambda: saved_profile("fake", 1)):
        with pytest.raises(StorageError, match=rf"{tmp_path.name}.*Permission denied.*CHIPWISE_HOME"):
            reading()


@pytest.mark.parametrize("value", [math.nan, -1e-9, math.inf])
def test_a_damaged_profile_names_its_field_and_the_remedy(value: float, tmp_path) -> None:
    path = tmp_path / "profile.json"
    core_like().save(path)
    data = json.loads(path.read_text())
    data["terms"]["matmul.fp32.vector"]["node"] = value
    path.write_text(json.dumps(data))
    with pytest.raises(SpecError, match=r"profile\.json: terms\.matmul\.fp32\.vector\.node: .*chipwise calibrate"):
        MachineProfile.load(path)


def test_a_profile_with_the_field_names_of_older_versions(tmp_path) -> None:
    path = tmp_path / "profile.json"
    replace(core_like(), reference_s={"compute_s": 1e-3}).save(path)
    text = path.read_text().replace('"reference_s"', '"anchors"').replace('"calibration_models"', '"lessons"')
    path.write_text(text)
    assert MachineProfile.load(path).reference_s == {"compute_s": 1e-3}


@pytest.mark.parametrize("seconds", [math.nan, math.inf, 0.0, -3.0])
def test_calibration_takes_a_finite_time(seconds: float) -> None:
    with pytest.raises(InputError, match="seconds: calibration takes a positive, finite time"):
        calibrate(seconds=seconds)


@pytest.mark.parametrize("threads", [1_000_000, 0, -1])
def test_more_threads_than_cores(threads: int, tmp_path) -> None:
    message = f"this machine has {os.cpu_count()} core.*not {threads}"
    with pytest.raises(InputError, match=message):
        calibrate(threads=threads)
    with pytest.raises(InputError, match=message):
        measure(tmp_path / "model.json", WORKLOAD, runtime="fake", threads=threads)


@pytest.mark.parametrize("minutes", ["nan", "0.1", "61", "inf"])
def test_minutes_of_calibration(minutes: str) -> None:
    done = CliRunner().invoke(app, ["calibrate", "--minutes", minutes])
    assert isinstance(done.exception, InputError)
    assert str(done.exception).startswith("--minutes: must be from 0.25 to 60, not")


@pytest.mark.parametrize("argument", ["threads", "batch", "prompt", "new"])
def test_arguments_of_measure(argument: str) -> None:
    with pytest.raises(InputError, match=f"{argument}: must be .*at least 1, not 0"):
        api.measure("gpt2", **{argument: 0})


@pytest.mark.parametrize("sustained_s", [math.nan, -1.0, math.inf])
def test_sustained_load_takes_a_finite_time(sustained_s: float) -> None:
    with pytest.raises(InputError, match="sustained_s"):
        api.measure("gpt2", sustained_s=sustained_s)


def test_a_model_that_cannot_fit_is_refused_before_any_weight_is_made(monkeypatch) -> None:
    monkeypatch.setattr(exporting, "export_for", lambda *_, **__: pytest.fail("weights were made"))
    with pytest.raises(DoesNotFit, match=r"Llama-3\.1-405B: .* at least 4\.\d+ TB of memory, and .* are free"):
        api.measure("meta-llama/Llama-3.1-405B")


def test_memory_that_measuring_needs_by_pencil(monkeypatch) -> None:
    """10 matrices of 1,000 × 1,000: FP32 weights once while they are built, twice as stored; caches on top."""

    class Free:
        available = 0

    design = Design(arch=uniform(vocab_size=1000, d_model=1000, depth=1, heads=1, ffn_width=1000, max_tokens=8))
    monkeypatch.setattr(exporting.psutil, "virtual_memory", lambda: Free)
    needed = 3 * 4 * design.arch.parameters()
    for free, fits in ((0.9 * needed, False), (1.1 * needed, True)):
        Free.available = int(free)
        if fits:
            check_memory(design)
        else:
            with pytest.raises(DoesNotFit):
                check_memory(design)


def test_the_test_double_can_be_loaded_and_is_not_listed() -> None:
    assert "fake" in RUNTIMES
    assert "fake" in EXPORTERS
    assert "fake" not in [*RUNTIMES.names(), *EXPORTERS.names()]
    assert RUNTIMES.load("fake")().name == "fake"


def test_thermal_of_a_machine_without_a_profile(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("CHIPWISE_HOME", str(tmp_path))
    assert not save_thermal(None, runtime="fake", threads=1)  # type: ignore[arg-type]


class Started(Exception):
    """Raised instead of a calibration."""


def refuse_to_calibrate(**_: object) -> None:
    raise Started


def test_calibrating_checks_its_file_before_it_starts_and_replaces_a_damaged_profile(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("chipwise.deploy.calibrate.calibrate.calibrate", refuse_to_calibrate)
    monkeypatch.setenv("CHIPWISE_HOME", str(tmp_path / "file"))
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(StorageError, match="file"):
        api.calibrate(runtime="fake")
    monkeypatch.setenv("CHIPWISE_HOME", str(tmp_path / "home"))
    path = profile_path("fake", 1)
    path.parent.mkdir(parents=True)
    path.write_text("{")
    with pytest.raises(SpecError, match="not valid JSON"):
        saved_profile("fake", 1)
    with pytest.raises(Started):
        api.calibrate(runtime="fake")


def test_a_folder_that_may_not_be_written_is_refused_before_any_work(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("chipwise.deploy.calibrate.calibrate.calibrate", refuse_to_calibrate)
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != tmp_path)
    with pytest.raises(StorageError, match=r"p\.json: cannot be written \(Permission denied\)"):
        api.calibrate(runtime="fake", out=tmp_path / "p.json")
    with pytest.raises(StorageError, match=r"page\.html: cannot be written \(Permission denied\)"):
        check_output(tmp_path / "page.html")


def test_import_reads_as_every_other_file(tmp_path) -> None:
    kept = MeasurementStore(tmp_path / "s")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "rows.jsonl").write_text("[" * 100_000)
    (tmp_path / "empty").write_text("\n")
    for name, said in (
        ("empty", "no measurements"),
        ("pipe", "pipe or device"),
        ("none", "no such file"),
        ("rows.jsonl", "line 1: .*too deep"),
    ):
        with pytest.raises(SpecError, match=said) as caught:
            kept.import_(tmp_path / name)
        assert "recursion" not in str(caught.value)


def test_a_model_of_thousands_of_thin_layers_is_refused_before_it_is_built(tmp_path) -> None:
    """Its weights fit in memory (0.1 GB), but no runtime loads so many nodes within a minute."""
    arch = uniform(name="thin", vocab_size=64, d_model=16, depth=10_000, heads=2, ffn_width=32, max_tokens=32)
    assert 4 * arch.parameters() < 2e8
    with pytest.raises(Unsupported, match=r"thin has 10,000 layers; chipwise builds models of at most 512 layers"):
        export_for("onnxruntime", Design(arch=arch), tmp_path)
