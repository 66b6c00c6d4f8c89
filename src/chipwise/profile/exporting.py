"""Which file each runtime runs, and who writes it; and the reference model that anchors measurements in it."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from chipwise.core.errors import UnknownName, Unsupported
from chipwise.core.places import data_folder
from chipwise.core.tables import Table
from chipwise.profile.backends import RUNTIMES
from chipwise.spec import Design, uniform

EXPORTERS = Table(
    "exporter",
    "chipwise.exporters",
    {
        "onnxruntime": "chipwise.deploy.onnx:export",
        "openvino": "chipwise.profile.exporting:export_openvino",
        "llama.cpp": "chipwise.deploy.gguf:export",
        "torch": "chipwise.deploy.torch_serving:export",
        "torch-compiled": "chipwise.deploy.torch_serving:export",
        "torch-cuda": "chipwise.deploy.torch_serving:export",
        "torch-cuda-compiled": "chipwise.deploy.torch_serving:export",
        "torch-cuda-graphs": "chipwise.deploy.torch_serving:export",
    },
    hidden={"fake": "chipwise.testing.fake_runtime:export"},
)
"""``export(design, weights, path) -> Path`` by runtime: writes what that runtime's ``open`` reads."""
SUFFIXES = {"onnxruntime": ".onnx", "openvino": ".onnx", "llama.cpp": ".gguf", "fake": ".json"}
REFERENCE = Design(arch=uniform(vocab_size=1024, d_model=128, depth=3, heads=4, ffn_width=256, max_tokens=32))
"""2.5 MB of FP32 weights: beyond private caches, so that it feels what candidates feel."""


def export_for(
    runtime: str, design: Design, folder: Path, *, weights: Mapping[str, Any] | None = None, stem: str = "model"
) -> Path:
    """Writes ``design`` into ``folder`` as ``runtime`` reads it, with random weights unless given.

    Raises:
        UnknownName: There is no such runtime.
        Unsupported: Nothing here writes files for that runtime, or it cannot hold this design.
    """
    check_exporter(runtime)
    if suffix_of(runtime) == ".onnx":
        from chipwise.deploy.onnx import check_size

        check_size(design)
    if weights is None and runtime != "fake":
        from chipwise.deploy.onnx import random_weights

        weights = random_weights(design.arch, seed=0)
    folder.mkdir(parents=True, exist_ok=True)
    path: Path = EXPORTERS.load(runtime)(design, weights or {}, folder / f"{stem}{suffix_of(runtime)}")
    return path


def export_openvino(design: Design, weights: Mapping[str, Any], path: Path) -> Path:
    """The same ONNX file as ONNX Runtime's.

    Raises:
        Unsupported: OpenVINO has no rule for one of its operators.
    """
    if any(layer.convs for layer in design.arch.layers):
        raise Unsupported(
            f"OpenVINO cannot hold {design.arch.name}: it has no causal convolution that keeps its last inputs "
            "(com.microsoft.CausalConvWithState); use a design without convolutions, or --runtime onnxruntime"
        )
    from chipwise.deploy.onnx import export

    return export(design, weights, path)


def suffix_of(runtime: str) -> str:
    """How the names of the files end that ``runtime`` reads (a Hugging Face folder has a model.safetensors too)."""
    return SUFFIXES.get(runtime, ".torch.safetensors")


def check_exporter(runtime: str) -> None:
    """Nothing, if models can be written for ``runtime``.

    Raises:
        UnknownName: There is no such runtime.
        Unsupported: Nothing here writes files for it.
    """
    if runtime not in RUNTIMES:
        raise UnknownName("runtime", runtime, RUNTIMES.names())
    if runtime not in EXPORTERS:
        raise Unsupported(
            f"nothing writes models for {runtime} yet; give it a model file, or add an entry point chipwise.exporters"
        )


@lru_cache(maxsize=8)
def reference_model(runtime: str) -> Path | None:
    """The reference model's file for ``runtime``, written once into the user's data folder; None where none can be."""
    folder = data_folder() / "reference" / runtime
    kept = folder / f"{REFERENCE.digest}{suffix_of(runtime)}"
    if kept.exists():
        return kept
    try:
        return export_for(runtime, REFERENCE, folder, stem=REFERENCE.digest)
    except Unsupported:
        return None
