"""Supernets: the training of shared weights for all sub-models, which can be extracted, scored and trained further."""
