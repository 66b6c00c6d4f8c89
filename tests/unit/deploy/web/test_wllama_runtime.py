"""GGUF files in wllama in a real, headless Chromium: the suite of runtimes, and native llama.cpp's probabilities."""

from __future__ import annotations

import numpy as np
import pytest

from chipwise import api
from chipwise.api.testing.backend_suite import ExportedSuite
from chipwise.deploy.calibrate.calibrate import measure_models
from chipwise.deploy.calibrate.kinds import CALIBRATED
from chipwise.deploy.export import gguf
from chipwise.deploy.export.exporters import export_for
from chipwise.deploy.export.onnx import random_weights
from chipwise.deploy.export.parity import PROMPT, STEPS, TEXT, normalised
from chipwise.deploy.measure.harness import measure
from chipwise.deploy.runtimes import RUNTIMES, llama_server, missing
from chipwise.deploy.runtimes.web import engines
from chipwise.deploy.runtimes.web.chromium import Chromium
from chipwise.deploy.runtimes.web.packages import FETCH, WLLAMA
from chipwise.errors import MeasurementError, UnknownName, Unreachable, Unsupported
from chipwise.model.arch.arch import uniform
from chipwise.model.arch.design import Design
from chipwise.model.ops.workload import Workload
from chipwise.training.data.tokenizer import train_tokenizer

pytest.importorskip("gguf", reason="exports the model: pip install 'chipwise[gguf]'")
LACKS = missing("wllama") or (None if WLLAMA.kept else f"not fetched from npm's package index; do so with: {FETCH}")
ARCH = uniform(vocab_size=40, d_model=32, depth=2, heads=2, kv_heads=1, ffn_width=64, max_tokens=16)


def in_browser(test):
    """Marks a test, or a class of tests, that needs Chromium and wllama."""
    for mark in (
        pytest.mark.browser,
        pytest.mark.slow,
        pytest.mark.skipif(LACKS is not None, reason=f"wllama: {LACKS}"),
    ):
        test = mark(test)
    return test


def opened(path, **how):
    return RUNTIMES.load("wllama")().open(path, **{"capacity": 16, "batch": 1, "threads": 1, "options": {}} | how)


@in_browser
class TestWllama(ExportedSuite):
    runtime = "wllama"
    design = Design(arch=ARCH)

    def expected(self, weights, tokens):
        return normalised(super().expected(weights, tokens)).astype(np.float32)


@in_browser
@pytest.mark.parametrize(("weights", "cache"), [("fp32", "f32"), ("fp16", "f32"), ("fp16", "f16")])
def test_logits_are_those_of_native_llama_cpp_after_a_prompt_and_every_step(tmp_path, weights, cache):
    pytest.importorskip("xllamacpp", reason="xllamacpp is not installed; it comes with: pip install 'chipwise[all]'")
    arch = uniform(vocab_size=300, d_model=64, depth=3, heads=2, kv_heads=1, ffn_width=160, max_tokens=64)
    train_tokenizer([TEXT], arch.vocab_size).save(str(tmp_path / "tokenizer.json"))
    design, held = Design(arch=arch, weights=weights), random_weights(arch, seed=0)
    path = gguf.export(design, held, tmp_path / "model.gguf", tokenizer=tmp_path / "tokenizer.json")
    told = llama_server.ask(
        path, vocab_size=300, text=TEXT, most_tokens=PROMPT + STEPS, positions=STEPS + 1, new=1, cache=cache
    )
    tokens, wanted = np.array([told["tokens"]]), np.array(told["log_probabilities"], np.float32)
    session = opened(path, capacity=64, options={"cache": cache})
    prompt = tokens.shape[1] - STEPS
    found = [session.prefill(tokens[:, :prompt])[0].copy()]
    found += [session.decode(tokens[:, place : place + 1])[0].copy() for place in range(prompt, tokens.shape[1])]
    assert len(found) == STEPS + 1
    assert np.abs(np.stack(found) - wanted).max() < 1e-3 * np.abs(wanted).max()


