"""Blocks that several kinds of models share. One folder per block, each with ``lower.py`` (operators), ``module.py``
(torch) and ``onnx.py`` (graph nodes). Blocks do not import each other. ``lowering.py`` and ``nodes.py`` call
the blocks of a whole model in order."""
