"""Writes a model as files for other programs, and checks that the files give the same outputs as the model."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from chipwise.core import units
from chipwise.core.digest import plain
from chipwise.core.files import read_json, storage, write_json
from chipwise.core.results import Result
from chipwise.core.version import VERSION
from chipwise.deploy.export import parity
from chipwise.deploy.export.converted import PACKAGE, TITLES, UNVERIFIED
from chipwise.deploy.export.exporters import check_memory
from chipwise.deploy.export.hf_compressed import FILE, write_compressed
from chipwise.deploy.export.layer_groups import LayerGroup, groups_of, groups_of_compressed, groups_of_gguf
from chipwise.deploy.export.parity import Parity
from chipwise.deploy.export.sources import (
    ALIASES,
    COMPRESSED,
    FORMATS,
    Source,
    Writer,
    check_held,
    write_converted,
    write_gguf,
    write_hf,
    write_onnx,
)
from chipwise.deploy.export.transformers_js import write_transformers_js
from chipwise.deploy.runtimes import llama_server
from chipwise.design.models.calibration_data import Calibration, Data, calibration
from chipwise.design.run.folder import holds_run
from chipwise.design.run.winner import read_winner
from chipwise.errors import ChipwiseError, InputError, MissingExtra, StudyError, UnknownName, line_of, short
from chipwise.model.arch.design import Design
from chipwise.model.arch.formats import renamed
from chipwise.model.blocks.quantisers import QUANTISERS
from chipwise.model.blocks.quantize import GRID, NEAREST, Grid, Packing
from chipwise.model.walk.calibration import AUTO, LEARNED, Choice, choose, learning_s, quantiser

MANIFEST, SCHEMA = "manifest.json", "chipwise.export/2"
EARLIER = {"manifest.json": SCHEMA, "export.json": "chipwise.export/1"}  # manifests of earlier exports
USUAL = {
    "gguf": "fp16",
    "onnx": "fp32",
    "hf": "fp32",
    "openvino": "fp32",
    "executorch": "fp32",
    "litert": "fp32",
    "coreml": "fp16",
    "transformers.js": "fp32",
    COMPRESSED: "int4",
}  # default weight formats for models without one
WRITERS: Mapping[str, Writer] = {
    "gguf": write_gguf,
    "onnx": write_onnx,
    "hf": write_hf,
    "openvino": write_onnx,
    **{kind: partial(write_converted, kind=kind) for kind in TITLES},
    "transformers.js": write_transformers_js,
    COMPRESSED: write_compressed,
}
"""Maps each file type to the function that writes its files."""
_OTHER_NAMES = {
    **{"ollama": "gguf", "llama.cpp": "gguf", "huggingface": "hf", "transformers": "hf", "onnxruntime": "onnx"},
    **{
        "vllm": COMPRESSED,
        "transformersjs": "transformers.js",
        "tflite": "litert",
        "core-ml": "coreml",
        "mlpackage": "coreml",
    },
}
_RUN = {
    "gguf": 'llama-cli -m {folder}/model.gguf -p "The capital of France is"',
    "onnx": "chipwise measure {folder}/model.onnx",
    "openvino": "chipwise measure {folder}/model.onnx --runtime openvino",
    "executorch": "chipwise measure {folder}/model.pte --runtime executorch",
    "litert": "chipwise measure {folder}/model.tflite --runtime litert",
    "coreml": "python -c \"import coremltools; coremltools.models.MLModel('{folder}/model.mlpackage')\"",
    "hf": "python -c \"import transformers; transformers.{auto}.from_pretrained('{folder}', trust_remote_code=True)\"",
    "transformers.js": "node -e \"import('@huggingface/transformers').then(async t => console.log(await (await "
    "t.pipeline('text-generation', '{folder}'))('The capital of France is')))\"",
    COMPRESSED: "vllm serve {folder}",
}
"""Maps each file type to a command that loads the exported files."""
_NOT_RUN = {
    "executorch": ("on a phone; ExecuTorch ran the file only on this machine's processor",),
    "litert": ("on a phone; LiteRT ran the file only on this machine's processor",),
    "transformers.js": ("in transformers.js or a browser; ONNX Runtime ran the same file on this machine",),
    COMPRESSED: ("in vLLM",),
    "gguf": ("with a cache in FP16, llama.cpp's default",),
}
"""Maps a file type to what its check does not cover: programs, places or settings with which no file was run."""
_COMPARED = {
    "onnx": ("model.onnx", "onnxruntime"),
    "openvino": ("model.onnx", "openvino"),
    "executorch": ("model.pte", "executorch"),
    "litert": ("model.tflite", "litert"),
    "transformers.js": ("onnx/*", "onnxruntime"),
}
"""Maps a file type to the file whose outputs are compared with torch, and to the runtime that runs this file."""
_LEARNING = tuple(kind for kind, write in WRITERS.items() if write is write_onnx)  # write all FP32 parameters as given
OnProgress = Callable[[str, int, int], None]


@dataclass(frozen=True, repr=False)
class Exported(Result):
    """Result of an export: the files, the formats of the model's parts, and the checks; stored as ``manifest.json``."""

    folder: Path
    to: str
    source: str
    name: str
    weights: str
    files: Mapping[str, int]  # bytes by name
    groups: tuple[LayerGroup, ...]
    verified: tuple[Parity, ...] = ()
    sample: str = ""  # example of text generated by llama.cpp with the file
    notes: tuple[str, ...] = ()
    quantiser: Choice | None = None  # how narrow weights were rounded, and the loss with each way that was tried
    unverified: tuple[str, ...] = ()  # checks that were not made, and why
    run: str = ""  # command that loads the files

    @property
    def bytes(self) -> int:
        """Total size of all files."""
        return sum(self.files.values())

    def headline(self) -> str:
        """Says what was written: the model, its format and size, and the folder."""
        return f"{self.name} as {self.to} in {self.weights}: {units.show(self.bytes, 'bytes')} in {self.folder}"

    def rows(self) -> list[Mapping[str, object]]:
        """One row for each part of the model."""
        return [dict(plain(group)) for group in self.groups]

    def to_dict(self) -> dict[str, object]:
        """All fields of the result as plain values."""
        return {**plain(self), "folder": str(self.folder)}


