"""Writing a model as files that other programs load, and checking that they compute the same."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import chipwise
from chipwise.core import units
from chipwise.core.arguments import public
from chipwise.core.digest import plain
from chipwise.core.files import read_json, storage, write_json
from chipwise.core.results import Result
from chipwise.deploy.export import parity
from chipwise.deploy.export.exporters import check_memory
from chipwise.deploy.export.layer_groups import LayerGroup, groups_of, groups_of_gguf
from chipwise.deploy.export.parity import Parity
from chipwise.deploy.export.sources import ALIASES, FORMATS, WRITERS, Source, check_held
from chipwise.deploy.runtimes import llama_server
from chipwise.design.run.folder import holds_run
from chipwise.design.run.winner import read_winner
from chipwise.errors import ChipwiseError, InputError, MissingExtra, StudyError, UnknownName, short
from chipwise.model.arch.design import Design
from chipwise.model.arch.formats import renamed

Kind = Literal["gguf", "onnx", "hf"]
MANIFEST, SCHEMA = "export.json", "chipwise.export/1"
USUAL = {"gguf": "fp16", "onnx": "fp32", "hf": "fp32"}  # formats where a model has none of its own
_OTHER_NAMES = {"ollama": "gguf", "llama.cpp": "gguf", "huggingface": "hf", "transformers": "hf", "onnxruntime": "onnx"}


@dataclass(frozen=True, repr=False)
class Exported(Result):
    """The written files: formats by part, and the checks. ``export.json`` beside them has the same."""

    folder: Path
    to: str
    source: str
    name: str
    weights: str
    files: Mapping[str, int]  # bytes by name
    groups: tuple[LayerGroup, ...]
    verified: tuple[Parity, ...] = ()
    sample: str = ""  # of the text that llama.cpp writes with the file
    notes: tuple[str, ...] = ()

    @property
    def bytes(self) -> int:
        """Total size of all files."""
        return sum(self.files.values())

    def headline(self) -> str:
        """The model, its size and format, and the folder."""
        return f"{self.name} as {self.to} in {self.weights}: {units.show(self.bytes, 'bytes')} in {self.folder}"

    def rows(self) -> list[Mapping[str, object]]:
        """One row for each part of the model."""
        return [dict(plain(group)) for group in self.groups]

    def to_dict(self) -> dict[str, Any]:
        """Everything that the result holds, as plain values."""
        return {**plain(self), "folder": str(self.folder)}


@public
def export(
    model: str | Path,
    *,
    to: str,
    weights: str | None = None,
    out: str | Path | None = None,
    verify: bool = True,
) -> Exported:
    """Writes a model with its weights as GGUF, ONNX or a Hugging Face folder, and compares it with torch.

    Args:
        model: A run's folder (its winner is written), a winner's folder, a Hugging Face folder with weights, or a
            ``.gguf`` file.
        to: ``gguf`` (llama.cpp, Ollama), ``onnx`` (ONNX Runtime) or ``hf`` (transformers).
        weights: Weight format: ``fp32``, ``fp16``, ``bf16``, ``int8`` or ``int4``, as far as the files have it; for
            GGUF also ``q8_0`` and ``q4_0``; or one for each layer and the head (``int4/int8 head:int8``). Default: a
            winner's own, else fp16 for GGUF and fp32 for the others.
        out: Folder to write: a new one, an empty one or an earlier export. Default: ``NAME-TO`` here, or
            ``RUN/export-TO`` for a run.
        verify: Whether to run the files and compare their outputs with those of torch.

    Raises:
        InputError: The model or the format is unknown, or the folder holds something else.
        StudyError: The run has no winner yet.
        Unsupported: The files cannot hold a block of the model; the message says which can.
        MissingExtra: A package is not installed.
        StorageError: The disk refused.
    """
    kind = _kind(to)
    place = _model_of(Path(model))
    folder = Path(out) if out is not None else _usual_folder(Path(model), kind)
    _check_folder(folder, place)
    winner = read_winner(place) if place.is_dir() else None
    chosen = _weights(kind, weights, None if winner is None else winner.design.weights)
    source = Source.read(place)
    design = _design(source, chosen, None if winner is None else winner.design)
    check_held(design.arch, kind)
    with _staged(folder) as stage:
        files, notes = WRITERS[kind](source, design, stage)
        sizes = {name: (stage / name).stat().st_size for name in files}
        groups = groups_of_gguf(stage / files[0]) if kind == "gguf" else groups_of(design)
        verified, sample, why = _verified(kind, source, design, stage, notes) if verify else ([], "", [])
        found = Exported(
            folder=folder,
            to=kind,
            source=str(model),
            name=design.arch.name,
            weights=design.weights,
            files=sizes,
            groups=tuple(groups),
            verified=tuple(verified),
            sample=sample,
            notes=(*notes, *why),
        )
        write_json(stage / MANIFEST, {"schema": SCHEMA, "version": chipwise.__version__, **found.to_dict()})
    return found


def _kind(to: str) -> str:
    kinds = tuple(USUAL)
    kind = _OTHER_NAMES.get(to.strip().lower(), to.strip().lower())
    if kind not in kinds:
        raise InputError(f"to (--to): nothing is exported as {short(to)}; known: {', '.join(kinds)}")
    return kind


def _model_of(path: Path) -> Path:
    """The folder or file with the weights: of a run its winner's."""
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
    """Refuses a folder that holds files of other origin, before anything is read."""
    if folder.exists() and not folder.is_dir():
        raise InputError(f"out (--out): {folder} is a file; give a folder")
    if folder.is_dir() and source.exists() and folder.resolve() == source.resolve():
        raise InputError(f"out (--out): {folder} is the model itself; give another folder")
    if folder.is_dir() and any(folder.iterdir()) and _earlier(folder) is None:
        raise InputError(f"out (--out): {folder} is not empty and holds no earlier export; give a new folder")


