"""Strict reading and atomic writing of files. Errors name the file and say what to do.

Nothing in a file is executed: YAML is loaded with the safe loader, everything else is JSON or safetensors. Only regular
files up to a size limit are read, so a pipe, a device or a huge file leads to an error, and chipwise does not hang.
"""

from __future__ import annotations

import contextlib
import errno
import gzip
import io
import json
import os
import re
import shutil
import stat
import typing
import zlib
from collections.abc import Iterator
from pathlib import Path

import yaml

from chipwise.core.fields import build as build
from chipwise.core.fields import describe
from chipwise.errors import DiskFull, InputError, OutputError, SpecError

MOST_YAML_BYTES = 2 * 2**20  # ten times the size of the largest bundled file
MOST_BYTES = 2**29
MOST_DIGITS = 308  # digits of a whole number in a file; the largest float has 309


def read_bytes(path: str | Path, *, most: int = MOST_BYTES) -> bytes:
    """The contents of a regular file of at most ``most`` bytes.

    Raises:
        SpecError: The file does not exist, is not a regular file, is too large, or cannot be read.
    """
    if not isinstance(path, str | Path):
        raise SpecError(f"must be the path of a file, not {describe(path)}", field="path")
    name = str(path)
    try:
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))  # a pipe without a writer must not block
        with open(descriptor, "rb") as stream:
            found = os.fstat(descriptor)
            mode = found.st_mode
            if stat.S_ISDIR(mode):
                raise SpecError("this is a folder, not a file", file=name)
            if not stat.S_ISREG(mode):
                raise SpecError("this is a pipe or device; give a regular file", file=name)
            content = b"" if found.st_size > most else stream.read(most + 1)
    except FileNotFoundError:
        raise SpecError("there is no such file", file=name) from None
    except IsADirectoryError:
        raise SpecError("this is a folder, not a file", file=name) from None
    except OSError as error:
        raise SpecError(f"cannot be read: {error.strerror}", file=name) from None
    except ValueError:
        raise SpecError("this cannot be the name of a file", file=name) from None
    if max(found.st_size, len(content)) > most:
        raise SpecError(f"is larger than {most / 2**20:,.0f} MiB, the limit for such a file", file=name)
    return content


def read_text(path: str | Path, *, most: int = MOST_BYTES) -> str:
    """The text of a regular UTF-8 file. The file may be compressed with gzip.

    Raises:
        SpecError: As for :func:`read_bytes`, or the file is not text or cannot be unpacked.
    """
    content = read_bytes(path, most=most)
    if content.startswith(b"\x1f\x8b"):
        try:
            content = gzip.GzipFile(fileobj=io.BytesIO(content)).read(most + 1)
        except (OSError, EOFError, zlib.error) as error:
            raise SpecError(f"cannot be unpacked: {error}", file=str(path)) from None
        if len(content) > most:
            raise SpecError(f"unpacks to more than {most / 2**20:,.0f} MiB, the limit for such a file", file=str(path))
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise SpecError("this is not a text file (UTF-8)", file=str(path)) from None


def read_yaml(path: str | Path) -> dict[str, object]:
    """The mapping in a YAML file.

    Raises:
        SpecError: The file cannot be read, is broken YAML, or contains no mapping.
    """
    return parse_yaml(read_text(path, most=MOST_YAML_BYTES), name=str(path))


def parse_yaml(text: str, *, name: str) -> dict[str, object]:
    """The mapping in the YAML ``text``. ``name`` is the file's name, for messages.

    Raises:
        SpecError: ``text`` is broken YAML or not a mapping.
    """
    try:
        data = yaml.load(text, Loader=_loader(text))
    except yaml.reader.ReaderError as error:
        raise SpecError(f"broken YAML at character {error.position + 1}: {error.reason}", file=name) from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f" at line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        problem = " ".join((getattr(error, "problem", None) or str(error)).split())
        raise SpecError(f"broken YAML{where}: {problem:.200}", file=name) from None
    except RecursionError:
        raise SpecError("broken YAML: nested too deeply", file=name) from None
    except ValueError as error:  # such as a date with month 13
        raise SpecError(f"broken YAML: {error}", file=name) from None
    if not isinstance(data, dict):
        kind = "nothing" if data is None else "a list" if isinstance(data, list) else "a single value"
        raise SpecError(f"the file must hold a mapping of fields, not {kind}", file=name)
    return data


