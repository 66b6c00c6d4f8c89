"""Writes reports of runs: one HTML file, a model card and a CSV file."""
