"""One folder per kind of model that chipwise builds: stem, head, operators, torch module, ONNX graph and choices.

Blocks that several kinds use belong in :mod:`chipwise.model.blocks`.
"""