@in_browser
def test_times_are_the_pages_and_one_for_each_step(tmp_path):
    session = opened(export_for("wllama", Design(arch=ARCH), tmp_path))
    found = session.timed(np.zeros((1, 4), np.int64), 6)
    assert (len(found.prefill_s), len(found.step_s), found.output.shape) == (1, 6, (1, 40))
    assert found.step_cpu_s == []  # the model runs in another thread than the page
    token = session.prefill(np.zeros((1, 4), np.int64)).argmax(axis=-1)[:, None]
    for _ in range(6):
        logits = session.decode(token)
        token = logits.argmax(axis=-1)[:, None]
    np.testing.assert_allclose(found.output, logits, atol=1e-5)
    assert session.cpu_s() > 0


@in_browser
def test_a_second_thread_gives_the_same_logits(tmp_path):
    path = export_for("wllama", Design(arch=ARCH), tmp_path)
    tokens = np.arange(8)[None]
    one, two = (opened(path, threads=threads).prefill(tokens) for threads in (1, 2))
    np.testing.assert_allclose(two, one, atol=1e-5)


@in_browser
def test_what_llama_cpp_cannot_load_is_its_error_and_the_page_goes_on(tmp_path):
    path = export_for("wllama", Design(arch=ARCH), tmp_path)
    content = path.read_bytes()
    path.write_bytes(content.replace(b"blk.1.ffn_down", b"blk.1.ffn_dawn"))
    with pytest.raises(MeasurementError, match=r"model\.gguf.*llama\.cpp cannot load this model.*ffn_down"):
        opened(path)
    path.write_bytes(content)
    assert opened(path).vocab_size == 40


@in_browser
def test_a_calibration_measures_models_in_turns_in_one_page():
    timed = CALIBRATED[""]
    samples = measure_models(
        timed.draw(3, seed=0), timed, runtime="wllama", threads=1, vary=True, again=False, on_progress=lambda *_: None
    )
    assert [sample.measured.runtime_version for sample in samples] == [WLLAMA.version] * 3


@in_browser
def test_a_gguf_file_is_measured_and_in_pages_of_other_machines_too(tmp_path, monkeypatch):
    monkeypatch.setenv("CHIPWISE_HOME", str(tmp_path / "home"))
    path = export_for("wllama", Design(arch=ARCH), tmp_path)
    workload = Workload(prompt_tokens=4, new_tokens=8)
    found = measure(path, workload, runtime="wllama", repeats=14, prefills=2, seconds=0.05, attempts=1)
    assert "Chrome" in found.environment["browser"]
    browsers = []
    (other,) = api.measure_pages(
        path, listen="127.0.0.1:0", prompt=4, new=9, count=1,
        on_open=lambda address, code: browsers.append(Chromium(f"{address}#a%20phone")),
    )  # fmt: skip
    browsers[0].close()
    assert (other.runtime, other.design) == ("wllama", Design(arch=ARCH).digest)
    assert other.device.startswith("a phone, ")


def test_what_it_cannot_run_is_refused_before_a_page_loads_it(tmp_path):
    path = export_for("wllama", Design(arch=ARCH), tmp_path)
    facts = engines.gguf_facts(path)
    assert (facts["vocab_size"], facts["max_tokens"], facts["design"]) == (40, 16, Design(arch=ARCH).digest)
    with pytest.raises(Unsupported, match="one sequence, not 2"):
        engines.LLAMA_WEB.load(facts, 8, 2, {})
    with pytest.raises(UnknownName, match="f8"):
        engines.LLAMA_WEB.load(facts, 8, 1, {"cache": "f8"})
    (tmp_path / "m.gguf").write_bytes(b"GGUF")
    with pytest.raises(MeasurementError, match=r"m\.gguf: not a GGUF file"):
        engines.gguf_facts(tmp_path / "m.gguf")


def test_without_a_browser_or_its_package_one_line_says_what_to_do(tmp_path, monkeypatch):
    monkeypatch.setenv("CHIPWISE_BROWSER", "no-such-browser")
    assert "CHIPWISE_BROWSER" in missing("wllama")
    monkeypatch.setenv("CHIPWISE_CACHE", str(tmp_path))
    monkeypatch.setattr("chipwise.deploy.runtimes.web.packages.REGISTRY", (tmp_path / "none").as_uri())
    with pytest.raises(Unreachable, match=rf"@wllama/wllama {WLLAMA.version} is not in .*{FETCH}") as told:
        engines.LLAMA_WEB.scripts()
    assert "\n" not in str(told.value)
