"""Chips and runtimes: data sheets, calibrated machines, look-up of informal names, and defaults for each chip.

The package contains only facts, each with its source; :mod:`chipwise.predict` computes the cost of a model on a chip.
"""
