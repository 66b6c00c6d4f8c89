"""Fits the cost models that chipwise ships, and validates their predictions against tables of measurements.

The commands ``chipwise fit``, ``validate`` and ``ops`` are in :mod:`chipwise_fitting.cli`; in Python, ``fit`` and
``validate`` are in :mod:`chipwise_fitting.commands`, tables of single operators in :mod:`chipwise_fitting.optable`.
"""
