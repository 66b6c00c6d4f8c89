"""On a full disk commands end with one line, lose nothing, and continue once there is room.

No root is needed: a process whose files may not grow past a size meets the refusal that a full disk gives it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from runs import chipwise

from chipwise.core.files import read_json
from chipwise.deploy.calibrate.partial import Partial
from chipwise.design.report.record import load

resource = pytest.importorskip("resource", reason="limits of files are POSIX's")
FULL_BYTES = 100_000  # less than a report, an exported graph or a checkpoint; more than a log


def with_a_full_disk() -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (FULL_BYTES, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))


def refused(*arguments: object) -> str:
    """Messages of commands on a full disk."""
    done = chipwise(*arguments, preexec_fn=with_a_full_disk)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "Traceback" not in done.stdout + done.stderr
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert "the disk is full; free some space and " in line
    return line


@pytest.fixture
def run(smoke_run: Path, tmp_path: Path) -> Path:
    shutil.copytree(smoke_run, tmp_path / "run")
    return tmp_path / "run"


def test_a_run_whose_report_finds_no_room_keeps_its_trials_and_goes_on(run: Path, smoke_file: Path) -> None:
    before, winner = load(run / "record.json"), (run / "winner" / "model.onnx").read_bytes()
    os.remove(run / "report.html")
    assert refused("search", smoke_file, "--out", run, "--resume").endswith("(finished work is kept)")
    assert "go on with --resume" in refused("report", run)
    assert not (run / "report.html").exists()
    done = chipwise("search", smoke_file, "--out", run, "--resume")
    assert done.returncode == 0, done.stderr
    after = load(run / "record.json")
    assert (after.winner, [trial.curve for trial in after.trials]) == (
        before.winner,
        [trial.curve for trial in before.trials],
    )
    assert (run / "winner" / "model.onnx").read_bytes() == winner
    assert (run / "report.html").stat().st_size > FULL_BYTES


CALIBRATING = """
import sys
from pathlib import Path
from chipwise.deploy.calibrate.partial import Partial
from chipwise.errors import DiskFull
kept = Partial(Path(sys.argv[1]), runtime="fake", threads=1)
try:
    for number in range(1_000):
        kept.put(str(number), "x" * 3_000)
except DiskFull as error:
    print(number, error)
"""


def test_what_a_calibration_measured_before_the_disk_was_full_is_not_measured_again(tmp_path: Path) -> None:
    path = tmp_path / "partial.jsonl"
    command = [sys.executable, "-c", CALIBRATING, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, preexec_fn=with_a_full_disk)
    number, said = done.stdout.split(maxsplit=1)
    assert said.strip() == f"{path}: the disk is full; free some space and try again", done.stderr
    kept = Partial(path, runtime="fake", threads=1)
    assert [kept.get(str(i)) is not None for i in range(int(number) + 1)] == [True] * int(number) + [False]
    kept.put(number, "with room")
    again = Partial(path, runtime="fake", threads=1)
    assert (again.get("0"), again.get(number)) == ("x" * 3_000, "with room")


def test_an_export_leaves_nothing_and_can_be_given_again(run: Path, tmp_path: Path) -> None:
    out = tmp_path / "exported"
    assert refused("export", run, "--to", "onnx", "--out", out).endswith("and try again")
    assert sorted(each.name for each in tmp_path.iterdir()) == ["run"]
    done = chipwise("export", run, "--to", "onnx", "--out", out)
    assert done.returncode == 0, done.stderr
    assert read_json(out / "manifest.json")
