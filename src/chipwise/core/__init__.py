"""Foundations that know nothing of models or chips: units, number formats, files, digests, tables, worker processes.

A helper belongs here when at least two floors use it and it mentions no model, chip or search.
"""
