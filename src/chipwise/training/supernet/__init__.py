"""Supernets: trains weights that many sub-models share; sub-models can be scored, extracted and trained further."""
