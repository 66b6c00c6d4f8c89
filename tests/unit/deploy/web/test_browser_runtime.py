"""ONNX Runtime Web in a real, headless Chromium: the suite of runtimes, and native ONNX Runtime's outputs."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from chipwise.api.testing.backend_suite import ExportedSuite
from chipwise.deploy.calibrate.random_models import random_classifiers, random_rankers
from chipwise.deploy.export.exporters import export_for
from chipwise.deploy.measure.harness import measure, staying
from chipwise.deploy.measure.worker import requested
from chipwise.deploy.runtimes import RUNTIMES, missing
from chipwise.deploy.runtimes.web.packages import FETCH, ORT
from chipwise.errors import MeasurementError
from chipwise.model.arch.arch import uniform
from chipwise.model.arch.design import Design
from chipwise.model.ops.workload import Workload

LACKS = missing("browser") or (None if ORT.kept else f"not fetched from npm's package index; do so with: {FETCH}")
pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.skipif(LACKS is not None, reason=f"browser: {LACKS}")]
ARCH = uniform(vocab_size=40, d_model=32, depth=2, heads=2, kv_heads=1, ffn_width=64, max_tokens=16)


class TestBrowser(ExportedSuite):
    runtime = "browser"
    design = Design(arch=ARCH)


def opened(runtime, path, **how):
    return RUNTIMES.load(runtime)().open(path, **{"capacity": 16, "batch": 1, "threads": 1, "options": {}} | how)


@pytest.mark.parametrize(
    "design", [*random_classifiers(2, seed=1), *random_rankers(2, seed=1)], ids=lambda d: d.arch.name
)
def test_models_of_one_pass_answer_as_in_native_onnx_runtime(tmp_path, design):
    path = export_for("browser", Design(arch=design.arch), tmp_path)
    web, native = (opened(runtime, path) for runtime in ("browser", "onnxruntime"))
    given = requested(native, np.random.default_rng(0), batch=1, prompt=1)
    wanted = native.prefill(given)
    np.testing.assert_allclose(web.prefill(given), wanted, atol=1e-4 * np.abs(wanted).max())
    assert web.timed(given, 0).step_s == []


def test_times_are_the_pages_and_one_for_each_step(tmp_path):
    session = opened("browser", export_for("browser", Design(arch=ARCH), tmp_path))
    found = session.timed(np.zeros((1, 4), np.int64), 6)
    assert (len(found.prefill_s), len(found.step_s), found.output.shape) == (1, 6, (1, 40))
    if sys.platform == "linux":
        assert found.step_cpu_s[0] >= 0
    token = session.prefill(np.zeros((1, 4), np.int64)).argmax(axis=-1)[:, None]
    for _ in range(6):
        logits = session.decode(token)
        token = logits.argmax(axis=-1)[:, None]
    np.testing.assert_allclose(found.output, logits, atol=1e-5)
    assert session.peak_memory_bytes() > 10_000_000  # WebAssembly's memory begins with 16 MiB
    assert session.cpu_s() > 0


def test_a_second_thread_gives_the_same_logits(tmp_path):
    path = export_for("browser", Design(arch=ARCH), tmp_path)
    tokens = np.arange(8)[None]
    one, two = (opened("browser", path, threads=threads).prefill(tokens) for threads in (1, 2))
    np.testing.assert_allclose(two, one, atol=1e-5)


def test_a_measurement_names_its_browser(tmp_path):
    path = export_for("browser", Design(arch=ARCH), tmp_path)
    workload = Workload(prompt_tokens=4, new_tokens=8)
    found = measure(path, workload, runtime="browser", repeats=14, prefills=2, seconds=0.05, attempts=1)
    assert "Chrome" in found.environment["browser"]
    assert found.environment["clock_step_s"] < 1e-4  # the page is isolated
    assert found.environment["reference_s"]["reference_decode_s"] > 0


def test_a_file_of_another_exporter_is_refused(tmp_path):
    import onnx

    graph = onnx.helper.make_graph([], "empty", [], [])
    onnx.save(onnx.helper.make_model(graph), tmp_path / "other.onnx")
    with pytest.raises(MeasurementError, match=r"other\.onnx.*no chipwise metadata"):
        opened("browser", tmp_path / "other.onnx")


def test_one_page_measures_several_models(tmp_path):
    workload = Workload(prompt_tokens=4, new_tokens=8)
    how = {"runtime": "browser", "repeats": 7, "prefills": 1, "seconds": 0.05, "attempts": 1}
    with staying("browser", 1) as ask:
        for number, weights in enumerate(("fp32", "int8", "int4")):
            path = export_for("browser", Design(arch=ARCH, weights=weights), tmp_path)
            found = measure(path, workload, ask=ask, **how)
            assert found.design == Design(arch=ARCH, weights=weights).digest
            assert (found.peak_memory_bytes is None) == (number > 0)
