"""Strict reading of files: safe YAML into frozen dataclasses, with errors that name file, field and nearest names.

Nothing in a file is executed: YAML is loaded with the safe loader, everything else is JSON or safetensors.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import functools
import json
import os
import types
import typing
from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from typing import Any, TypeVar

import yaml

from chipwise.core.errors import InputError, SpecError, StorageError, nearest

T = TypeVar("T")


def read_yaml(path: str | Path) -> dict[str, Any]:
    """The mapping that the YAML file holds.

    Raises:
        SpecError: The file is missing, is not text, is broken YAML, or holds no mapping.
    """
    name = str(path)
    try:
        text = Path(path).read_text(encoding="utf-8")
    except FileNotFoundError:
        raise SpecError("there is no such file", file=name) from None
    except IsADirectoryError:
        raise SpecError("this is a folder, not a file", file=name) from None
    except UnicodeDecodeError:
        raise SpecError("this is not a text file (UTF-8)", file=name) from None
    except OSError as error:
        raise SpecError(f"cannot be read: {error.strerror}", file=name) from None
    return parse_yaml(text, name=name)


def parse_yaml(text: str, *, name: str) -> dict[str, Any]:
    """The mapping that ``text`` holds; ``name`` is the file's, for messages.

    Raises:
        SpecError: Broken YAML, or no mapping.
    """
    try:
        data = yaml.load(text, Loader=_loader(text))
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        problem = " ".join((getattr(error, "problem", None) or str(error)).split())
        raise SpecError(f"broken YAML at {where}{problem}", file=name) from None
    except RecursionError:
        raise SpecError("broken YAML: nested too deep", file=name) from None
    if not isinstance(data, dict):
        kind = "nothing" if data is None else f"a {type(data).__name__}"
        raise SpecError(f"the file must hold a mapping of fields, not {kind}", file=name)
    return data


class _UniqueConstructor(yaml.constructor.SafeConstructor):
    """Builds plain values only, and refuses a field that is given twice."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[object] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if isinstance(key, list | dict):
                raise yaml.constructor.ConstructorError(None, None, "a field name must be a word", key_node.start_mark)
            if key in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the field {key!r} is given twice", key_node.start_mark
                )
            seen.add(key)
        return super().construct_mapping(node, deep)


class _Loader(_UniqueConstructor, yaml.SafeLoader):
    """Reads any text."""


if typing.TYPE_CHECKING:
    _CLoader = yaml.SafeLoader
else:
    _CLoader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _FastLoader(_UniqueConstructor, _CLoader):
    """Reads several times faster where PyYAML has libyaml, whose parser recurses without a limit."""


def _loader(text: str) -> type[yaml.SafeLoader]:
    """The fast loader for text that cannot nest deep: each level takes an opening sign or one more space of indent."""
    openings = sum(text.count(sign) for sign in "[{-?")
    return _FastLoader if len(text) <= 20_000 and openings <= 400 else _Loader


def build(cls: type[T], data: object, *, field: str | None = None, file: str | None = None) -> T:
    """``data`` (as YAML or JSON gave it) as the dataclass ``cls``, every field checked by its type.

    Raises:
        SpecError: An unknown or missing field, a value of the wrong type, or one that ``cls`` refuses.
    """
    try:
        return typing.cast("T", _build(cls, data, field))
    except SpecError as error:
        raise error.inside(file=file) from None


@functools.cache
def _hints(cls: type) -> dict[str, Any]:
    return typing.get_type_hints(cls)


def _build(cls: Any, data: object, field: str | None) -> Any:
    if not isinstance(data, Mapping):
        raise SpecError(f"must be a mapping of fields, not {_word(data)}", field=field)
    hints = _hints(cls)
    known = {f.name: f for f in dataclasses.fields(cls) if f.init}
    values: dict[str, Any] = {}
    for key, value in data.items():
        path = f"{field}.{key}" if field else str(key)
        if key not in known:
            raise SpecError(f"unknown field; {nearest(str(key), known)}", field=path)
        values[key] = _value(hints[key], value, path)
    for name, item in known.items():
        required = item.default is dataclasses.MISSING and item.default_factory is dataclasses.MISSING
        if required and name not in values:
            raise SpecError("this field is missing", field=f"{field}.{name}" if field else name)
    try:
        return cls(**values)
    except SpecError as error:
        raise error.inside(field=field) from None
    except InputError as error:
        raise SpecError(str(error), field=field) from None


