"""A model with its weights and tokenizer, from a Hugging Face folder or a GGUF file."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from chipwise.core.arrays import Float32Array
from chipwise.core.files import read_mapping, write_json
from chipwise.deploy.export import converted
from chipwise.deploy.export.gguf import export as export_gguf
from chipwise.deploy.export.gguf import layout
from chipwise.deploy.export.gguf_read import GgufFile, read_weights
from chipwise.deploy.export.gguf_tokenizer import GgufTokenizer, gguf_tokenizer, hugging_face_files
from chipwise.deploy.export.hf import load_pretrained, save_pretrained
from chipwise.deploy.export.tokenizer_files import TOKENIZER, read_tokenizer
from chipwise.errors import SpecError, Unsupported
from chipwise.model.arch.arch import ArchSpec
from chipwise.model.arch.design import Design
from chipwise.model.blocks.quantize import NEAREST, Packing
from chipwise.model.kinds.table import form_of
from chipwise.model.published.families import without_folder
from chipwise.model.published.write import family_of
from chipwise.model.walk.built import require_built

COMPRESSED = "compressed-tensors"
FORMATS = {
    "gguf": ("fp32", "fp16", "bf16", "int8", "int4"),
    "onnx": ("fp32", "int8", "int4"),
    "openvino": ("fp32", "int8", "int4"),
    **converted.FORMATS,
    "transformers.js": ("fp32", "int8", "int4"),
    "hf": ("fp32",),
    COMPRESSED: ("fp8", "int4"),
}
"""Weight formats that can be written, by file format."""
ALIASES = {"q8_0": "int8", "q4_0": "int4 head:int8", "f16": "fp16", "f32": "fp32"}
"""llama.cpp's format names; its Q4_0 files store the head in 8 bits."""
_LABELS = ("id2label", "label2id", "labels")  # fields of a config that name classes
_BESIDE = (  # files of a folder about preprocessing and the meaning of outputs
    *("preprocessor_config.json", "words.json", "front_end.json", "vocab.json", "items.json", "quantiles.json"),
    "sampler.py",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A model that was read, to be written in another format."""

    path: Path
    arch: ArchSpec
    weights: Mapping[str, Float32Array]
    tokenizer: Path | GgufTokenizer | None

    @classmethod
    def read(cls, model: str | Path) -> Source:
        """The model at ``model``, a Hugging Face folder or a GGUF file.

        Raises:
            SpecError: ``model`` is neither, or a file of it is missing or damaged.
            Unsupported: The family or a weight type is not supported.
            MissingExtra: The package ``gguf`` is not installed.
        """
        path = Path(model)
        if path.suffix == ".gguf":
            arch, weights = read_weights(path)
            return cls(
                path=path,
                arch=arch,
                weights=weights,
                tokenizer=GgufTokenizer.of_fields(GgufFile.open(path).fields, file=str(path)),
            )
        if not (path / "config.json").is_file():
            raise SpecError(
                f"{without_folder(str(model))}; give a run, a Hugging Face folder with weights or a .gguf file",
                file=str(model),
            )
        arch, weights = load_pretrained(path)
        tokenizer = path / TOKENIZER
        return cls(path=path, arch=arch, weights=weights, tokenizer=tokenizer if tokenizer.is_file() else None)


def holding(arch: ArchSpec) -> list[str]:
    """File formats that can represent a model of this architecture, from ``FORMATS``."""
    with suppress(Unsupported):
        require_built(arch, work="exported")
        form = form_of(arch)
        found = ["onnx"] if form.modelling is None else ["hf", "onnx"]
        with suppress(Unsupported):
            layout(arch)
            found.append("gguf")
        if arch.causal and arch.head.writes and not any(layer.convs for layer in arch.layers):
            found.append("openvino")
        found.sort()
        for kind in converted.TITLES:
            with suppress(Unsupported):
                converted.check_blocks(arch, kind)
                found.append(kind)
        return found + ([COMPRESSED, "transformers.js"] if family_of(arch) is not None else [])
    return []


def check_held(arch: ArchSpec, kind: str) -> None:
    """Checks that the file format ``kind`` can represent all blocks of a model.

    Raises:
        Unsupported: The format cannot; the message names the block and the formats that can.
    """
    if kind in (possible := holding(arch)):
        return
    try:
        if kind in converted.TITLES:
            converted.check_blocks(arch, kind)
        layout(arch) if kind == "gguf" else require_built(arch, work="exported")
        why = f"{arch.name}: a {form_of(arch).name} cannot be written as {kind}"
    except Unsupported as error:
        why = str(error)
    others = " or ".join(f"--to {each}" for each in possible)
    raise Unsupported(f"{why}; use {others}" if others else why)


def write_gguf(source: Source, design: Design, folder: Path, packing: Packing = NEAREST) -> tuple[list[str], list[str]]:
    """Writes ``model.gguf``; returns its name and remarks on the tokenizer."""
    notes, tokenizer = [], source.tokenizer
    if isinstance(tokenizer, Path):
        try:
            tokenizer = gguf_tokenizer(tokenizer, vocab_size=design.arch.vocab_size, max_tokens=design.arch.max_tokens)
        except Unsupported as error:
            notes.append(f"no tokenizer in the file, so llama.cpp takes no text: {error}")
            tokenizer = None
    elif tokenizer is None:
        alone = source.path.is_dir() and (source.path / "tokenizer.model").is_file()
        why = "it has only tokenizer.model; tokenizer.json is needed" if alone else "it has no tokenizer.json"
        notes.append(f"no tokenizer in the file, so llama.cpp takes no text: {source.path}: {why}")
    export_gguf(design, source.weights, folder / "model.gguf", tokenizer=tokenizer, packing=packing)
    return ["model.gguf"], notes


def write_onnx(source: Source, design: Design, folder: Path, packing: Packing = NEAREST) -> tuple[list[str], list[str]]:
    """Writes ``model.onnx`` and the tokenizer; copies the source folder's files that describe inputs and outputs."""
    from chipwise.deploy.export.onnx import export

    export(design, source.weights, folder / "model.onnx", packing=packing, external_data=True)
    names = ("model.onnx", "model.onnx.data")
    return _with_tokenizer(source, folder, [name for name in names if (folder / name).is_file()])


def write_converted(
    source: Source, design: Design, folder: Path, packing: Packing = NEAREST, *, kind: str
) -> tuple[list[str], list[str]]:
    """Converts the model with ``converted.py``; adds the same files as :func:`write_onnx`."""
    target = folder / converted.FILES[kind]
    converted.convert(design, source.weights, target, kind=kind, packing=packing)
    paths = target.rglob("*") if target.is_dir() else [target]
    names = sorted(path.relative_to(folder).as_posix() for path in paths if path.is_file())
    return _with_tokenizer(source, folder, names)


def _with_tokenizer(source: Source, folder: Path, names: list[str]) -> tuple[list[str], list[str]]:
    """Adds the tokenizer and the source's files that describe inputs and outputs.

    Returns:
        ``names`` and the names of the added files, and remarks on the tokenizer.
    """
    extra, arch, tokenizer = _beside(source), source.arch, source.tokenizer
    notes: list[str] = []
    if isinstance(tokenizer, Path):
        extra |= read_tokenizer(tokenizer, max_tokens=arch.max_tokens, encoder=form_of(arch).gives == "mean").files
    elif tokenizer is not None:
        held, notes = _converted_tokenizer(source.path, tokenizer, arch)
        extra |= {name: json.dumps(data).encode() for name, data in held.items()}
    for name, content in extra.items():
        (folder / name).write_bytes(content)
    return [*names, *extra], notes


def write_hf(source: Source, design: Design, folder: Path, packing: Packing = NEAREST) -> tuple[list[str], list[str]]:
    """Writes a Hugging Face folder with the tokenizer and the source's files that describe inputs and outputs.

    The folder must be empty.
    """
    notes: list[str] = []
    with tempfile.TemporaryDirectory() as scratch:
        tokenizer = source.tokenizer
        if isinstance(tokenizer, GgufTokenizer):
            files, notes = _converted_tokenizer(source.path, tokenizer, design.arch)
            for name, data in files.items():
                write_json(Path(scratch) / name, data)
            tokenizer = Path(scratch) / TOKENIZER if files else None
        save_pretrained(design.arch, source.weights, tokenizer, folder, _beside(source))
    if source.path.is_dir():
        held = read_mapping(source.path / "config.json")
        labels = {name: held[name] for name in _LABELS if name in held}
        if labels:
            write_json(folder / "config.json", read_mapping(folder / "config.json") | labels)
    return sorted(path.name for path in folder.iterdir()), notes


def _converted_tokenizer(
    path: Path, tokenizer: GgufTokenizer, arch: ArchSpec
) -> tuple[Mapping[str, object], list[str]]:
    """A GGUF file's tokenizer as files of a Hugging Face folder, by name; if it cannot be converted, a remark."""
    try:
        return hugging_face_files(tokenizer, max_tokens=arch.max_tokens), []
    except Unsupported as error:
        return {}, [f"no tokenizer in the folder: {path}: {error}"]


def _beside(source: Source) -> dict[str, bytes]:
    if not source.path.is_dir():
        return {}
    return {name: (source.path / name).read_bytes() for name in _BESIDE if (source.path / name).is_file()}


Writer = Callable[[Source, Design, Path, Packing], tuple[list[str], list[str]]]
