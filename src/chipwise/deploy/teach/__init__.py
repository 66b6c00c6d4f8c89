"""Fits a machine that no data sheet describes well to a table of measured models."""
