"""Hugging Face folders: writes and reads models that transformers' auto classes load.

If transformers has code for a model (mostly Llama's, also BERT's and ViT's), the folder uses that code. Otherwise the
folder includes a modelling file: ``modeling_chipwise.py``, or the one for its kind of model. ``auto_map`` in the config
names this file, and transformers loads it with ``trust_remote_code=True``. It imports ``chipwise_blocks.py``, which is
also in the folder.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from chipwise.core.arrays import AnyArray, Float32Array
from chipwise.core.files import read_mapping, write_atomic, write_json
from chipwise.deploy.export.tokenizer_files import read_tokenizer
from chipwise.errors import SpecError, Unsupported
from chipwise.model.arch.arch import ArchSpec
from chipwise.model.arch.ends import Classes
from chipwise.model.arch.io import to_data
from chipwise.model.kinds import table
from chipwise.model.kinds.form import Checkpoint, Modelling, Reader
from chipwise.model.kinds.image.hf_vit import labels_of
from chipwise.model.kinds.sound.stem import Ctc
from chipwise.model.kinds.table import KINDS, form_of
from chipwise.model.published.families import without_folder
from chipwise.model.published.read import OWN_TYPE, read_config
from chipwise.model.walk.built import require_built
from chipwise.model.walk.weights import weight_shapes

if TYPE_CHECKING:
    from torch import Tensor


_SHARED = "chipwise_blocks"  # module that the modelling files import
# Buffers that old files store.
_BUFFERS = (".rotary_emb.inv_freq", ".attn.bias", ".attn.masked_bias", "embeddings.position_ids")
CUT = ("bert", "gpt2", "llama", "mistral", "qwen2", "qwen3", OWN_TYPE)  # text families that shrink can prune
_FOLDERS = [folders for form in KINDS if (folders := form.hf_folders()) is not None]
READERS: Mapping[str, Reader] = {family: read for each in _FOLDERS for family, read in each.readers.items()}
LOADED = (*CUT, *sorted(set(READERS) - set(CUT)))  # families whose weight names are known
_NEEDED = {"config.json": "config.json", "weights as safetensors": "*.safetensors", "tokenizer.json": "tokenizer.json"}


def save_pretrained(
    arch: ArchSpec,
    weights: Mapping[str, AnyArray | Tensor],
    tokenizer_path: Path | None,
    folder: str | Path,
    extra_files: Mapping[str, str | bytes] | None = None,
) -> Path:
    """Writes ``arch`` with ``weights`` (named as the torch module's state dict) to ``folder``.

    Args:
        arch: The architecture.
        weights: Every weight; stored in FP32.
        tokenizer_path: The tokenizer file, or None. A ``tokenizer.json`` in a Hugging Face folder is copied with its
            settings: special tokens, generation settings and chat template.
        folder: Created if missing; files of the same names are replaced.
        extra_files: Contents of additional files, by name.

    Raises:
        SpecError: A weight is missing, unknown, or has the wrong shape.
        StorageError: The disk is full or refuses the file.
    """
    from safetensors.numpy import save

    target = Path(folder)
    arrays = _checked(arch, {name: _numpy(value, name) for name, value in weights.items()}, where="weights")
    folders = form_of(arch).hf_folders()
    if folders is not None and (theirs := folders.write(arch, arrays)) is not None:
        config, stored = theirs
    else:
        config, stored = _own_config(arch), arrays
        for file, code in _own_code(arch).items():
            write_atomic(target / file, code)
    config["dtype"] = "float32"
    if tokenizer_path is not None:
        encoder = form_of(arch).gives == "mean"
        tokenizer = read_tokenizer(Path(tokenizer_path), max_tokens=arch.max_tokens, encoder=encoder)
        config |= tokenizer.config_ids
        for name, held in tokenizer.files.items():
            write_atomic(target / name, held)
    write_atomic(target / "model.safetensors", save(dict(stored), metadata={"format": "pt"}))
    for name, content in (extra_files or {}).items():
        write_atomic(target / name, content)
    write_json(target / "config.json", config)  # written last: a folder with a config is complete
    return target


def modelling_of(arch: ArchSpec) -> Modelling:
    """The modelling file of ``arch``.

    Raises:
        Unsupported: chipwise has no modelling file for this kind of model.
    """
    form = form_of(arch)
    if form.modelling is None:
        raise Unsupported(f"{arch.name} cannot be saved: chipwise has no modelling file for a {form.name}")
    return form.modelling(arch)


def _own_code(arch: ArchSpec) -> dict[str, str]:
    """Maps names of files in the folder to their contents: the modelling file, and the module that it imports."""
    kinds, file = Path(table.__file__).parent, modelling_of(arch).file
    code = next(kinds.rglob(file)).read_text(encoding="utf-8")
    beside = code.replace(f"from {table.__package__}.{_SHARED}", f"from .{_SHARED}")
    return {file: beside, f"{_SHARED}.py": (kinds / f"{_SHARED}.py").read_text(encoding="utf-8")}


def _own_config(arch: ArchSpec) -> dict[str, object]:
    own = modelling_of(arch)
    module = own.file.removesuffix(".py")
    return {
        "architectures": [own.name],
        "model_type": OWN_TYPE,
        "auto_map": {"AutoConfig": f"{module}.ChipwiseConfig", own.auto: f"{module}.{own.name}"},
        "arch": to_data(arch),
        "vocab_size": arch.vocab_size,
        "hidden_size": arch.d_model,
        "num_hidden_layers": len(arch.layers),
        "max_position_embeddings": arch.max_tokens,
        "tie_word_embeddings": arch.tie_embeddings,
        **(labels_of(arch) if isinstance(arch.head, Classes | Ctc) else {}),
    }


def require_folder(source: Path, *, text: bool = True) -> None:
    """Checks that a folder has config, weights and tokenizer of a supported family, without reading the weights.

    Args:
        source: The folder.
        text: Whether the data for pruning are texts; if not, the folder needs no tokenizer.

    Raises:
        SpecError: The folder does not exist or lacks a file.
        Unsupported: The model's family is not supported.
    """
    if not source.is_dir():
        why = without_folder(str(source))
        raise SpecError(f"{why}; give a Hugging Face folder with config.json", file=str(source))
    path = source / "config.json"
    if text and path.exists() and _reads_no_text(read_mapping(path)):
        raise Unsupported(
            f"{source}: this model does not read text; name a run file of its task, whose data is used for cutting, "
            "such as --data vision.yaml"
        )
    needed = list(_NEEDED.items())[: None if text else -1]
    if lacking := [what for what, pattern in needed if not any(source.glob(pattern))]:
        raise SpecError(f"not a Hugging Face model that can be cut: it lacks {', '.join(lacking)}", file=str(source))
    config = read_mapping(source / "config.json")
    family = config.get("model_type")
    known = CUT if text else LOADED
    if family not in known:
        raise Unsupported(f"{source}: models of type {family!r} cannot be cut; those of {', '.join(known)} can")


def _reads_no_text(config: Mapping[str, object]) -> bool:
    """Whether a config describes an image or sound model; False if it cannot be read."""
    family = config.get("model_type")
    try:
        return not read_config(config).arch.vocab_size if family == OWN_TYPE else family in set(LOADED) - set(CUT)
    except SpecError:
        return False


def load_pretrained(folder: str | Path) -> tuple[ArchSpec, dict[str, Float32Array]]:
    """The architecture and the weights in ``folder`` (FP32, named as the torch module's state dict).

    Reads folders written by :func:`save_pretrained`, and folders of the families in ``model/published``.
    Only safetensors are opened, because pickled weights could run code.

    Raises:
        SpecError: A file or a weight is missing, unknown, or has the wrong shape.
        Unsupported: The config has an option that changes logits and is not supported, or the model's blocks or weights
            are not supported.
    """
    arch, weights = _opened(Path(folder), _numpy)
    return arch, _checked(arch, weights, where=str(folder))


class StreamedWeights(Mapping[str, Float32Array]):
    """The weights of a folder as FP32, each read on access, which raises SpecError if a value is not finite."""

    def __init__(self, held: Mapping[str, Tensor], where: str) -> None:
        self._held, self._where = held, where

    def __getitem__(self, name: str) -> Float32Array:
        return _finite(name, _numpy(self._held[name], f"{self._where}: {name}"), where=self._where)

    def __iter__(self) -> Iterator[str]:
        return iter(self._held)

    def __len__(self) -> int:
        return len(self._held)


def stream_pretrained(folder: str | Path) -> tuple[ArchSpec, StreamedWeights]:
    """Like :func:`load_pretrained`, for decoders with Llama's weight names; a weight is read when it is accessed.

    Raises:
        SpecError: As in :func:`load_pretrained`; for a weight that is not finite, when it is accessed.
        Unsupported: As in :func:`load_pretrained`, or the family's weights are not stored one by one (GPT-2).
    """
    if (family := read_mapping(Path(folder) / "config.json").get("model_type")) == "gpt2":
        raise Unsupported(
            f"{folder}: chipwise cannot write {family} models as GGUF, because their positions are learned"
        )
    arch, held = _opened(Path(folder), lambda value, what: value)
    _check_names(arch, held, where=str(folder))
    return arch, StreamedWeights(held, str(folder))


def _opened(source: Path, read: Callable[[Tensor, str], Any]) -> tuple[ArchSpec, dict[str, Any]]:
    """Returns the architecture, and the weights under chipwise's names, each converted by ``read``."""
    config = read_mapping(source / "config.json")
    reading = read_config(config, name=Path(os.path.realpath(source)).name, file=str(source / "config.json"))
    if reading.notes:
        raise Unsupported(
            f"{source}: chipwise cannot compute this model's logits from its weights: {'; '.join(reading.notes)}. "
            "Its costs can still be predicted and measured, from its config.json"
        )
    arch, family = reading.arch, config["model_type"]
    require_built(arch, work="loaded with its weights")
    if family not in LOADED:
        raise Unsupported(f"{source}: weights of {family} models cannot be read (those of {', '.join(LOADED)} can)")
    held = Checkpoint(config, _tensors(source, read), weight_shapes(arch))
    arch, found = (arch, dict(held.tensors)) if family == OWN_TYPE else READERS[family](arch, held)
    weights = dict(found)
    if arch.tie_embeddings:
        for name in ("lm_head.weight", "head.weight"):
            weights.pop(name, None)  # a second copy of the token table
    return arch, weights


def _tensors(folder: Path, read: Callable[[Tensor, str], Any]) -> Iterator[tuple[str, Any]]:
    """Yields the name and the value, converted by ``read``, of each weight in the folder's safetensors files."""
    from safetensors import SafetensorError, safe_open

    index = folder / "model.safetensors.index.json"
    if index.exists():
        places = read_mapping(index).get("weight_map")
        if not isinstance(places, dict) or not all(isinstance(name, str) for name in places.values()):
            raise SpecError("must name a file for each weight", file=str(index), field="weight_map")
        files = sorted({folder / name for name in places.values()})
    else:
        files = [folder / "model.safetensors"]
    for file in files:
        if file.parent != folder or not file.is_file():
            raise SpecError("there is no such file; weights are read from safetensors only", file=str(file))
        try:
            with safe_open(file, framework="pt") as opened:
                for name in opened.keys():  # noqa: SIM118  (not a mapping)
                    if not name.endswith(_BUFFERS):
                        yield name, read(opened.get_tensor(name), f"{file}: {name}")
        except (SafetensorError, OSError) as error:
            raise SpecError(f"not a complete safetensors file: {error}", file=str(file)) from None


def _numpy(value: AnyArray | Tensor, what: str) -> Float32Array:
    """Returns ``value``, an array or a tensor, as contiguous FP32; ``what`` names it in error messages."""
    if not isinstance(value, np.ndarray):
        if not value.is_floating_point():
            raise Unsupported(f"{what}: stored as {value.dtype}, which cannot be read; load the unquantised model")
        value = value.detach().cpu().float().numpy()
    return np.ascontiguousarray(value, dtype=np.float32)


def _checked(arch: ArchSpec, weights: Mapping[str, Float32Array], *, where: str) -> dict[str, Float32Array]:
    """``weights`` in the model's order, after checking that they are exactly the model's weights."""
    _check_names(arch, weights, where=where)
    return {name: _finite(name, weights[name], where=where) for name in weight_shapes(arch)}


def _check_names(arch: ArchSpec, weights: Mapping[str, Any], *, where: str) -> None:
    shapes = weight_shapes(arch)
    if missing := [name for name in shapes if name not in weights]:
        raise SpecError(f"{_few(missing)} missing", file=where)
    if unknown := [name for name in weights if name not in shapes]:
        raise SpecError(f"{_few(unknown)} not part of {arch.name}", file=where)
    for name, shape in shapes.items():
        if tuple(weights[name].shape) != shape:
            raise SpecError(f"{name} has shape {tuple(weights[name].shape)}, {arch.name} needs {shape}", file=where)


def _finite(name: str, values: Float32Array, *, where: str) -> Float32Array:
    if not np.isfinite(values).all():
        raise SpecError(f"{name} has values that are not finite (NaN or infinity)", file=where)
    return values


def _few(names: list[str]) -> str:
    shown = json.dumps(names[:3])[1:-1]
    return f"weights {shown} and {len(names) - 3} more are" if len(names) > 3 else f"weights {shown} are"
