"""Specification, folder, budget and trials of a run: the files that every search writes and resumes from."""
