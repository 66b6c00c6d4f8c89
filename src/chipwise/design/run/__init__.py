"""Specification, folder, budget and trials of a run: what every search stores and resumes from."""
