"""Extracts one sub-network of trained shared weights as a separate model folder for other commands."""

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
    """Cuts ``arch`` out of the shared weights in ``folder`` and writes it as a Hugging Face folder.

    Args:
        folder: Folder of a finished training of shared weights; of several, the one with most tokens is used.
        arch: The model to cut out; it must fit into the one that holds all.
        out: The folder to write.
        tokenizer: A ``tokenizer.json`` of the model's vocabulary; left out unless given.

    Raises:
        SpecError: There is no finished training, or ``arch`` does not fit into its model; the field is named.
        InputError: The weights cannot be read.
    """
    whole, weights = trained(folder)
    if tokenizer is not None and not Path(tokenizer).is_file():
        raise SpecError("there is no such file", file=str(tokenizer))
    held = checked(read(weights), whole)
    return save_pretrained(arch, extract(arch, whole, held), None if tokenizer is None else Path(tokenizer), out)


def trained(folder: str | Path) -> tuple[ArchSpec, Path]:
    """The model that holds all of a finished training of shared weights, and the file of its weights.

    Raises:
        SpecError: There is none, or it is of an earlier version, which did not write down the model.
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
                "these shared weights were trained by an earlier version, which did not write down their model; train "
                "them again",
                file=str(path),
                field="whole",
            )
        if best is None or tokens > best[0]:
            best = tokens, from_data(found["whole"], file=str(path)), weights
    if best is None:
        raise SpecError("holds no finished training of shared weights (quality: supernet)", file=str(home))
    return best[1], best[2]
