"""One folder a kind of model that is built: its stem and head, operators, torch module, ONNX graph and choices.

A block that two kinds use belongs in :mod:`chipwise.model.blocks`.
"""