class _UniqueConstructor(yaml.constructor.SafeConstructor):
    """YAML constructor that builds only plain values and rejects duplicate fields."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[object, object]:
        seen: set[object] = set()
        for key_node, _ in node.value:
            if key_node.tag == "tag:yaml.org,2002:bool":  # a field may be named "on", which YAML 1.1 reads as true
                key_node.tag = "tag:yaml.org,2002:str"
            key = self.construct_object(key_node, deep=True)
            if isinstance(key, list | dict):
                raise yaml.constructor.ConstructorError(
                    None, None, "a field name must be plain text", key_node.start_mark
                )
            if key in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the field {key!r} is given twice", key_node.start_mark
                )
            seen.add(key)
        return super().construct_mapping(node, deep)


class _Loader(_UniqueConstructor, yaml.SafeLoader):
    """Slower YAML loader in pure Python. It raises an error for text that is nested too deeply."""


if typing.TYPE_CHECKING:
    _CLoader = yaml.SafeLoader
else:
    _CLoader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _FastLoader(_UniqueConstructor, _CLoader):
    """Faster YAML loader, with libyaml if PyYAML has it. Text that is nested too deeply can crash it."""


def _exponent(loader: yaml.SafeLoader, node: yaml.ScalarNode) -> int | float:
    """Reads ``1e-5`` as a number (PyYAML reads it as text) and ``1e6`` as a whole number."""
    digits, _, exponent = node.value.lower().partition("e")
    power = int(exponent)
    return int(digits) * 10**power if 0 <= power <= 18 and "." not in digits else float(node.value)


def _integer(loader: yaml.SafeLoader, node: yaml.ScalarNode) -> int:
    """Reads a whole number in YAML; it must not be too large for a float."""
    _check_digits(node.value)
    return loader.construct_yaml_int(node)


def _whole(digits: str) -> int:
    """Reads a whole number in JSON; it must not be too large for a float."""
    _check_digits(digits)
    return int(digits)


def _check_digits(text: str) -> None:
    """Checks that a whole number does not have too many digits.

    Raises:
        ValueError: The number has too many digits for a float.
    """
    if len(text) > MOST_DIGITS:
        raise ValueError(f"a number of {len(text.lstrip('+-')):,} digits is too large")


for _each in (_Loader, _FastLoader):
    _each.add_constructor("tag:yaml.org,2002:int", _integer)
    _each.add_implicit_resolver(
        "chipwise:exponent", re.compile(r"^[-+]?(?:\d{1,300}(?:\.\d*)?|\.\d+)[eE][-+]?\d{1,4}$"), list("-+.0123456789")
    )
    _each.add_constructor("chipwise:exponent", _exponent)


def _loader(text: str) -> type[yaml.SafeLoader]:
    """The fast loader if ``text`` cannot be nested too deeply for it, else the slow one.

    Each level of nesting needs a bracket, a dash, a question mark or more indentation. So the function counts these
    characters and adds the largest indentation.
    """
    openings = sum(text.count(sign) for sign in "[{-?")
    indent = max((len(line) - len(line.lstrip(" ")) for line in text.splitlines()), default=0)
    return _FastLoader if openings + indent <= 600 else _Loader


def write_atomic(path: str | Path, content: str | bytes) -> None:
    """Writes ``content`` atomically: even after a kill, readers see either the old file or the complete new file.

    If the path is a symbolic link, the link's target is written. Missing folders are created, because this function is
    for files in chipwise's own folders; for files named by the user, use :func:`write_output`.

    Raises:
        DiskFull: No space is left.
        OutputError: The folder is not writable, the path is not a regular file, or the system refuses to write.
    """
    with storage(path):
        target = Path(os.path.realpath(path))
        _require_file(target, path)
        temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            with temporary.open("wb") as stream:
                stream.write(content.encode() if isinstance(content, str) else content)
                stream.flush()
                os.fsync(stream.fileno())
            temporary.replace(target)
        finally:
            with contextlib.suppress(OSError):  # report the error above, not one from cleaning up
                temporary.unlink()


def write_output(path: str | Path, content: str | bytes) -> None:
    """Writes ``content`` atomically to a file that the user named; its folder must exist.

    Raises:
        DiskFull: No space is left.
        OutputError: The folder does not exist or is not writable, or the path is a folder, a pipe or a device.
    """
    check_output(path)
    write_atomic(path, content)


def publish(made: Path, path: str | Path) -> None:
    """Moves a finished file to ``path`` atomically: readers see either the old file or the complete new file.

    Raises:
        DiskFull: ``path`` is on another disk, and no space is left there.
        OutputError: The system refuses to move the file.
    """
    with storage(path):
        target = Path(os.path.realpath(path))
        beside = target.with_name(f".{target.name}.{os.getpid()}.tmp")
        try:
            shutil.move(made, beside)
            beside.replace(target)
        finally:
            beside.unlink(missing_ok=True)


def reserve(path: Path) -> None:
    """Reserves disk space for a memory-mapped file, because writing to it on a full disk would end the process.

    On systems without a call for this, nothing is reserved.

    Raises:
        OSError: The disk is full.
    """
    if hasattr(os, "posix_fallocate"):
        with path.open("r+b") as file:
            os.posix_fallocate(file.fileno(), 0, os.fstat(file.fileno()).st_size)


def check_output(path: str | Path, *, source: str | Path | None = None) -> None:
    """Checks that an output file can be written, before its contents are computed.

    Args:
        path: The file to write.
        source: The input file, which must not be overwritten.

    Raises:
        InputError: ``path`` is ``source``.
        OutputError: The folder does not exist or is not writable, or the path is a folder, a pipe or a device.
    """
    target = Path(path)
    with storage(path):
        if not target.parent.is_dir():
            raise OutputError(f"{path}: there is no folder {target.parent}; create it first")
        _require_file(target, path)
        if not os.access(target if target.exists() else target.parent, os.W_OK):
            raise OutputError(f"{path}: cannot be written (Permission denied); choose another place")
        if source is not None and target.exists() and Path(source).exists() and target.samefile(source):
            raise InputError(f"{path}: this is the input file; give another file for the result")


def _require_file(target: Path, path: str | Path) -> None:
    """Raises OutputError if ``target`` exists but is not a file. ``path`` is the name that the user gave it."""
    if target.exists() and not target.is_file():
        kind = "a folder" if target.is_dir() else "a pipe or device"
        raise OutputError(f"{path}: this is {kind}, not a file; give another path")


_REFUSED = (
    *(errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOENT, errno.EINVAL),
    *(errno.ENOTDIR, errno.EEXIST, errno.EISDIR, errno.ENAMETOOLONG, errno.ELOOP, errno.ENOTEMPTY),
)


_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def _is_full(error: OSError) -> bool:
    """Whether the error means a full disk. NumPy's error has no ``errno``; its message says how much was written."""
    short = error.errno is None and re.search(r"\d+ requested and \d+ written", str(error))
    return error.errno in _FULL or bool(short)


