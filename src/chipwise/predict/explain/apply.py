"""Applies advice: writes the changed model as a file that other tools read."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from chipwise.core.files import check_output, read_json, write_json
from chipwise.errors import ChipwiseError, InputError, Unsupported
from chipwise.model.arch import io as spec_io
from chipwise.model.arch.arch import ArchSpec
from chipwise.model.published.read import from_config
from chipwise.model.published.write import to_config
from chipwise.predict.explain.advice import Advice
from chipwise.predict.explain.question import Case


def apply(case: Case, advice: Advice, out: str | Path, *, original: str | None = None) -> str:
    """Writes the changed model to ``out``; returns the kind of file.

    The file is a Hugging Face config, with the original's unchanged fields, if transformers can compute the changed
    model; otherwise it is a chipwise spec file.

    Args:
        case: The explained case.
        advice: The advice to apply.
        out: The file.
        original: The model's original config.json or its folder, if there is one.

    Raises:
        InputError: The advice does not change the architecture; the message says how to apply it.
        StorageError: ``out`` cannot be written.
    """
    check_output(out)
    arch = advice.proposal.changed.arch
    if arch == case.arch:
        raise InputError(
            f"“{advice.proposal.title}” changes nothing in the model's config; to apply it: {advice.proposal.how}"
        )
    config = _config(arch, original)
    if config is None:
        write_json(out, spec_io.to_data(arch))
        return "chipwise spec"
    write_json(out, config)
    return "Hugging Face config"


def _config(arch: ArchSpec, original: str | None) -> dict[str, object] | None:
    """A Hugging Face config that reads back as ``arch``; None if there is none."""
    try:
        new = to_config(arch)
    except Unsupported:
        return None
    known = _read(original)
    if known.get("model_type") == new["model_type"] and _same(known | new, arch):
        return known | new
    return new if _same(new, arch) else None


def _read(original: str | None) -> dict[str, object]:
    if original is None or not Path(original).exists():
        return {}
    path = Path(original)
    found = read_json(path / "config.json" if path.is_dir() else path)
    return found if isinstance(found, dict) else {}


def _same(config: Mapping[str, object], arch: ArchSpec) -> bool:
    try:
        return from_config(dict(config)).digest == arch.digest
    except ChipwiseError:
        return False
