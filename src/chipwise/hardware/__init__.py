"""Chips and runtimes: data sheets, calibrated machines, names that people type, and suitable defaults.

Facts alone, each with its source. What a model needs of a chip is computed in :mod:`chipwise.predict`.
"""
