"""Checks whether chipwise can export or train a model.

chipwise also predicts the costs of models that it can neither export nor train.
"""

from __future__ import annotations

from chipwise.errors import InputError, Unsupported
from chipwise.model.arch.arch import ArchSpec
from chipwise.model.kinds.form import Form
from chipwise.model.kinds.table import form_of


def require_built(arch: ArchSpec, *, work: str, lowered: bool = False) -> None:
    """Checks that chipwise can export ``arch`` or, if ``lowered``, that it can list its operators.

    Args:
        arch: The model.
        work: The requested action, for the error message ("measured").
        lowered: Whether only the operators are needed, not an exported file.

    Raises:
        Unsupported: chipwise cannot do this; the message says why, and what works instead.
    """
    if arch.encoder:
        raise Unsupported(
            f"{arch.name} cannot be {work}: a decoder that attends to an encoder is not supported; chipwise estimate "
            "can still predict its cost"
        )
    form_of(arch).require(arch, work=work, lowered=lowered)


def task_of(arch: ArchSpec) -> str | None:
    """The task whose data can train ``arch``; None if chipwise does not train such models."""
    form = form_of(arch)
    return form.task(arch) if form.task is not None and form.builds(arch) else None


def require_trained(arch: ArchSpec, *, task: str) -> None:
    """Checks that chipwise can train ``arch`` on data of ``task``.

    Raises:
        InputError: ``arch`` needs data of a different task.
        Unsupported: chipwise cannot train ``arch``; the message says why, and what works instead.
    """
    fitting = task_of(arch)
    if fitting == task or (fitting == "text" and task == "series") or (fitting in _IMAGES and task in _IMAGES):
        return
    if fitting is not None:
        if fitting == "text":
            raise InputError(f"{arch.name} reads text: name text files, or a run file of a text task, with --data")
        raise InputError(
            f"{arch.name} {form_of(arch).does(arch)}: name a run file of the task {fitting} with --data {fitting}.yaml "
            f"(chipwise init {fitting} writes one)"
        )
    form = form_of(arch)
    raise Unsupported(f"{arch.name} cannot be trained: {_untrained(arch, form)}; {_instead(arch, form)}")


_IMAGES = ("vision", "speech")  # their models differ only in sizes, which the task compares


def _untrained(arch: ArchSpec, form: Form) -> str:
    """Why chipwise cannot train ``arch``."""
    if arch.towers:
        return "chipwise does not train a tower and a decoder together"
    if arch.encoder:
        return "a decoder that attends to an encoder is not supported"
    return form.untrained or next(form.departures(arch), "no task of chipwise trains such models")


def _instead(arch: ArchSpec, form: Form) -> str:
    """The commands that work for ``arch``, for the error message."""
    if arch.encoder or not form.builds(arch):
        return "chipwise estimate can still predict its cost"
    return "chipwise measure times it, and chipwise estimate predicts its cost"
