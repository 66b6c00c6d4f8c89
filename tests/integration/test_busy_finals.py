"""A search whose last measurements run on a really busy machine. The unit tests use fakes instead."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from brief import measure_briefly
from runs import SMOKE, in_process

from chipwise import api
from chipwise.core.files import parse_yaml
from chipwise.design.report.unmet import unmet

BUSY = 4  # processes for each core, that leave a measured one a fifth of the time
PROMPT = 100  # tokens, whose pass takes some tenths of a millisecond: one in ten is interrupted
LIMIT = "<= 2 ms"  # an interruption takes 3 ms or more


@pytest.mark.skipif(not os.environ.get("CHIPWISE_SLOW"), reason="a search on a busy machine: set CHIPWISE_SLOW=1")
def test_a_winner_that_met_a_busy_machine_is_unconfirmed_and_measured_again(tmp_path: Path, monkeypatch) -> None:
    measure_briefly(monkeypatch.setattr)
    wanted = parse_yaml(SMOKE, name="smoke.yaml")
    wanted["constraints"] |= {"ttft_p99": LIMIT}
    wanted["workload"]["prompt_tokens"] = PROMPT
    others: list[subprocess.Popen[bytes]] = []

    def disturb(status) -> None:
        if status.phase == "measuring the finalists" and not others:
            command = [sys.executable, "-c", "while True: pass"]
            others.extend(subprocess.Popen(command) for _ in range(BUSY * (os.cpu_count() or 1)))

    try:
        found = api.search(wanted, out=tmp_path / "r", on_progress=disturb)
        said = in_process("report", tmp_path / "r")
    finally:
        for each in others:
            each.kill()
            each.wait()
    assert others
    assert {(item.constraint.metric, item.state) for item in unmet(found)} == {("ttft_p99", "unconfirmed")}
    assert found.winner is not None
    assert said.returncode == 4, said.stdout + said.stderr
    assert "not confirmed" in said.stdout + said.stderr
    assert "Traceback" not in said.stderr
    before = {trial.number: trial.curve for trial in found.trials}
    again = api.search(wanted, out=tmp_path / "r", resume=True, on_progress=lambda status: None)
    assert {trial.number: trial.curve for trial in again.trials} == before  # nothing is trained again
    assert in_process("report", tmp_path / "r").returncode == (4 if unmet(again) else 0)
