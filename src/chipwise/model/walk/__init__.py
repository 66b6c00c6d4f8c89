"""Turns an architecture into its weights, operators, torch module and ONNX graph, for every kind of model."""
