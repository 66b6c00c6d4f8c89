"""Chips and runtimes: data sheets, calibrated machines, names that people type, and suitable defaults.

Only facts, each with its source. The cost of a model on a chip is computed in :mod:`chipwise.predict`.
"""
