"""Reads the profile file of an ONNX Runtime session. Needs only the standard library."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple


class NodeRun(NamedTuple):
    """One run of a node, with its time and its tensors. Types have ONNX Runtime's names."""

    node: str
    operator: str
    seconds: float
    inputs: list[tuple[str, list[int]]]  # type and shape
    outputs: list[tuple[str, list[int]]]


def node_runs(path: str | Path) -> Iterator[NodeRun]:
    """Yields all runs of nodes that the profile file ``path`` records, in the order of the file."""
    for event in json.loads(Path(path).read_text(encoding="utf-8")):
        node, told = event["name"].removesuffix("_kernel_time"), event.get("args", {})
        if event.get("cat") == "Node" and node != event["name"]:
            sides = (told.get(f"{side}_type_shape", []) for side in ("input", "output"))
            tensors = ([typed for each in side for typed in each.items()] for side in sides)
            yield NodeRun(node, told.get("op_name", ""), event["dur"] / 1e6, *tensors)
