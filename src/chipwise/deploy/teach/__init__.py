"""Fits the profile of a machine that no data sheet describes well, from a table of measured models."""
