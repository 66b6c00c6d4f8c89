"""What chips and runtimes offer: data sheets, calibrated machines, names that people type, what suits a chip.

Facts alone, each with its source. What a model needs of a chip is computed in :mod:`chipwise.predict`.
"""