def export(
    model: str | Path,
    *,
    to: str,
    weights: str | None = None,
    out: str | Path | None = None,
    verify: bool = True,
    method: str = AUTO,
    data: Data = None,
    group: int = GRID.block,
    symmetric: bool = True,
    cpu_seconds: float | None = None,
    on_progress: OnProgress = lambda stage, done, total: None,
) -> Exported:
    """Writes a model with its weights for other programs, and compares the files' outputs with those of torch.

    Args:
        model: A run's folder (whose winner is exported), a winner's folder, a Hugging Face folder with weights, or a
            ``.gguf`` file.
        to: ``gguf`` (llama.cpp, Ollama), ``onnx`` (ONNX Runtime), ``openvino``, ``executorch``, ``litert``,
            ``coreml``, ``transformers.js``, ``hf`` (transformers) or ``compressed-tensors`` (transformers, vLLM).
        weights: Weight format: ``fp32``, ``fp16``, ``bf16``, ``int8``, ``fp8`` or ``int4``, if the file type supports
            it; for GGUF also ``q8_0`` and ``q4_0``; or one format per layer and one for the head (``int4/int8
            head:int8``). Default: the winner's format; for other models fp16 (GGUF, Core ML), int4 (compressed-tensors)
            or fp32 (all other file types).
        out: Folder to write: a new folder, an empty one, or that of an earlier export. Default: ``NAME-TO`` in the
            current folder, or ``RUN/export-TO`` for a run.
        verify: Whether to run the files and compare their outputs with those of torch.
        method: Quantiser that rounds narrow weights: ``nearest``, ``searched``, ``gptq``, or ``auto``, which takes the
            quantiser with the least loss on calibration data (``nearest`` without such data). ``learned`` (ONNX,
            OpenVINO) improves the result of the best quantiser by gradient descent on the outputs of the whole model.
        data: Calibration data: text files, a text source, or a run file. Default: for a winner, the data of its run.
        group: Number of values that share a scale in int4: 16, 32, 64 or 128 (GGUF has 32).
        symmetric: Whether the zero point of int4 is the middle integer; otherwise each group stores its own zero point
            (ONNX only).
        cpu_seconds: CPU seconds for ``learned``. Default: 60. If set, ``auto`` tries ``learned`` too. An export that
            was stopped continues when it is started again.
        on_progress: Called with the name of a stage, the CPU seconds that it has spent, and the CPU seconds that it may
            spend.

    Raises:
        InputError: The model or the format is unknown, or the folder contains other files.
        StudyError: The run has no winner yet.
        Unsupported: The file type does not support a block of the model; the message says which type does.
        MissingExtra: A package is not installed.
        Unreachable: The environment of ExecuTorch, LiteRT or Core ML is missing; the message says how to create it.
        StorageError: The files cannot be written.
    """
    kind = _kind(to)
    place = weights_of(Path(model))
    folder = Path(out) if out is not None else _usual_folder(Path(model), kind)
    _check_folder(folder, place)
    winner = read_winner(place) if place.is_dir() else None
    chosen = _weights(kind, weights, None if winner is None else winner.design.weights)
    source = Source.read(place)
    design = _design(source, chosen, None if winner is None else winner.design)
    check_held(design.arch, kind)
    grid = Grid(block=group, symmetric=symmetric)
    if grid != GRID and (
        kind not in ("onnx", "openvino", "transformers.js", COMPRESSED) or "int4" not in design.formats.all
    ):
        raise InputError("group (--group), symmetric (--asymmetric): apply only to int4 in ONNX and compressed-tensors")
    if kind == COMPRESSED and not symmetric:
        raise InputError(
            "symmetric (--asymmetric): int4 in compressed-tensors is always symmetric; leave it out, or use ONNX"
        )
    budget_s = learning_s(method, cpu_seconds)
    if budget_s and kind not in _LEARNING:
        raise InputError(
            f"method (--method), cpu_seconds (--cpu-seconds): {LEARNED} works for {' and '.join(_LEARNING)}, not {kind}"
        )
    checkpoint = folder.with_name(f".{folder.name}.{LEARNED}.safetensors")
    given = _rounded(kind, source, place, design, method, data, grid)
    if budget_s and given.choice is not None:
        given = _learned(given, method, budget_s, checkpoint, on_progress)
    with _staged(folder) as stage:
        files, notes = WRITERS[kind](given.source, given.design, stage, given.packing)
        sizes = {name: (stage / name).stat().st_size for name in files}
        groups = _groups(kind, stage, files, design, grid)
        skipped: list[str] = ["with --no-verify, no output was compared"]
        verified, sample, why = _verified(kind, source, design, stage, notes) if verify else ([], "", skipped)
        found = Exported(
            folder=folder,
            to=kind,
            source=str(model),
            name=design.arch.name,
            weights=design.weights.replace("fp32", "bf16") if kind == COMPRESSED else design.weights,
            files=sizes,
            groups=tuple(groups),
            verified=tuple(verified),
            sample=sample,
            notes=(*given.lacking, *notes),
            quantiser=given.choice,
            unverified=(*why, *(_NOT_RUN.get(kind, ()) if verified else ())),
            run=_command(kind, folder, design),
        )
        write_json(stage / MANIFEST, {"schema": SCHEMA, "version": VERSION, **found.to_dict()})
    checkpoint.unlink(missing_ok=True)
    return found


