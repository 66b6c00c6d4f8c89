"""With both cores loaded, no measurement that is 20 % off is called clean."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from chipwise.deploy.calibrate.random_models import random_designs
from chipwise.deploy.export.exporters import export_for
from chipwise.deploy.measure.harness import measure
from chipwise.model.ops.workload import Workload

WORKLOAD = Workload(prompt_tokens=32, new_tokens=32)
BUSY = {
    "arithmetic": "while True: sum(range(100_000))",
    "memory": "import numpy as np\na = np.ones(20_000_000)\nwhile True: a += 1.0",
    "in turns": "import time\nwhile True:\n end = time.time() + 0.2\n while time.time() < end: pass\n time.sleep(0.2)",
}
OFF = 0.2
METRICS = ("ttft_p50", "tpot_p50")


@contextlib.contextmanager
def load(kind: str):
    """As many busy processes as there are cores."""
    children = [subprocess.Popen([sys.executable, "-c", BUSY[kind]]) for _ in range(os.cpu_count() or 1)]
    try:
        yield
    finally:
        for child in children:
            child.kill()
            child.wait()


def test_no_measurement_under_load_is_called_clean_and_a_fifth_off(tmp_path) -> None:
    """Idle time is the least processor time of three measurements."""
    designs = random_designs(3, seed=7)
    paths = [export_for("onnxruntime", design, tmp_path, stem=str(i)) for i, design in enumerate(designs)]
    settings = {"seconds": 0.4, "attempts": 1}
    verdicts = []
    for path in paths:
        idle = [measure(path, WORKLOAD, **settings) for _ in range(3)]
        least = {metric: min(item.settled(metric) for item in idle) for metric in METRICS}
        anchors = min((item.environment["reference_s"] for item in idle), key=lambda held: held["reference_decode_s"])
        for kind in BUSY:
            with load(kind):
                found = measure(path, WORKLOAD, calibrated=anchors, **settings)
            worst = max(abs(found.metric(metric) / least[metric] - 1) for metric in METRICS)
            verdicts.append((kind, worst, found.clean))
    assert not [case for case in verdicts if case[1] > OFF and case[2]], verdicts
    assert not all(clean for *_, clean in verdicts), "load on every core must show somewhere"


def test_the_reasons_name_the_load(tmp_path) -> None:
    if not Path("/proc/stat").exists():
        pytest.skip("needs /proc/stat to see other processes")
    path = export_for("onnxruntime", random_designs(1, seed=7)[0], tmp_path)
    with load("arithmetic"):
        found = measure(path, WORKLOAD, seconds=0.4, attempts=1)
    assert not found.clean
    assert any("other" in reason for reason in found.reasons)
