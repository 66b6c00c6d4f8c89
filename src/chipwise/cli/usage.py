"""Reports wrong options and arguments in one line, like every other error."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import typer

from chipwise.errors import InputError, listed, nearest, short

UsageError: type[Exception] = next(kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "UsageError")
_PLAIN = (  # patterns of typer's messages, with chipwise's wording
    (r"Value error, ", ""),
    (r"Input should be greater than or equal to (\S+)", r"must be at least \1"),
    (r"Input should be less than or equal to (\S+)", r"must be at most \1"),
    (r"Input should be a valid integer.*|.* is not a valid int(eger)?\.?", "must be a whole number"),
    (r"Input should be a valid number.*|.* is not a valid float\.?", "must be a number"),
    (r"Input should be a finite number", "must be a finite number"),
    (r".* is not in the range x>=(\S+?)\.?", r"must be at least \1"),
    (r".* is not in the range x<=(\S+?)\.?", r"must be at most \1"),
    (r".* is not in the range (\S+)<=x<=(\S+?)\.?", r"must be from \1 to \2"),
    (r"Got unexpected extra arguments?(?:\(s\))? \((.*)\)", r"this command takes no further arguments: \1"),
    (r"Unable to parse input string as an integer, exceeded maximum size", "is too large"),
)
MOVED = {  # options of estimate that are now separate commands
    **dict.fromkeys(("--train", "--checkpoint", "--microbatches", "--zero"), "training-step"),
    **dict.fromkeys(("--height", "--width", "--frames", "--steps"), "pictures"),
    "--part": "parts",
    "--candidates": "candidates --counts",
    "--shards": "candidates",
}
OTHER_WORDS = {  # chipwise's commands, and what other tools call them
    "models": "info list ls",
    "devices": "chips gpus info list ls ps",
    "estimate": "calc cost memory predict price",
    "compare": "best diff recommend",
    "measure": "bench benchmark perf run",
    "search": "optimise optimize run tune",
    "explain": "optimise optimize profile why",
    "calibrate": "profile",
    "export": "convert gguf onnx save",
    "quantize": "int8 ptq quant quantise",
    "kit": "package",
    "shrink": "prune",
    "train": "finetune",
    "plan": "serve",
    "simulate": "serve",
    "report": "status",
}


def plain_error(error: Any) -> InputError:
    """Turns ``error`` (a ``UsageError`` of typer) into an error of chipwise."""
    parameter, context = getattr(error, "param", None), error.ctx
    said, missing = error.message, type(error).__name__ == "MissingParameter"
    if option := getattr(error, "option_name", None):
        if type(error).__name__ == "NoSuchOption":
            known = error.possibilities or _options(context)
            moved = MOVED.get(option) if context is not None and context.info_name == "estimate" else None
            meant = f"chipwise {moved} has it" if moved else nearest(option, known)
            said = f"there is no option {short(option, quoted=False)}; {meant}"
    elif missing and parameter is not None:
        kind = "option" if _name(parameter).startswith("-") else "argument"
        said = f"the {kind} {_name(parameter)} is missing"
    else:
        for pattern, text in _PLAIN:
            said, found = re.subn(f"^{pattern}", text, said)
            if found and said.startswith("must"):
                said += _not(_given(error))
            if found:
                break
        if parameter is not None:
            said = f"{_name(parameter)}: {said}"
    if match := re.match(r"No such command ['\"](.*?)['\"](?:[.]|$)", said, re.DOTALL):
        said = f"there is no command {short(match[1])}; {_instead(match[1], _commands(context))}"
    said = said.removesuffix(".")
    said = said[:1].lower() + said[1:] if said[1:2].islower() else said
    return InputError(f"{said} (see {context.command_path} --help)" if context is not None else said)


def _instead(typed: str, known: Sequence[str]) -> str:
    """Returns the end of a message: a suggestion for ``typed``, a misspelled command or another tool's command."""
    meant = [each for each, words in OTHER_WORDS.items() if typed.lower() in words.split() and each in known]
    return f"did you mean {listed(meant)}?" if meant else nearest(typed, known)


def _name(parameter: Any) -> str:
    """Returns the parameter's name for messages: ``--batch`` for an option, ``MODEL`` for an argument."""
    longest: str = max(parameter.opts, key=len)
    return longest if longest.startswith("-") else longest.upper()


def _given(error: Any) -> object | None:
    """The rejected value, if the parser kept it."""
    details = getattr(error.__cause__, "errors", None)
    return details()[0].get("input") if details is not None else None


def _not(given: object | None) -> str:
    if given is None:
        return ""
    return f", not {short(given, quoted=not re.fullmatch(r'[-+.0-9e]+', str(given)))}"


def _options(context: Any) -> list[str]:
    return [name for item in context.command.params for name in item.opts if name.startswith("--")]


def _commands(context: Any) -> list[str]:
    names: list[str] = context.command.list_commands(context)
    return names
