"""Blocks: connects specs with operators, torch modules and ONNX graphs. One folder per block, each with ``lower.py``
(operators), ``module.py`` (torch) and ``onnx.py`` (graph nodes). Blocks do not import each other; ``lowering.py`` puts
a whole model together."""
