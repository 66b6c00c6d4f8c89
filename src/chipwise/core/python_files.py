"""Runs Python code that the user named: a file (such as a metric or a network), or an object in a package."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import os
import re
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

from chipwise.errors import InputError, UnknownName, short

NAMED = re.compile(r"((?:[^\W\d]\w*\.)*[^\W\d]\w*|.+\.py):((?:[^\W\d]\w*\.)*[^\W\d]\w*)")
MOST_CHARACTERS = 300  # number of characters of an exception's message that are shown


def run_file(path: Path) -> ModuleType | None:
    """Runs a Python file and returns its module; None if there is no such file. Passes on the code's exceptions."""
    spec = importlib.util.spec_from_file_location(path.stem, path) if path.is_file() else None
    if spec is None or spec.loader is None:
        return None
    _look_in(path.resolve().parent)  # so that the file can import modules next to it
    module = importlib.util.module_from_spec(spec)
    sys.modules.setdefault(path.stem, module)  # data classes look for their module
    spec.loader.exec_module(module)
    return module


def is_name(text: str) -> bool:
    """Whether ``text`` is the name of a Python object: ``package.module:name`` or ``file.py:name``.

    >>> is_name("torchvision.models:resnet18"), is_name("nets.py:build"), is_name("gpt2"), is_name("llama3:8b")
    (True, True, False, False)
    """
    return NAMED.fullmatch(text) is not None


def named_object(name: str) -> object:
    """The object that ``package.module:name`` or ``file.py:name`` names. Imports the module, or runs the file.

    Packages are also looked for in the current folder.

    Raises:
        InputError: There is no such module, file or object, or its code fails.
    """
    match = NAMED.fullmatch(name)
    if match is None:
        raise InputError(f"{short(name)} must be the name of an object, like package.module:name or file.py:name")
    place, inside = match.groups()
    if place.endswith(".py"):
        with users_code(Path(place).name):
            found: object = run_file(Path(place))
        if found is None:
            raise InputError(f"{place}: there is no such Python file")
    else:
        _look_in(Path.cwd())
        try:
            with users_code(place):
                found = importlib.import_module(place)
        except InputError as error:
            if isinstance(error.__cause__, ModuleNotFoundError) and place.startswith(str(error.__cause__.name)):
                raise InputError(
                    f"{name}: there is no package or module {error.__cause__.name}, neither installed nor in the "
                    "current folder"
                ) from None
            raise
    for part in inside.split("."):
        if not hasattr(found, part):
            raise UnknownName(f"name in {place}", inside, [each for each in vars(found) if not each.startswith("_")])
        found = getattr(found, part)
    return found


@contextlib.contextmanager
def users_code(name: str) -> Iterator[None]:
    """Context manager that turns an exception in a user's code into a one-line error.

    Args:
        name: What is run, for the message. If ``name`` is the name of the code's file, the message also states the line
            that failed.

    Raises:
        InputError: The code failed.
    """
    try:
        yield
    except (Exception, SystemExit) as error:
        at = [f.lineno for f in traceback.extract_tb(error.__traceback__) if os.path.basename(f.filename) == name]
        line = f":{at[-1]}" if at else ""
        raise InputError(f"{name}{line}: {failure(error)}") from error


def failure(error: BaseException) -> str:
    """The type and message of an exception in one short line."""
    said = short(" ".join(str(error).split()), quoted=False, limit=MOST_CHARACTERS)
    return f"{type(error).__name__}: {said}" if said else type(error).__name__


def _look_in(folder: Path) -> None:
    if str(folder) not in sys.path:
        sys.path.append(str(folder))
