"""Reads users' own ONNX files as lists of operators with FLOPs and bytes.

``graph`` defines the records and does not need the package onnx. ``read`` reads a file: it gives open (dynamic) axes a
size and lets ONNX Runtime fuse operators in a child process (``fuse``), because the runtime may crash on unusual files.
``shapes`` infers the tensors' shapes. ``operators`` classifies each operator and counts its FLOPs and bytes.
"""

from typing import TYPE_CHECKING

from chipwise.core.lazy import on_first_use

if TYPE_CHECKING:
    from chipwise.model.graphs.read import model_inputs as model_inputs
    from chipwise.model.graphs.read import read_graph as read_graph
    from chipwise.model.graphs.read import stated_inputs as stated_inputs

__getattr__, __dir__ = on_first_use(__name__, __file__)
