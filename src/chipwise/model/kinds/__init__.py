"""One folder per kind of model that chipwise builds, with its stem, head, operators, torch module and ONNX graph.

Blocks that several kinds use belong in :mod:`chipwise.model.blocks`.
"""
