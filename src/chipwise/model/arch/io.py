"""Converts an ArchSpec to and from plain data, JSON files and YAML files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from chipwise.core.digest import plain
from chipwise.core.files import build, read_json, read_yaml, write_json, write_yaml
from chipwise.errors import SpecError
from chipwise.model.arch.arch import ArchSpec

SCHEMA = "chipwise.arch/1"


def to_data(spec: ArchSpec) -> dict[str, Any]:
    """Converts ``spec`` to plain data for JSON, including the schema version."""
    return {"schema": SCHEMA, **plain(spec)}


def from_data(data: object, *, file: str | None = None) -> ArchSpec:
    """The ArchSpec that ``data`` describes.

    Raises:
        SpecError: The schema or a field is unknown, or the fields contradict each other.
    """
    if not isinstance(data, dict):
        raise SpecError("a model must be a mapping of fields", file=file)
    fields = dict(data)
    schema = fields.pop("schema", SCHEMA)
    if schema != SCHEMA:
        raise SpecError(f"unknown schema {schema!r}; this version reads {SCHEMA}", file=file, field="schema")
    return build(ArchSpec, fields, file=file)


def save(spec: ArchSpec, path: str | Path) -> None:
    """Writes ``spec`` as YAML if the file name ends in .yaml or .yml, else as JSON."""
    write = write_yaml if Path(path).suffix in (".yaml", ".yml") else write_json
    write(path, to_data(spec))


def load(path: str | Path) -> ArchSpec:
    """Reads an ArchSpec from a JSON or YAML file."""
    data = read_json(path) if str(path).endswith(".json") else read_yaml(path)
    return from_data(data, file=str(path))
