"""Reads the inputs of commands that work on a single model: the model, its weights and tokenizer, and the text."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from chipwise.core.arrays import AnyArray
from chipwise.core.files import build, read_mapping, read_yaml
from chipwise.deploy.export.hf import load_pretrained
from chipwise.deploy.export.tokenizer_files import added_tokens
from chipwise.errors import DataError, InputError, SpecError, UnknownName
from chipwise.model.arch.arch import ArchSpec
from chipwise.model.published.families import without_folder
from chipwise.model.published.read import resolve
from chipwise.training.data.text import SOURCES, DataSpec, files_of, usual_division
from chipwise.training.data.tokenizer import SEPARATOR, load_tokenizer

_OF_A_TRAINED_MODEL = ("*.safetensors.index.json", "*.bin", "*.h5", "*.gguf", "tokenizer.json")


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """A model to train: its architecture, and its weights and tokenizer if there are any."""

    arch: ArchSpec
    weights: Mapping[str, AnyArray] | None = None
    tokenizer: Path | None = None

    def trained(self) -> tuple[Mapping[str, AnyArray], Path]:
        """The model's weights and its tokenizer file.

        Raises:
            InputError: The model has no weights.
        """
        if self.weights is None or self.tokenizer is None:
            raise InputError(f"{self.arch.name} has no trained weights")
        return self.weights, self.tokenizer


def read_origin(spec: str | Path) -> Origin:
    """Reads the model ``spec``, with weights and tokenizer if its folder has them.

    Raises:
        InputError: The model cannot be read, or its tokenizer lacks the separator token that chipwise needs.
    """
    folder = Path(spec)
    if not has_weights(folder):
        return Origin(arch=resolve_untrained(spec))
    arch, weights = load_pretrained(folder)
    path = folder / "tokenizer.json"
    if not path.exists():
        raise SpecError("tokenizer.json is missing, which a model with weights needs", file=str(folder))
    special = {token.content: token.id for token in added_tokens(read_mapping(path), file=str(path))}
    if special.get(SEPARATOR) != 0:
        raise InputError(f"{path}: must have the token {SEPARATOR!r} as token 0, which separates texts")
    load_tokenizer(path)  # an error in a broken file then names this file, not the training run's copy of it
    return Origin(arch=arch, weights=weights, tokenizer=path)


def has_weights(folder: Path) -> bool:
    """Whether ``folder`` exists and contains weights."""
    return folder.is_dir() and any(folder.glob("model*.safetensors"))


def resolve_untrained(spec: str | Path) -> ArchSpec:
    """The architecture of a model that is trained from scratch.

    Raises:
        InputError: The model cannot be read, or a folder should have weights (as its other files show) but has none.
    """
    folder = Path(spec)
    beside = sorted(path.name for pattern in _OF_A_TRAINED_MODEL for path in folder.glob(pattern))
    if beside and (folder / "config.json").exists():
        raise SpecError(
            f"its weights (model.safetensors) are missing, although {beside[0]} is there; fetch them as safetensors, "
            f"or give {folder / 'config.json'} to start from random weights",
            file=str(folder),
        )
    return resolve(spec)


def require_weights(model: str | Path, *, purpose: str) -> Path:
    """Checks that ``model`` is a folder with weights and tokenizer, but does not read them; returns the folder.

    Raises:
        InputError: There is no such folder, or weights or tokenizer are missing in it.
    """
    folder = Path(model)
    if not has_weights(folder) or not (folder / "tokenizer.json").is_file():
        what = "is a model without trained weights" if folder.exists() else without_folder(str(model))
        raise InputError(
            f"{model}: {what}; {purpose} needs a folder with weights and tokenizer (config.json, model.safetensors, "
            "tokenizer.json), such as a winner's"
        )
    return folder


def check_inputs(spec: str | Path, data: Sequence[str | Path] | Mapping[str, object]) -> None:
    """Checks for missing files and unknown names before any training library is loaded.

    Raises:
        InputError: The model or the text cannot be read.
    """
    if not has_weights(Path(spec)):
        resolve_untrained(spec)
    wanted, base = data_spec(data)
    for pattern in wanted.paths:
        path = base / Path(pattern).expanduser()
        if not any(sign in pattern for sign in "*?[") and not path.exists():
            raise SpecError("there is no such file; correct --data", file=str(path))


def data_spec(data: Sequence[str | Path] | Mapping[str, object]) -> tuple[DataSpec, Path]:
    """Converts ``data`` to a text source and its base folder; chooses how to divide text files into entries.

    Raises:
        SpecError: A run file has no ``data``, or a field is wrong.
    """
    if isinstance(data, Mapping):
        return build(DataSpec, data, field="data"), Path()
    names = [str(item) for item in ([data] if isinstance(data, str | Path) else data)]
    if len(names) == 1 and names[0].endswith((".yaml", ".yml")):
        held = read_yaml(names[0]).get("data")
        if held is None:
            raise SpecError("is missing; add it, or name text files or a source instead", file=names[0], field="data")
        return build(DataSpec, held, field="data", file=names[0]), Path(os.path.realpath(names[0])).parent
    if len(names) == 1 and names[0] in SOURCES.names():
        return DataSpec(source=names[0]), Path()
    if len(names) == 1 and not any(sign in names[0] for sign in "./*?[\\") and not Path(names[0]).exists():
        raise UnknownName("text source", names[0], [*SOURCES.names(), "or text files, or a run file"])
    try:
        division = usual_division(files_of(names, Path()))
    except DataError:  # reported when the text is read
        division = "blank-lines"
    return DataSpec(source="files", paths=tuple(names), entries=division), Path()
