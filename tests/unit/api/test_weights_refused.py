"""Folders with invalid weight files: measure and kit end with one error line."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import pytest

from chipwise.design.models.measuring import exported_file
from chipwise.errors import SpecError
from chipwise.model.ops.workload import Workload

CONFIG = {"model_type": "llama", "vocab_size": 64, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1,
          "num_attention_heads": 2}  # fmt: skip


@pytest.mark.parametrize(
    "content", [pickle.dumps({"a": 1}), b"", b"\x10\0\0\0\0\0\0\0[]", b"\xff\xff\xff\0\0\0\0\0{}"], ids=str
)
def test_what_is_no_safetensors_file_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG), encoding="utf-8")
    (tmp_path / "model.safetensors").write_bytes(content)
    with pytest.raises(SpecError, match=r"model\.safetensors: is not a safetensors file"):
        exported_file(str(tmp_path), tmp_path, runtime="onnxruntime", weights=None, workload=Workload())
