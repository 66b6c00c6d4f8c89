"""Table of exporters: the file format of each runtime, the function that writes it, and a reference model."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

import psutil

from chipwise.core import units
from chipwise.core.arrays import AnyArray
from chipwise.core.places import data_folder
from chipwise.core.tables import Table
from chipwise.deploy.runtimes import RUNTIMES, measured_instead
from chipwise.errors import DoesNotFit, UnknownName, Unsupported
from chipwise.model.arch.arch import uniform
from chipwise.model.arch.design import Design
from chipwise.model.blocks.quantize import NEAREST, Packing
from chipwise.model.ops.workload import Workload
from chipwise.predict.cost.memory import memory_parts

EXPORTERS = Table(
    "exporter",
    "chipwise.exporters",
    {
        "onnxruntime": "chipwise.deploy.export.onnx:export",
        "openvino": "chipwise.deploy.export.exporters:export_openvino",
        "browser": "chipwise.deploy.export.onnx:export",
        "llama.cpp": "chipwise.deploy.export.gguf:export",
        "wllama": "chipwise.deploy.export.gguf:export",
        "executorch": "chipwise.deploy.export.converted:to_executorch",
        "litert": "chipwise.deploy.export.converted:to_litert",
        "torch": "chipwise.deploy.runtimes.torch_serving:export",
        "torch-compiled": "chipwise.deploy.runtimes.torch_serving:export",
        "torch-cuda": "chipwise.deploy.runtimes.torch_serving:export",
        "torch-cuda-compiled": "chipwise.deploy.runtimes.torch_serving:export",
        "torch-cuda-graphs": "chipwise.deploy.runtimes.torch_serving:export",
    },
    hidden={"fake": "chipwise.deploy.runtimes.fake:export"},
)
"""``export(design, weights, path) -> Path`` by runtime; writes the file that the runtime's ``open`` reads."""
PACKING = (
    "onnxruntime",
    "openvino",
    "browser",
    "llama.cpp",
    "wllama",
    "executorch",
    "litert",
)  # exporters that accept ``packing=``
SUFFIXES = {
    **dict.fromkeys(("onnxruntime", "openvino", "browser"), ".onnx"),
    **dict.fromkeys(("llama.cpp", "wllama"), ".gguf"),
    **{"executorch": ".pte", "litert": ".tflite", "fake": ".json"},
}
REFERENCE = Design(arch=uniform(vocab_size=1024, d_model=128, depth=3, heads=4, ffn_width=256, max_tokens=32))
"""The reference model. Its 2.5 MB of FP32 weights do not fit in private caches, so a busy machine slows it down as much
as the models that are measured."""
# maximum number of layers of a model built to be measured; runtimes need a minute or longer to load more
MOST_LAYERS = 512


def export_for(
    runtime: str,
    design: Design,
    folder: Path,
    *,
    weights: Mapping[str, AnyArray] | None = None,
    stem: str = "model",
    external_data: bool = False,
    packing: Packing = NEAREST,
) -> Path:
    """Writes ``design`` into ``folder`` in the format of ``runtime``. Weights are random by default.

    With ``external_data``, ONNX models of more than 2 GiB are written as two files; otherwise they are refused.

    Raises:
        UnknownName: No such runtime is known.
        Unsupported: No exporter writes files for that runtime, or the runtime or the file does not support this design.
        DoesNotFit: Building random weights needs more memory than is free.
    """
    check_exporter(runtime)
    if weights is None:
        check_memory(design)
    two_files = external_data and suffix_of(runtime) == ".onnx"
    if suffix_of(runtime) == ".onnx" or (weights is None and runtime != "fake"):
        from chipwise.deploy.export.onnx import check_size, random_weights

        if suffix_of(runtime) == ".onnx" and not external_data:
            check_size(design)
        weights = random_weights(design.arch, seed=0) if weights is None else weights
    folder.mkdir(parents=True, exist_ok=True)
    target, how = folder / f"{stem}{suffix_of(runtime)}", {"packing": packing} if runtime in PACKING else {}
    more = {"external_data": True} if two_files else {}
    path: Path = EXPORTERS.load(runtime)(design, weights or {}, target, **how, **more)
    return path


def export_openvino(
    design: Design,
    weights: Mapping[str, AnyArray],
    path: Path,
    *,
    external_data: bool = False,
    packing: Packing = NEAREST,
) -> Path:
    """Writes the same ONNX file as for ONNX Runtime.

    Raises:
        Unsupported: OpenVINO does not support one of the design's operators.
    """
    if any(layer.convs for layer in design.arch.layers):
        raise Unsupported(
            f"OpenVINO does not support {design.arch.name}: it has no causal convolution with state "
            "(com.microsoft.CausalConvWithState); use a design without convolutions, or --runtime onnxruntime"
        )
    found: Path = EXPORTERS.load("onnxruntime")(design, weights, path, external_data=external_data, packing=packing)
    return found


def check_memory(design: Design, workload: Workload | None = None) -> None:
    """Checks that this machine can build, export and serve ``design`` with random weights.

    The estimate is a lower bound: FP32 weights during construction, two copies of the weights in the design's
    formats (in the file and in the process), the KV cache, and the activations.

    Raises:
        Unsupported: The design has more layers than a runtime loads in reasonable time.
        DoesNotFit: The design needs more memory than is free.
    """
    if (layers := len(design.arch.layers)) > MOST_LAYERS:
        raise Unsupported(
            f"{design.arch.name} has {layers:,} layers; chipwise builds models of at most {MOST_LAYERS} layers for "
            "measurements, because a runtime takes minutes to load more"
        )
    parts = memory_parts(design, workload or Workload(prompt_tokens=1, new_tokens=1))
    needed = 4 * design.arch.parameters() + 2 * (parts.table_bytes + parts.matrix_bytes)
    needed += parts.kv_bytes + parts.activation_bytes
    free = psutil.virtual_memory().available
    if needed > free:
        raise DoesNotFit(
            f"{design.arch.name}: measuring it needs at least {units.show(needed, 'bytes')} of memory, and "
            f"{units.show(free, 'bytes')} are free here; choose a smaller model, a smaller batch or a larger machine"
        )


def suffix_of(runtime: str) -> str:
    """Suffix of the files that ``runtime`` reads; never .safetensors, which Hugging Face folders contain too."""
    return SUFFIXES.get(runtime, ".torch.safetensors")


def check_exporter(runtime: str) -> None:
    """Checks that models can be exported for ``runtime``.

    Raises:
        UnknownName: No such runtime is known.
        Unsupported: No exporter writes files for it.
    """
    if runtime not in RUNTIMES:
        raise UnknownName("runtime", runtime, RUNTIMES.names(), said=measured_instead(runtime))
    if runtime not in EXPORTERS:
        raise Unsupported(
            f"there is no exporter for {runtime}; give it a model file, or add an entry point chipwise.exporters"
        )


@lru_cache(maxsize=8)
def reference_model(runtime: str) -> Path | None:
    """Path of the reference model for ``runtime``; None if it cannot be exported. The first call writes the file."""
    folder = data_folder() / "reference" / runtime
    path = folder / f"{REFERENCE.digest}{suffix_of(runtime)}"
    if path.exists():
        return path
    try:
        return export_for(runtime, REFERENCE, folder, stem=REFERENCE.digest)
    except Unsupported:
        return None