def _earlier(folder: Path) -> list[str] | None:
    """The names of an earlier export's files; None where there was none."""
    path = folder / MANIFEST
    held = read_json(path) if path.is_file() else None
    if not isinstance(held, dict) or held.get("schema") != SCHEMA or not isinstance(held.get("files"), dict):
        return None
    return [MANIFEST, *(name for name in held["files"] if Path(name).name == name)]


def _weights(kind: str, given: str | None, own: str | None) -> str:
    """The weight format, under chipwise's names.

    Raises:
        InputError: There is none of that name, or ``kind`` does not have it.
    """
    if given is None and own is not None and kind != "hf":
        return own
    wanted = USUAL[kind] if given is None else given.strip().lower()
    wanted = ALIASES.get(wanted, wanted) if kind == "gguf" else wanted
    also = [name for name in ALIASES if kind == "gguf"]

    def known(name: str) -> str:
        if name not in FORMATS[kind]:
            able = [f"--to {other}" for other, names in FORMATS.items() if name in names]
            where = f"; {' and '.join(able)} can" if able else ""
            has = ", ".join((*FORMATS[kind], *also))
            raise InputError(f"weights (--weights): {kind} is not written in {short(name)}{where}; it has {has}")
        return name

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
    """Summarises the comparison, an example text, and the reason if nothing was compared."""
    arch, held = design.arch, source.weights

    def words() -> list[int] | None:
        return parity.tokens_of(source.tokenizer) if isinstance(source.tokenizer, Path) else None

    checks: Mapping[str, Callable[[], tuple[list[Parity], str]]] = {
        "gguf": lambda: parity.gguf_parity(folder / "model.gguf", design, held),
        "onnx": lambda: ([parity.onnx_parity(folder / "model.onnx", arch, held, words())], ""),
        "hf": lambda: ([parity.transformers_parity(folder, arch, held, words())], ""),
    }
    if kind == "gguf" and not llama_server.available():
        return [], "", ["not verified: pip install 'chipwise[all]' brings llama.cpp (xllamacpp)"]
    if kind == "gguf" and notes:
        return [], "", ["not verified: llama.cpp runs no file without a tokenizer"]
    try:
        return *checks[kind](), []
    except MissingExtra as error:
        return [], "", [f"not verified: {error}"]
    except ChipwiseError as error:
        return [], "", [f"not verified: {parity.reason(error)}"]


@contextlib.contextmanager
def _staged(folder: Path) -> Iterator[Path]:
    """A temporary folder beside ``folder``, which replaces it at the end; files of an earlier export are removed."""
    stage = folder.with_name(f".{folder.name}.{os.getpid()}")
    with storage(folder):
        stage.mkdir(parents=True)
        try:
            yield stage
            folder.mkdir(exist_ok=True)
            for name in _earlier(folder) or []:
                (folder / name).unlink(missing_ok=True)
            for path in sorted(stage.iterdir(), key=lambda path: path.name == MANIFEST):  # the manifest last
                path.replace(folder / path.name)
        finally:
            shutil.rmtree(stage, ignore_errors=True)
