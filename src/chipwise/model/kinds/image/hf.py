"""Image classifiers in Hugging Face folders for transformers' own classes ViT and DeiT."""

from __future__ import annotations

from collections.abc import Callable

from chipwise.model.arch.arch import ArchSpec
from chipwise.model.kinds.form import Checkpoint, HfFolders, Reader, Tensors
from chipwise.model.kinds.image.form import CLASSIFIER
from chipwise.model.kinds.image.hf_deit import from_deit
from chipwise.model.kinds.image.hf_vit import from_vit, is_vit, to_vit, vit_config
from chipwise.model.kinds.question.question import image_of


def _write(arch: ArchSpec, weights: Tensors) -> tuple[dict[str, object], Tensors] | None:
    return (vit_config(arch), to_vit(arch, image_of(arch.stem), weights)) if is_vit(arch) else None


def _reader(named: Callable[[ArchSpec, Tensors], Tensors]) -> Reader:
    def read(arch: ArchSpec, held: Checkpoint) -> tuple[ArchSpec, Tensors]:
        CLASSIFIER.require(arch, work="loaded with its weights")
        return arch, named(arch, dict(held.tensors))

    return read


FOLDERS = HfFolders(write=_write, readers={"deit": _reader(from_deit), "vit": _reader(from_vit)})
