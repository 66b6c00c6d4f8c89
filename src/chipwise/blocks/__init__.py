"""Where what a block is (spec), what it computes (ops) and how it runs (torch, ONNX) meet.

One folder a block, each with ``lower.py`` (operators), ``module.py`` (torch) and ``onnx.py`` (graph nodes). Blocks do
not import each other; ``lowering.py`` puts a whole model together.
"""
