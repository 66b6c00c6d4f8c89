"""Derives an architecture's weights, operators, torch module and ONNX graph, for every kind of model."""