def _value(hint: Any, value: object, field: str) -> Any:
    """``value`` as the type ``hint``; numbers widen from int to float and nothing else converts."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return value
    if origin in (typing.Union, types.UnionType):
        return _union(args, value, field)
    if origin is typing.Literal:
        if value not in args:
            raise SpecError(f"{value!r} is not one of these; {nearest(str(value), map(str, args))}", field=field)
        return value
    if origin is tuple:
        if not isinstance(value, list | tuple):
            raise SpecError(f"must be a list, not {_word(value)}", field=field)
        return tuple(_value(args[0], item, f"{field}[{i}]") for i, item in enumerate(value))
    if origin in (dict, Mapping) or getattr(origin, "__name__", "") == "Mapping":
        if not isinstance(value, Mapping):
            raise SpecError(f"must be a mapping, not {_word(value)}", field=field)
        return {str(key): _value(args[1], item, f"{field}.{key}") for key, item in value.items()}
    if dataclasses.is_dataclass(hint):
        return value if isinstance(value, typing.cast(type, hint)) else _build(hint, value, field)
    if isinstance(hint, type) and issubclass(hint, Enum):
        try:
            return hint(value)
        except ValueError:
            names = [str(item.value) for item in hint]
            raise SpecError(f"{value!r} is not one of these; {nearest(str(value), names)}", field=field) from None
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if isinstance(hint, type) and (not isinstance(value, hint) or (isinstance(value, bool) and hint is not bool)):
        raise SpecError(f"must be {_TYPE_WORDS.get(hint, hint.__name__)}, not {_word(value)}", field=field)
    return value


def _union(options: tuple[Any, ...], value: object, field: str) -> Any:
    if value is None and type(None) in options:
        return None
    rest = [option for option in options if option is not type(None)]
    if isinstance(value, Mapping):  # of several classes the one with most of the fields is meant, and named in errors
        rest.sort(key=lambda option: -len(value.keys() & getattr(option, "__dataclass_fields__", {}).keys()))
    first: SpecError | None = None
    for option in rest:
        try:
            return _value(option, value, field)
        except SpecError as error:
            first = first or error
    assert first is not None
    raise first


_TYPE_WORDS = {int: "a whole number", float: "a number", str: "text", bool: "true or false", list: "a list"}


def _word(value: object) -> str:
    if value is None:
        return "nothing"
    kind = "a mapping" if isinstance(value, Mapping) else _TYPE_WORDS.get(type(value), type(value).__name__)
    return f"{kind} ({value!r:.60})"


def write_atomic(path: str | Path, content: str | bytes) -> None:
    """Writes ``content`` so that a reader, or a kill in between, sees the old file or the new one, never a part.

    Raises:
        StorageError: The disk is full, the folder is not writable, or another refusal.
    """
    target = Path(path)
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        with storage(target):
            target.parent.mkdir(parents=True, exist_ok=True)
            with temporary.open("wb") as stream:
                stream.write(content.encode() if isinstance(content, str) else content)
                stream.flush()
                os.fsync(stream.fileno())
            temporary.replace(target)
    finally:
        with contextlib.suppress(OSError):  # the refusal above says more than that there is nothing to remove
            temporary.unlink()


_REFUSED = (
    *(errno.EACCES, errno.EPERM, errno.EROFS),
    *(errno.ENOTDIR, errno.EEXIST, errno.EISDIR, errno.ENAMETOOLONG, errno.ELOOP),
)


class storage:  # noqa: N801  (reads as a sentence: with storage(path): …)
    """Turns the disk's refusals inside the block into a StorageError that names ``path`` and what to do."""

    def __init__(self, path: str | Path) -> None:
        self.path = path

    def __enter__(self) -> None:
        """Nothing to open."""

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if not isinstance(error, OSError):
            return
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise StorageError(
                f"{self.path}: the disk is full; free some space and go on with --resume (finished trials are kept)"
            ) from None
        if error.errno in _REFUSED:
            raise StorageError(
                f"{self.path}: cannot be written ({error.strerror}); choose another folder with --out"
            ) from None


def read_json(path: str | Path) -> Any:
    """What the JSON file holds.

    Raises:
        SpecError: The file is missing or is not JSON.
    """
    try:
        return json.loads(Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise SpecError("there is no such file", file=str(path)) from None
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise SpecError(f"not valid JSON: {error}", file=str(path)) from None
    except OSError as error:
        raise SpecError(f"cannot be read: {error.strerror}", file=str(path)) from None


def write_json(path: str | Path, value: Any) -> None:
    """``value`` as indented JSON, written atomically. NaN and infinity are refused: JSON has neither."""
    write_atomic(path, json.dumps(value, indent=1, allow_nan=False) + "\n")
