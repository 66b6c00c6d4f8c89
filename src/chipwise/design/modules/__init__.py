"""Searches over networks of any architecture, which a user's own Python module builds and trains.

The module defines a table of choices and the functions ``build`` and ``train``. Costs are measured on this machine:
networks are exported as ONNX files and timed in ONNX Runtime. Searches over chipwise's own kinds of models are in
``phases``.
"""
