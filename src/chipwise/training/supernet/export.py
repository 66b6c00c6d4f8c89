"""Extracts one sub-model from trained shared weights as a model folder for other commands."""

from __future__ import annotations

from pathlib import Path

from chipwise.core.files import read_mapping
from chipwise.deploy.export.hf import save_pretrained
from chipwise.errors import SpecError
from chipwise.model.arch.arch import ArchSpec
from chipwise.model.arch.io import from_data
from chipwise.training.loop.evaluate import checked, read
from chipwise.training.supernet.sliced import extract


def export_subnetwork(
    folder: str | Path, arch: ArchSpec, out: str | Path, *, tokenizer: str | Path | None = None
) -> Path:
    """Extracts ``arch`` from the shared weights in ``folder`` and writes it as a Hugging Face folder.

    Args:
        folder: Folder with finished trainings of shared weights; the one with most tokens is used.
        arch: The model to extract; it must be a sub-model of the supernet.
        out: The folder to write.
        tokenizer: A ``tokenizer.json`` of the model's vocabulary; the output has none unless given.

    Raises:
        SpecError: There is no finished training, or ``arch`` is not a sub-model; the message names the field.
        InputError: The weights cannot be read.
    """
    whole, weights = trained(folder)
    if tokenizer is not None and not Path(tokenizer).is_file():
        raise SpecError("there is no such file", file=str(tokenizer))
    held = checked(read(weights), whole)
    return save_pretrained(arch, extract(arch, whole, held), None if tokenizer is None else Path(tokenizer), out)


def trained(folder: str | Path) -> tuple[ArchSpec, Path]:
    """The supernet of a finished training of shared weights, and the file of its weights.

    Raises:
        SpecError: There is none, or an earlier version wrote it, which did not store the supernet's architecture.
    """
    home, best = Path(folder), None
    for path in sorted(home.glob("result-*.json")):
        found = read_mapping(path)
        weights = path.with_name(path.name.replace("result-", "weights-", 1)).with_suffix(".safetensors")
        tokens = found.get("tokens")
        if not weights.is_file() or not isinstance(tokens, int):
            continue
        if "whole" not in found:
            raise SpecError(
                "these shared weights were trained by an earlier version, which did not store their architecture; "
                "train them again",
                file=str(path),
                field="whole",
            )
        if best is None or tokens > best[0]:
            best = tokens, from_data(found["whole"], file=str(path)), weights
    if best is None:
        raise SpecError("contains no finished training of shared weights (quality: supernet)", file=str(home))
    return best[1], best[2]