class storage:  # noqa: N801  (reads as a sentence: with storage(path): …)
    """Context manager that turns disk errors into OutputError or DiskFull, which name ``path`` and say what to do."""

    def __init__(self, path: str | Path) -> None:
        self.path = path

    def __enter__(self) -> None:
        """Enters the context; there is nothing to prepare."""

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if not isinstance(error, OSError):
            return
        if _is_full(error):
            raise DiskFull(self.path) from None
        if error.errno in _REFUSED:
            raise OutputError(f"{self.path}: cannot be written ({error.strerror}); choose another place") from None


@contextlib.contextmanager
def resumable() -> Iterator[None]:
    """Context manager for commands with ``--resume``: on a full disk, the error's message mentions that option."""
    try:
        yield
    except DiskFull as error:
        raise DiskFull(error.path, resumable=True) from None


@contextlib.contextmanager
def refused_files() -> Iterator[None]:
    """Context manager that turns operating-system errors on files, such as a missing permission, into one-line errors.

    Raises:
        OutputError: The file cannot be used; the message gives the system's reason.
        DiskFull: No space is left for the file or for standard output.
    """
    try:
        yield
    except OSError as error:
        if _is_full(error):
            raise DiskFull(error.filename or "output") from None
        if error.filename is None or error.errno not in _REFUSED:
            raise
        raise OutputError(f"{error.filename}: cannot be used: {error.strerror}") from error


def read_json(path: str | Path) -> object:
    """Reads a JSON file.

    Raises:
        SpecError: The file cannot be read or is not JSON.
    """
    return parse_json(read_text(path), name=str(path))


def read_mapping(path: str | Path) -> dict[str, object]:
    """The mapping of fields in a JSON file.

    Raises:
        SpecError: The file cannot be read, is not JSON, or contains no mapping.
    """
    found = read_json(path)
    if not isinstance(found, dict):
        raise SpecError(f"must be a mapping of fields, not {describe(found)}", file=str(path))
    return found


def parse_json(text: str, *, name: str) -> object:
    """Parses the JSON ``text``. ``name`` is the file's name, for messages.

    Raises:
        SpecError: The text is not JSON.
    """
    try:
        return json.loads(text, parse_int=_whole)
    except RecursionError:
        raise SpecError("not valid JSON: nested too deeply", file=name) from None
    except ValueError as error:  # broken JSON, or a number with hundreds of digits
        raise SpecError(f"not valid JSON: {error}", file=name) from None


def write_json(path: str | Path, value: object) -> None:
    """Writes ``value`` as indented JSON, atomically. It rejects NaN and infinity, which do not exist in JSON."""
    write_atomic(path, json.dumps(value, indent=1, allow_nan=False) + "\n")


def write_yaml(path: str | Path, value: object) -> None:
    """Writes the plain data ``value`` atomically, as YAML that :func:`read_yaml` can read."""
    write_atomic(path, yaml.dump(value, Dumper=_Dumper, sort_keys=False))


class _Dumper(yaml.SafeDumper):
    """YAML dumper that puts quotes around text that the loaders would read as a number."""


_Dumper.yaml_implicit_resolvers = _Loader.yaml_implicit_resolvers
