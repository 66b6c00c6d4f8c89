"""Image classifiers in Hugging Face folders for transformers' own classes: ViT, Swin and DeiT."""

from __future__ import annotations

from collections.abc import Callable

from chipwise.model.arch.arch import ArchSpec
from chipwise.model.kinds.form import Checkpoint, HfFolders, Reader, Tensors
from chipwise.model.kinds.image.form import CLASSIFIER
from chipwise.model.kinds.image.hf_swin import from_deit, from_swin, swin_config, to_swin
from chipwise.model.kinds.image.hf_vit import from_vit, is_vit, to_vit, vit_config
from chipwise.model.kinds.question.question import image_of


def _write(arch: ArchSpec, weights: Tensors) -> tuple[dict[str, object], Tensors] | None:
    stem = image_of(arch.stem)
    if stem.stages:
        return swin_config(arch), to_swin(arch, stem, weights)
    return (vit_config(arch), to_vit(arch, stem, weights)) if is_vit(arch) else None


def _reader(named: Callable[[ArchSpec, Tensors], Tensors]) -> Reader:
    def read(arch: ArchSpec, held: Checkpoint) -> tuple[ArchSpec, Tensors]:
        CLASSIFIER.require(arch, work="loaded with its weights")
        return arch, named(arch, dict(held.tensors))

    return read


FOLDERS = HfFolders(
    write=_write, readers={"deit": _reader(from_deit), "swin": _reader(from_swin), "vit": _reader(from_vit)}
)
