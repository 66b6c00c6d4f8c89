"""The built-in runtimes keep the contract that outsiders' runtimes are held to."""

from __future__ import annotations

import json

import pytest

from chipwise.core.errors import MeasurementError
from chipwise.deploy.onnx import export, random_weights
from chipwise.profile.backends.onnxruntime import OnnxRuntimeSession
from chipwise.spec import Design, uniform
from chipwise.testing.backend_suite import BackendSuite

ARCH = uniform(vocab_size=40, d_model=32, depth=2, heads=2, kv_heads=1, ffn_width=48, max_tokens=16)


class TestFake(BackendSuite):
    runtime = "fake"

    @pytest.fixture
    def model(self, tmp_path):
        path = tmp_path / "model.json"
        path.write_text(json.dumps({"vocab_size": 16, "prefill_s": 1e-4, "decode_s": 1e-5}))
        return path


class TestOnnxRuntime(BackendSuite):
    runtime = "onnxruntime"

    @pytest.fixture
    def model(self, tmp_path):
        return export(Design(arch=ARCH), random_weights(ARCH, seed=0), tmp_path / "model.onnx")


class TestOnnxRuntimeInt4(TestOnnxRuntime):
    @pytest.fixture
    def model(self, tmp_path):
        return export(Design(arch=ARCH, weights="int4"), random_weights(ARCH, seed=0), tmp_path / "model.onnx")


def test_more_positions_than_the_model_has_are_refused(tmp_path) -> None:
    path = export(Design(arch=ARCH), random_weights(ARCH, seed=0), tmp_path / "model.onnx")
    with pytest.raises(MeasurementError, match="16 positions"):
        OnnxRuntimeSession(path, capacity=17)