def _command(kind: str, folder: Path, design: Design) -> str:
    if kind in ("gguf", "onnx") and design.arch.causal and design.arch.head.writes:
        return f"chipwise serve {folder}"
    return _RUN[kind].format(folder=folder, auto="AutoModelForCausalLM" if design.arch.causal else "AutoModel")


def _groups(kind: str, stage: Path, files: list[str], design: Design, grid: Grid) -> list[LayerGroup]:
    if kind == "gguf":
        return groups_of_gguf(stage / files[0])
    if kind == COMPRESSED:
        return groups_of_compressed(stage / FILE)
    found = groups_of(design, grid)
    if kind != "coreml" or "fp32" in design.formats.all:
        return found
    return [replace(part, format="fp16", bytes=part.bytes // 2) if part.format == "fp32" else part for part in found]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rounded:
    """The model to write: its weights, and how they are packed."""

    source: Source
    design: Design
    packing: Packing = NEAREST
    choice: Choice | None = None  # None if nothing is rounded
    lacking: Sequence[str] = ()
    calibration: Calibration | None = None


def _learned(given: _Rounded, method: str, budget_s: float, checkpoint: Path, on_progress: OnProgress) -> _Rounded:
    """The model ``given`` after learned rounding.

    With the method ``auto``, the previous rounding is kept if it gives a lower loss than learned rounding.
    """
    from chipwise.training.loop.learned_rounding import distance_from, learned_or_chosen

    if (data := given.calibration) is None or given.choice is None:
        return given
    choice, found = learned_or_chosen(
        given.design,
        given.source.weights,
        given.packing,
        distance_from(data.lessons()),
        choice=given.choice,
        judge=data.judge,
        method=method,
        cpu_budget_s=budget_s,
        path=checkpoint,
        on_progress=on_progress,
    )
    if found is None:
        return replace(given, choice=choice)
    source = replace(given.source, arch=found.design.arch, weights=found.weights)
    return replace(given, source=source, design=found.design, packing=found.packing, choice=choice)


def _rounded(kind: str, source: Source, place: Path, design: Design, method: str, data: Data, grid: Grid) -> _Rounded:
    """The weights to write, packed by the quantiser ``method``; ``auto`` and ``learned`` take the best quantiser."""
    plain_one = _Rounded(source=source, design=design)
    if not (narrow := {"int8", "int4", "fp8"} & set(design.formats.all)):
        return plain_one
    lacking = []
    try:
        found = None if method == "nearest" and data is None else calibration(source, place, data, fp8="fp8" in narrow)
    except ChipwiseError as error:
        if method != AUTO or data is not None:
            raise
        found, lacking = None, [f"rounded to nearest, because the data of the model's run cannot be used: {error}"]
    if found is None:
        if method not in (AUTO, "nearest"):
            raise InputError(f"method (--method): {method} needs calibration data (--data): texts or a run file")
        choice = Choice(method="nearest", losses={}, cpu_s={})
        return replace(plain_one, packing=Packing(grid=grid), choice=choice, lacking=lacking)
    packing = replace(found.packing, grid=grid)
    if narrow == {"fp8"}:
        among: tuple[str, ...] = ("nearest",)  # fp8 scales follow from the largest value, so there is no choice
    else:
        free = method in (AUTO, LEARNED)
        among = tuple(QUANTISERS) if free else tuple(dict.fromkeys(("nearest", method)))
    choice = choose(design, source.weights, packing, found.judge, among=among)
    choice = choice if method in (AUTO, LEARNED) else replace(choice, method=method)
    packing = replace(packing, quantiser=quantiser(choice.method))
    return replace(plain_one, packing=packing, choice=choice, lacking=lacking, calibration=found)


def _kind(to: str) -> str:
    kinds = tuple(USUAL)
    kind = _OTHER_NAMES.get(to.strip().lower(), to.strip().lower())
    if kind not in kinds:
        raise InputError(f"to (--to): unknown file type {short(to)}; known: {', '.join(kinds)}")
    return kind


def weights_of(path: Path) -> Path:
    """The folder or file with the model's weights; for a run, its winner's folder."""
    if not path.is_dir() or not holds_run(path):
        return path
    if not (path / "winner" / "config.json").is_file():
        raise StudyError(f"{path}: the run has no winner with weights yet; finish it with: chipwise search … --resume")
    return path / "winner"


def _usual_folder(model: Path, kind: str) -> Path:
    if model.is_dir() and holds_run(model):
        return model / f"export-{kind}"
    name = model.stem if model.suffix == ".gguf" else model.resolve().name
    return Path(f"{name or 'model'}-{kind}")


def _check_folder(folder: Path, source: Path) -> None:
    """Checks that the output folder is missing, empty, or an earlier export, which may be overwritten."""
    if folder.exists() and not folder.is_dir():
        raise InputError(f"out (--out): {folder} is a file; give a folder")
    if folder.is_dir() and source.exists() and folder.resolve() == source.resolve():
        raise InputError(f"out (--out): {folder} is the model itself; give another folder")
    if folder.is_dir() and any(folder.iterdir()) and _earlier(folder) is None:
        raise InputError(f"out (--out): {folder} is not empty and not an earlier export; give a new folder")


def _earlier(folder: Path) -> list[str] | None:
    """Names of the files and package folders of an earlier export; None if the folder contains no export."""
    for manifest, schema in EARLIER.items():
        path = folder / manifest
        held = read_json(path) if path.is_file() else None
        if isinstance(held, dict) and held.get("schema") == schema and isinstance(held.get("files"), dict):
            names = [name for name in held["files"] if name in (Path(name).name, f"onnx/{Path(name).name}")]
            return [manifest, *names, *{PACKAGE for name in held["files"] if name.startswith(f"{PACKAGE}/")}]
    return None


def _weights(kind: str, given: str | None, own: str | None) -> str:
    """Checks the weight format; returns its name in chipwise.

    Raises:
        InputError: The name is unknown, or files of this kind do not support the format.
    """
    if given is None and own is not None and kind not in ("hf", COMPRESSED):
        return own
    wanted = USUAL[kind] if given is None else given.strip().lower()
    wanted = ALIASES.get(wanted, wanted) if kind == "gguf" else wanted
    also = [name for name in ALIASES if kind == "gguf"]

    def known(name: str) -> str:
        if name not in FORMATS[kind]:
            able = [f"--to {other}" for other, names in FORMATS.items() if name in names]
            where = f" ({' and '.join(able)} can store it)" if able else ""
            has = ", ".join((*FORMATS[kind], *also))
            raise InputError(f"weights (--weights): {kind} cannot store {short(name)}{where}; choose one of {has}")
        return name

    if kind == COMPRESSED:
        return f"{known(wanted)} head:fp32"  # the head is stored in bfloat16
    return renamed(wanted, known)


def _design(source: Source, weights: str, winner: Design | None) -> Design:
    try:
        fused = {} if winner is None else {"fused": winner.fused}
        design = Design(arch=source.arch, weights=weights, **fused)
    except UnknownName as error:
        raise InputError(f"weights (--weights): {error}") from None
    check_memory(design)
    return design


def _verified(
    kind: str, source: Source, design: Design, folder: Path, notes: list[str]
) -> tuple[list[Parity], str, list[str]]:
    """Compares the files with torch.

    Returns:
        The comparisons; an example text; and notes, which say why there is no comparison if there is none.
    """
    if kind == "coreml":
        return [], "", [UNVERIFIED]
    if kind == "gguf" and not llama_server.available():
        return [], "", ["llama.cpp is not installed; install it (xllamacpp) with pip install 'chipwise[all]'"]
    if kind == "gguf" and notes:
        return [], "", ["llama.cpp cannot run a file without a tokenizer"]
    try:
        if kind == "gguf":
            return *parity.gguf_parity(folder / "model.gguf", design, source.weights), []
        words = parity.tokens_of(source.tokenizer) if isinstance(source.tokenizer, Path) else None
        if kind in _COMPARED:
            name, runtime = _COMPARED[kind]
            file = next(folder.glob(name))
            found = parity.onnx_parity(file, design.arch, source.weights, words, runtime=runtime)
        else:
            found = parity.transformers_parity(folder, design.arch, source.weights, words)
        return [found], "", []
    except MissingExtra as error:
        return [], "", [str(error)]
    except ChipwiseError as error:
        return [], "", [line_of(error)]


@contextlib.contextmanager
def _staged(folder: Path) -> Iterator[Path]:
    """Context manager that yields a temporary folder.

    On exit, the files move from there to ``folder``; the files of an earlier export are deleted.
    """
    stage = folder.with_name(f".{folder.name}.{os.getpid()}")
    with storage(folder):
        stage.mkdir(parents=True)
        try:
            yield stage
            folder.mkdir(exist_ok=True)
            for name in _earlier(folder) or []:
                (folder / name).unlink(missing_ok=True) if name != PACKAGE else shutil.rmtree(folder / name, True)
            with contextlib.suppress(OSError):  # removes a folder of the earlier export only if it is empty now
                (folder / "onnx").rmdir()
            for path in sorted(stage.iterdir(), key=lambda path: path.name == MANIFEST):  # the manifest is moved last
                path.replace(folder / path.name)
        finally:
            shutil.rmtree(stage, ignore_errors=True)
