"""Searches networks that a user's own Python module builds and trains: any architecture, by the same strategies.

The module gives a table of choices, ``build`` and ``train``. Costs are measured on this machine, as ONNX files in ONNX
Runtime. Searches of chipwise's own kinds of models are in ``phases``.
"""
