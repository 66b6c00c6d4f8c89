"""Checks ONNX files for int8 matrix products and convolutions that saturate on some processors.

Other exporters may write such files.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper

from chipwise.model.blocks.quantize import MOST_INT8

# Operators whose second input is the weights.
PRODUCTS = {"ConvInteger", "DynamicQuantizeMatMul", "MatMulInteger", "MatMulIntegerToFloat"}


def saturates(path: Path) -> bool:
    """Whether a stored int8 weight is so large that the sum of two products with uint8 values exceeds 16 bits."""
    graph = onnx.load(str(path)).graph
    stored = {tensor.name: tensor for tensor in graph.initializer if tensor.data_type == TensorProto.INT8}
    weights = {node.input[1] for node in graph.node if node.op_type in PRODUCTS} & set(stored)
    return any(np.abs(numpy_helper.to_array(stored[name]).astype(np.int16)).max() > MOST_INT8 for name in weights)
