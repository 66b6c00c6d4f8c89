"""Models that Qualcomm compiles in parts for its chips, and the predicted times of these parts.

The law is in ``phone_parts.py``. A part with published runs is predicted from its runs on other chips. The number of
operators in its compiled graph is known for each unit (NPU, GPU, CPU) and precision.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from chipwise.core.files import read_text
from chipwise.errors import InputError, UnknownName, Unsupported
from chipwise.hardware import datasheet
from chipwise.hardware.datasheet import DeviceProfile
from chipwise.predict.cost.model import Predicted
from chipwise.predict.cost.whole_run import RunEstimate
from chipwise.predict.graphs.npu_chips import CHIPS, chip_named
from chipwise.predict.whole_runs.phone_parts import PartRun, constants, part_law
from chipwise.predict.whole_runs.sums import value_of

DATA = Path(__file__).parents[1] / "data" / "phone_models.json.gz"
UNITS = ("NPU", "GPU", "CPU")
RUNTIMES: Mapping[str, str] = {
    "qnn": "qnn_dlc",
    "qnn_dlc": "qnn_dlc",
    "qnn_context_binary": "qnn_context_binary",
    "genie": "genie",
    "onnxruntime": "onnx",
    "onnxruntime-qnn": "precompiled_qnn_onnx",
    "onnx": "onnx",
    "ort": "onnx",
    "precompiled_qnn_onnx": "precompiled_qnn_onnx",
    "litert": "tflite",
    "tflite": "tflite",
}
"""For each common name of a runtime, the name of the runtime that was timed on AI Hub."""
TITLES = {
    "qnn_dlc": "Qualcomm QNN",
    "qnn_context_binary": "Qualcomm QNN, context binary",
    "genie": "Qualcomm Genie",
    "onnx": "ONNX Runtime with QNN",
    "precompiled_qnn_onnx": "ONNX Runtime with QNN, precompiled",
    "tflite": "LiteRT",
}
PRECISIONS = {
    "fp16": "float",
    "fp32": "float",
    "bf16": "float",
    "float": "float",
    "int8": "w8a8",
    "int4": "w4a16",
    **{name: name for name in ("w8a8", "w8a16", "w4a16", "mixed_with_float", "w8a16_mixed_fp16")},
}


@dataclass(frozen=True, slots=True)
class Catalogue:
    """Numbers of operators in compiled graphs, as ``models[MODEL][PART]["UNIT|PRECISION"]``."""

    models: Mapping[str, Mapping[str, Mapping[str, int]]]

    def layers(self, model: str, part: str, unit: str, precision: str) -> float:
        """Number of operators of a compiled part.

        If it was never compiled for this unit and precision, the median over the other units and precisions is used.
        """
        known = self.models[model][part]
        return known.get(f"{unit}|{precision}") or float(median(known.values()))


@functools.cache
def catalogue() -> Catalogue:
    """The bundled catalogue."""
    return Catalogue(json.loads(read_text(DATA))["models"])


def model_called(name: str) -> str | None:
    """The catalogue's name for the model ``name``; for example, ``openai/whisper-small`` gives ``whisper_small``."""
    last = re.sub(r"[^a-z0-9]+", "_", name.rpartition("/")[2].lower()).strip("_")
    known = catalogue().models
    return next((each for each in (last, f"openai_{last}", last.replace("_v1_4", "_v1_5")) if each in known), None)


def estimate_parts(
    model: str,
    *,
    device: str | DeviceProfile,
    part: str | None = None,
    runtime: str | None = None,
    weights: str | None = None,
) -> list[RunEstimate]:
    """Estimates each part of a model on a Qualcomm chip, or only one part.

    Args:
        model: A model of the catalogue.
        device: A data sheet's name, optionally with a unit (``snapdragon-8-elite:gpu``); or a device in AI Hub's list.
        part: Only this part. Default: all parts.
        runtime: One of ``RUNTIMES``. Default: QNN on the NPU, LiteRT on GPU and CPU.
        weights: One of ``PRECISIONS``. Default: floats.

    Raises:
        UnknownName: A model, part, device, runtime or precision is unknown.
        Unsupported: The device is not a Qualcomm chip.
    """
    known = model_called(model)
    if known is None:
        raise UnknownName("model of parts", model, catalogue().models)
    chip, unit = _chip_and_unit(device)
    stack = RUNTIMES.get((runtime or ("qnn" if unit == "NPU" else "litert")).strip().lower())
    if stack is None:
        raise UnknownName("runtime of parts", runtime or "", RUNTIMES)
    precision = PRECISIONS.get((weights or "float").strip().lower())
    if precision is None:
        raise UnknownName("precision of parts", weights or "", PRECISIONS)
    if unit != "NPU" and stack in ("qnn_context_binary", "precompiled_qnn_onnx", "genie"):
        raise InputError(f"{TITLES[stack]} runs on the NPU; name litert, onnxruntime or qnn for the {unit}")
    parts = catalogue().models[known]
    if part is not None:
        named = next((each for each in parts if each.lower() == part.lower()), None)
        if named is None:
            raise UnknownName(f"part of {known}", part, parts)
        parts = {named: parts[named]}
    return list(_estimates(known, tuple(parts), chip, unit, stack, precision))


def _estimates(
    model: str, parts: tuple[str, ...], device: str, unit: str, stack: str, precision: str
) -> Iterator[RunEstimate]:
    held = constants()
    seen = device in held.devices or chip_named(device).name in held.vendors
    for part in parts:
        run = PartRun(
            model=model,
            component=part,
            precision=precision,
            device=device,
            runtime=stack,
            unit=unit,
            layers=catalogue().layers(model, part, unit, precision),
        )
        situation = "known" if device in held.devices else "sibling" if seen else "chip"
        middle = float(value_of(part_law(run), held.terms()))
        latency = Predicted.around(middle, held.halfwidth(situation, run.place))
        rate = Predicted.around(1 / middle, latency.log_halfwidth)
        where = {"known": "seen", "sibling": "sibling"}.get(situation, "unseen")
        notes = []
        if f"{unit}|{precision}" not in catalogue().models[model][part]:
            notes.append(f"{part} was never compiled in {precision} for the {unit}; sizes in other formats are used")
        yield RunEstimate(
            model=model,
            part=part,
            setting=f"{precision}, {unit}",
            device=f"{device}:{unit.lower()}" if ":" not in device else device,
            runtime=TITLES[stack],
            metrics={"latency_s": latency, "runs_per_s": rate},
            provenance=f"predicted ({where} device; rates of whole runs on AI Hub)",
            notes=tuple(notes),
        )


def _chip_and_unit(device: str | DeviceProfile) -> tuple[str, str]:
    """The name by which the law knows the chip or device, and the unit that runs the part.

    Raises:
        UnknownName: The device is unknown.
        Unsupported: The device is not a Qualcomm chip.
    """
    name = device.name if isinstance(device, DeviceProfile) else device
    whole, _, unit = name.partition(":")
    unit = unit.strip().upper() or "NPU"
    if unit not in UNITS:
        raise UnknownName("part of a chip", unit.lower(), [each.lower() for each in UNITS])
    if whole.strip().lower() in CHIPS:
        return whole.strip(), unit
    sheet = datasheet.load(whole)
    if sheet.vendor != "Qualcomm":
        raise Unsupported(
            f"parts of models were only timed on Qualcomm's chips, not on {sheet.name} ({sheet.title}); name one such "
            "as snapdragon-8-elite, or a model of `chipwise models` for any device"
        )
    return sheet.name, unit
